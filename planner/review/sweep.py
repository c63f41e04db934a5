"""Several questions side by side: fleets or targets compared, and cost against one target or the rate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from splitplan.catalogs.errors import NoPlanError, Problem, UsageError
from splitplan.planner.inputs import SolveInputs, load_inputs
from splitplan.planner.judge.verify import Effort, default_effort
from splitplan.planner.plan import Plan
from splitplan.planner.question import Question
from splitplan.planner.simulate.parallel import Parallel, spread
from splitplan.planner.solve import answer_from
from splitplan.planner.spec.slo import format_slo, parse_slo

Axis = Literal["ttft", "tpot", "rate"]
PLOT_WIDTH, PLOT_HEIGHT = 64, 12


@dataclass(frozen=True, slots=True)
class Point:
    """One question of several: its label, its place on the axis, and its plan or the reason why there is none."""

    label: str
    at: float
    plan: Plan | None
    reason: str = ""

    def as_json(self) -> dict[str, Any]:
        """Plain data; figures are null without a plan."""
        plan = self.plan
        return {
            "label": self.label,
            "at": self.at,
            "usd_per_hour": plan.usd_per_hour if plan else None,
            "num_gpus": plan.num_gpus if plan else None,
            "watts": plan.watts if plan else None,
            "attainment": plan.verification.attainment.value if plan and plan.verification else None,
            "pools": pools_text(plan) if plan else None,
            "reason": self.reason or None,
        }


def compare(
    question: Question,
    fleets: Sequence[str],
    slos: Sequence[str],
    *,
    effort: Effort | None = None,
    progress: Callable[[str], None] | None = None,
    parallel: Parallel = 1,
) -> tuple[Point, ...]:
    """Every fleet under every SLO, solved and verified. Raises UsageError with fewer than two questions.

    `parallel` spreads the questions over processes or a Ray cluster (see `simulate.parallel.spread`).
    """
    pairs = [(fleet, slo) for fleet in fleets for slo in slos]
    if len(pairs) < 2:
        raise UsageError(Problem("there is nothing to compare", next_step="give --fleet or --slo more than once"))
    asked = []
    for number, (fleet, slo) in enumerate(pairs):
        parts = ([fleet] if len(fleets) > 1 else []) + ([slo] if len(slos) > 1 else [])
        asked.append((", ".join(parts), float(number), replace(question, fleet=fleet, slo=slo)))
    return _points(asked, effort, progress, parallel)


def frontier(
    question: Question,
    axis: Axis,
    values: Sequence[float],
    *,
    effort: Effort | None = None,
    progress: Callable[[str], None] | None = None,
    parallel: Parallel = 1,
) -> tuple[Point, ...]:
    """The same question at several values of TTFT or TPOT (seconds) or rate (req/s), in ascending order.

    `parallel` spreads the values over processes or a Ray cluster (see `simulate.parallel.spread`).
    """
    asked = []
    for value in sorted(values):
        if axis == "rate":
            asked.append((f"{value:g} req/s", value, replace(question, rate_req_per_s=value)))
        else:
            slo = parse_slo(question.slo)
            target = getattr(slo, axis)
            if target is None:
                raise UsageError(Problem(f"the SLO has no {axis} to vary", key="--slo", expected=f"{axis}=…"))
            slo = replace(slo, **{axis: replace(target, seconds=value)})
            asked.append((f"{axis} {1000 * value:g} ms", value, replace(question, slo=format_slo(slo))))
    return _points(asked, effort, progress, parallel)


def axis_values(low: float, high: float, count: int) -> tuple[float, ...]:
    """`count` values from low to high, evenly spaced by ratio, to four digits."""
    if not 0 < low < high or count < 2:
        raise UsageError(
            Problem(
                f"no range from {low:g} to {high:g} in {count} points", expected="0 < --from < --to and --points ≥ 2"
            )
        )
    ratio = (high / low) ** (1.0 / (count - 1))
    return tuple(float(f"{low * ratio**step:.4g}") for step in range(count))


def _points(
    asked: Sequence[tuple[str, float, Question]],
    effort: Effort | None,
    progress: Callable[[str], None] | None,
    parallel: Parallel,
) -> tuple[Point, ...]:
    """The answers to all questions. Inputs are loaded here: workers need none of the files."""
    effort = effort or default_effort()
    jobs = [_Job(label, at, load_inputs(question), effort) for label, at, question in asked]

    def say(point: Point) -> None:
        if progress:
            progress(f"{point.label}: {f'{point.plan.usd_per_hour:.2f} $/h' if point.plan else 'no plan'}")

    return tuple(spread(_point, jobs, parallel=parallel, done=say))


@dataclass(frozen=True, slots=True)
class _Job:
    label: str
    at: float
    inputs: SolveInputs
    effort: Effort


def _point(job: _Job) -> Point:
    try:
        return Point(job.label, job.at, answer_from(job.inputs, effort=job.effort).plan)
    except NoPlanError as error:
        return Point(job.label, job.at, None, error.problems[0].message)


def pools_text(plan: Plan) -> str:
    """ "2 x prefill h100-sxm TP4, 3 x decode a100-sxm-80 TP4"."""
    parts = []
    for pool in plan.pools:
        shape = f"TP{pool.tensor_parallel}" + (f" PP{pool.pipeline_parallel}" if pool.pipeline_parallel > 1 else "")
        parts.append(f"{len(pool.instances)} x {pool.role} {pool.gpu} {shape}")
    return ", ".join(parts)


def table_lines(points: Sequence[Point]) -> list[str]:
    """One line per point: label, cost, GPUs, attainment, what runs."""
    width = max(len(point.label) for point in points)
    lines = [f"{'':{width}}  {'$/h':>9}  {'GPUs':>5}  {'met':>7}  plan"]
    for point in points:
        if point.plan is None:
            lines.append(f"{point.label:{width}}  {'-':>9}  {'-':>5}  {'-':>7}  {point.reason}")
            continue
        plan, verdict = point.plan, point.plan.verification
        met = f"{100 * verdict.attainment.value:.1f} %" if verdict else "-"
        cells = f"{plan.usd_per_hour:9.2f}  {plan.num_gpus:5}  {met:>7}  {pools_text(plan)}"
        lines.append(f"{point.label:{width}}  {cells}")
    return lines


def plot_lines(points: Sequence[Point], axis_label: str) -> list[str]:
    """Cost (up) against the axis (right) in characters; points without a plan are marked x on the axis."""
    solved = [(point.at, point.plan.usd_per_hour) for point in points if point.plan is not None]
    if not solved:
        return []
    low, high = min(point.at for point in points), max(point.at for point in points)
    top = max(cost for _, cost in solved)
    canvas = [[" "] * (PLOT_WIDTH + 1) for _ in range(PLOT_HEIGHT + 1)]

    def across(value: float) -> int:
        return round((value - low) / (high - low) * PLOT_WIDTH) if high > low else 0

    for at, cost in solved:
        canvas[PLOT_HEIGHT - round(cost / top * PLOT_HEIGHT)][across(at)] = "●"
    for point in points:
        if point.plan is None:
            canvas[PLOT_HEIGHT][across(point.at)] = "x"
    labels = {0: f"{top:.0f}", PLOT_HEIGHT: "0"}
    lines = [f"{labels.get(row, ''):>8} │{''.join(cells).rstrip()}" for row, cells in enumerate(canvas)]
    scale = f"{low:g}{f'{high:g}':>{max(1, PLOT_WIDTH + 1 - len(f'{low:g}'))}}"
    return ["     $/h", *lines, f"{'':8} └{'─' * (PLOT_WIDTH + 1)}", f"{'':10}{scale}  {axis_label}"]
