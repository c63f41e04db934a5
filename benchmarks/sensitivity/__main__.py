"""`python -m benchmarks.sensitivity [--json]`: plans at several confidences, replayed with step times up to 30 % off.

Every plan is replayed with the best guess of all step times multiplied by the same factors, on the same requests, so
that rows of one question differ by what was planned alone.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from splitplan.planner.columns.options import BEST_GUESS, ColumnOptions
from splitplan.planner.judge.verify import Effort
from splitplan.planner.plan import Plan
from splitplan.planner.question import Question
from splitplan.planner.review.replay import replay
from splitplan.planner.review.sweep import pools_text
from splitplan.planner.solve import solve

FACTORS = (0.7, 0.85, 1.0, 1.15, 1.3)
CONFIDENCES = (BEST_GUESS, 80.0, 95.0)
QUESTIONS = (
    ("llama-3.1-8b", "a100-l40s", "azure-conv", "ttft=1s@p95,tpot=50ms@p95", 20.0),
    ("llama-3.1-70b", "four-racks", "azure-conv", "ttft=2s@p95,tpot=60ms@p95", 8.0),
)
NUM_REQUESTS, NUM_SEEDS = 16_000, 3


@dataclass(frozen=True, slots=True)
class Line:
    """One plan and the share of requests that met all targets at each factor on step times."""

    question: str
    confidence: float
    factor: float  # on step times that it was planned with, the largest of its GPU types
    usd_per_hour: float
    plan: str
    wanted: float  # share of requests that must meet all targets
    attainment: dict[str, float]  # by factor on the best guess


def lines(
    questions: Sequence[tuple[str, str, str, str, float]] = QUESTIONS,
    confidences: Sequence[float] = CONFIDENCES,
    factors: Sequence[float] = FACTORS,
    *,
    effort: Effort | None = None,
    num_requests: int = NUM_REQUESTS,
    num_seeds: int = NUM_SEEDS,
) -> Iterator[Line]:
    """Solve every question at every confidence and replay the plans."""
    from splitplan.planner.inputs import load_inputs

    for model, fleet, workload, slo, rate in questions:
        for confidence in confidences:
            question = Question(model, fleet, workload, slo, rate, columns=ColumnOptions(confidence=confidence))
            inputs = load_inputs(question)
            plan = solve(question, effort=effort)
            used = {pool.gpu for pool in plan.pools}
            yield Line(
                question=f"{model} on {fleet}, {rate:g} req/s of {workload}, {slo}",
                confidence=confidence,
                factor=round(max(inputs.step_factors[gpu] for gpu in used), 3),
                usd_per_hour=round(plan.usd_per_hour, 2),
                plan=pools_text(plan),
                wanted=inputs.slo.attainment,
                attainment={f"{factor:g}": _attainment(plan, factor, num_requests, num_seeds) for factor in factors},
            )


def _attainment(plan: Plan, factor: float, num_requests: int, num_seeds: int) -> float:
    """Share of requests that meet all targets when every step takes `factor` times the best guess."""
    verdict = replay(plan, confidence=BEST_GUESS, step_scale=factor, num_requests=num_requests, num_seeds=num_seeds)
    return round(verdict.attainment.value, 4)


def main() -> None:
    """Print a table, or JSON lines."""
    found = []
    for line in lines():
        found.append(line)
        if "--json" in sys.argv[1:]:
            print(json.dumps(asdict(line)), flush=True)
    if "--json" in sys.argv[1:]:
        return
    for question in dict.fromkeys(line.question for line in found):
        rows = [line for line in found if line.question == question]
        print(f"\n{question}; {rows[0].wanted:.0%} must meet all targets\n")
        print(f"| confidence | $/h | plan | {' | '.join(f'×{factor:g}' for factor in FACTORS)} |")
        print("|---" * (3 + len(FACTORS)) + "|")
        for line in rows:
            cells = " | ".join(f"{100 * share:.1f} %" for share in line.attainment.values())
            head = f"{line.confidence:g} % (×{line.factor:.2f})"
            print(f"| {head} | {line.usd_per_hour:.2f} | {line.plan} | {cells} |")


if __name__ == "__main__":
    main()
