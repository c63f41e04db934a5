"""`python -m benchmarks.placement`: cost and goodput of each search's placement on the same columns, in Markdown.

Cost is that of serving the asked rate; goodput the most that the search's own two kinds of instance serve on the fleet.
"""

from __future__ import annotations

from dataclasses import replace

from benchmarks.placement.baselines import Choice, all_baselines
from benchmarks.placement.goodput import all_goodputs
from splitplan.catalogs.errors import NoPlanError
from splitplan.planner.columns.options import ColumnOptions
from splitplan.planner.inputs import load_inputs
from splitplan.planner.program.solve import solve_program
from splitplan.planner.program.types import Infeasible, ProgramInput
from splitplan.planner.question import Question
from splitplan.planner.study import prepare

CONNECTOR = "nixl-push"
"""A connector that takes prefill in pipeline stages, as the searches beside it assume."""

QUESTIONS = [
    Question(model, fleet, workload, slo, rate, columns=ColumnOptions(connector=CONNECTOR))
    for model, fleet, rates in (
        ("llama-3.1-8b", "a100-l40s", (20.0, 60.0)),
        ("llama-3.1-70b", "all-h100", (12.0, 30.0)),
        ("llama-3.1-70b", "h100-a100", (12.0, 30.0)),
        ("llama-3.1-70b", "four-racks", (12.0, 30.0)),
    )
    for rate in rates
    for workload, slo in (("azure-conv", "ttft=2s@p90,tpot=60ms@p90"),)
]


def main() -> None:
    """Print a row per question and method."""
    print("| question | method | placement | GPUs | $/h |")
    print("|---|---|---|---|---|")
    for question in QUESTIONS:
        name = f"{question.model}, {question.fleet}, {question.rate_req_per_s:g} req/s"
        try:
            problem = prepare(load_inputs(question)).problem
        except NoPlanError as error:
            print(f"| {name} | – | {error.problems[0].message} | | |")
            continue
        for choice in all_baselines(problem):
            print(_row(name, choice))
        for mode, label in (("disagg", "this program, disaggregated"), ("auto", "this program")):
            print(_own_row(name, label, replace(problem, options=replace(problem.options, mode=mode))))
    goodputs()


def goodputs() -> None:
    """Print a row per fleet and method: the most requests per second, and what they cost."""
    print("\n| fleet | method | placement | req/s | $/h |")
    print("|---|---|---|---|---|")
    for question in {(question.model, question.fleet): question for question in QUESTIONS}.values():
        problem = prepare(load_inputs(question)).problem
        for served in all_goodputs(problem):
            row = f"{served.method} | {served.placement} | {served.req_per_s:.1f} | {served.usd_per_hour:.2f}"
            print(f"| {question.model}, {question.fleet} | {row} |")


def _row(name: str, choice: Choice) -> str:
    fits = "" if choice.fits else " (more GPUs than there are)"
    return f"| {name} | {choice.method} | {choice}{fits} | {choice.num_gpus} | {choice.usd_per_hour:.2f} |"


def _own_row(name: str, label: str, problem: ProgramInput) -> str:
    answer = solve_program(problem)
    if isinstance(answer, Infeasible):
        return f"| {name} | {label} | {answer.reasons[0].message} | | |"
    counts: dict[str, int] = {}
    for placed in answer.placed:
        counts[placed.column] = counts.get(placed.column, 0) + placed.instances
    text = " + ".join(f"{many} x {column}" for column, many in counts.items())
    return f"| {name} | {label} | {text} | {answer.num_gpus} | {answer.usd_per_hour:.2f} |"


if __name__ == "__main__":
    main()
