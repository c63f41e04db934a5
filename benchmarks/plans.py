"""The table of docs/plans.md: shipped fleets × workloads × targets, each with what competes.

python -m benchmarks.plans > docs/plans.md            all rows
python -m benchmarks.plans --row all-h100 chat loose  one row, as JSON
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from splitplan.catalogs.errors import NoPlanError
from splitplan.planner.plan import Alternative, Plan
from splitplan.planner.question import Question
from splitplan.planner.show.report import attainment_text, plan_label, pools_text
from splitplan.planner.solve import solve

FLEETS = {
    "all-h100": "llama-3.1-70b",
    "h100-a100": "llama-3.1-70b",
    "a100-l40s": "llama-3.1-8b",
    "four-racks": "llama-3.1-70b",
}
"""Shipped fleets and the model each is asked to serve; 70B is out of an L40S's reach within a second."""

WORKLOADS = {
    "prompt-heavy": "lognormal:mean=4000,cv=0.6/mean=120,cv=0.8",
    "chat": "azure-conv",
    "long-output": "lognormal:mean=500,cv=0.8/mean=900,cv=0.6",
}
RATES_REQ_PER_S = {
    "llama-3.1-70b": {"prompt-heavy": 4, "chat": 16, "long-output": 6},
    "llama-3.1-8b": {"prompt-heavy": 8, "chat": 40, "long-output": 12},
}
TARGETS = {
    ("llama-3.1-70b", "tight"): "ttft=1500ms@p95,tpot=30ms@p95",
    ("llama-3.1-70b", "loose"): "ttft=5s@p95,tpot=80ms@p95",
    ("llama-3.1-8b", "tight"): "ttft=800ms@p95,tpot=25ms@p95",
    ("llama-3.1-8b", "loose"): "ttft=3s@p95,tpot=60ms@p95",
}


@dataclass(frozen=True, slots=True)
class Row:
    """One question of the table."""

    fleet: str
    workload: str
    target: str

    def question(self) -> Question:
        """The question in full."""
        model = FLEETS[self.fleet]
        return Question(
            model=model,
            fleet=self.fleet,
            workload=WORKLOADS[self.workload],
            slo=TARGETS[model, self.target],
            rate_req_per_s=float(RATES_REQ_PER_S[model][self.workload]),
        )


def rows() -> Iterator[Row]:
    """All of them, fleet by fleet."""
    for fleet in FLEETS:
        for workload in WORKLOADS:
            for target in ("tight", "loose"):
                yield Row(fleet, workload, target)


def result(row: Row) -> dict[str, object]:
    """What a row shows, without anything that varies from run to run."""
    try:
        plan = solve(row.question())
    except NoPlanError as error:
        return {"plan": "none", "reason": error.problems[0].message}
    chosen = Alternative(
        label=plan_label(plan.pools),
        pools=plan.pools,
        num_gpus=plan.num_gpus,
        usd_per_hour=plan.usd_per_hour,
        verification=plan.verification,
    )
    return {
        "plan": _cell(chosen),
        "alternatives": {item.label: _cell(item) for item in plan.alternatives},
        "gap_percent": plan.proof.gap_percent,
    }


def _cell(item: Alternative) -> str:
    if not item.pools:
        return item.reason
    text = pools_text(item.pools, ("prefill", "colocated"))
    decode = pools_text(item.pools, ("decode",))
    text = text if decode == "–" else f"{text} → {decode}"
    met = attainment_text(item.verification) if item.verification else "not simulated"
    return f"{text}: {item.num_gpus} GPUs, ${item.usd_per_hour:.2f}/h, {met}"


def main() -> None:
    """Print the table, or one row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--row", nargs=3, metavar=("FLEET", "WORKLOAD", "TARGET"))
    options = parser.parse_args()
    if options.row:
        print(json.dumps(result(Row(*options.row)), indent=2, ensure_ascii=False))
        return
    print(HEAD)
    for row in rows():
        _print_row(row)


HEAD = """# Plans for the shipped fleets

Made by `python -m benchmarks.plans > docs/plans.md` (extra `[fast]`); a test makes one row again. Each row is one
question; the chosen plan is the cheapest that passed its simulation, and below it stand the alternatives at their best:
colocated only, disaggregated only, one GPU type only. `→` separates prefill from decode; the percentage is the share of
requests that met all targets, with its 95 % interval.
"""


def _print_row(row: Row) -> None:
    question = row.question()
    found = result(row)
    print(f"\\n## {row.fleet}: {row.workload}, {row.target}\\n".replace("\\n", "\n"))
    print(f"{question.model}, {question.rate_req_per_s:g} req/s of `{question.workload}`, `{question.slo}`\n")
    if "reason" in found:
        print(f"No plan: {found['reason']}")
        return
    print("| | plan |\n|---|---|")
    print(f"| **chosen** | **{found['plan']}** |")
    alternatives = found["alternatives"]
    assert isinstance(alternatives, dict)
    for label, text in alternatives.items():
        print(f"| {label} | {text} |")
    sys.stdout.flush()


def plan_of(row: Row) -> Plan:
    """The plan of a row, for tests."""
    return solve(row.question())


if __name__ == "__main__":
    main()
