"""The report in README.md, made again: `python -m benchmarks.readme` writes it into the README.

It is what `make demo` prints on a machine without numba, in a terminal of 120 columns.
"""

from __future__ import annotations

import io
import re
import shlex
from pathlib import Path

from rich.console import Console

from splitplan.planner.judge.verify import PLAIN
from splitplan.planner.question import Question
from splitplan.planner.show.report import print_plan
from splitplan.planner.solve import answer

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"(<!-- demo output -->\n```\n).*?(```)", re.S)


def demo_question() -> Question:
    """The question that the Makefile asks."""
    line = re.search(r"^DEMO = (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    assert line, "the Makefile has a line DEMO = …"
    words = shlex.split(line.group(1))
    given = {name.removeprefix("--"): value for name, value in zip(words[::2], words[1::2], strict=True)}
    return Question(given["model"], given["fleet"], given["workload"], given["slo"], float(given["rate"]))


def demo_output() -> str:
    """What the demo's solve prints."""
    found = answer(demo_question(), effort=PLAIN)
    text = io.StringIO()
    print_plan(Console(file=text, width=120, highlight=False), found.plan, found.inputs, saved_as="demo/plan.yaml")
    return "\n".join(line.rstrip() for line in text.getvalue().strip().splitlines()) + "\n"


def main() -> None:
    """Put the demo's output into the README."""
    readme = ROOT / "README.md"
    shown = readme.read_text(encoding="utf-8")
    readme.write_text(BLOCK.sub(lambda match: match.group(1) + demo_output() + match.group(2), shown), encoding="utf-8")


if __name__ == "__main__":
    main()
