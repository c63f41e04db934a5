"""What the README says is what happens."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from benchmarks.readme import demo_output

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_links_lead_somewhere() -> None:
    """Every relative link of README and docs names a file of the repository."""
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_make_demo_runs_the_command_that_the_readme_shows() -> None:
    shown = re.search(r"^planner (solve .*?)^```", README, re.S | re.M)
    assert shown
    wanted = shlex.split(shown.group(1).replace("\\\n", " "))
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    options = re.search(r"^DEMO = (.*)$", makefile, re.M)
    assert options
    assert wanted == ["solve", *shlex.split(options.group(1)), "-o", "demo/plan.yaml"]


def test_the_demo_prints_what_the_readme_shows() -> None:
    """The block in the README is the report of a machine without numba, as `make demo` sets it up."""
    block = re.search(r"<!-- demo output -->\n```\n(.*?)```", README, re.S)
    assert block
    assert block.group(1) == demo_output()


def test_the_python_call_of_the_readme_runs(capsys: pytest.CaptureFixture[str]) -> None:
    block = re.search(r"```python\n(.*?)```", README, re.S)
    assert block
    exec(compile(block.group(1), "README.md", "exec"), {})
    num_gpus, usd_per_hour = capsys.readouterr().out.split()
    assert int(num_gpus) > 0
    assert float(usd_per_hour) > 0
