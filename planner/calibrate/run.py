"""Calibrating on measured points: fit each engine generation on each GPU family, and again without each source.

entries(points)   the calibration fitted on all of them, with spreads: what `planner calibrate` writes
held_out(points)  for each source group the calibration fitted without it: what cross-validation scores with
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from splitplan.planner.calibrate.fit import (
    COMPUTE,
    GAP,
    LAUNCH,
    RANK_GAP,
    REQUEST,
    REQUEST_TOKEN,
    SEQUENCE_GAP,
    Case,
    Knob,
    Linear,
    fit,
    solve,
)
from splitplan.planner.calibrate.generations import Generation
from splitplan.planner.calibrate.points import Point
from splitplan.planner.calibrate.resolve import UnpredictableError, resolve
from splitplan.planner.latency.calibration import PARAMETERS, Entry, FittedOn
from splitplan.planner.latency.overhead import EngineOverhead

MOST_FIT_CASES = 120
"""Cases a fit simulates per generation and family; more are thinned evenly, source by source."""

SERVED = (GAP, RANK_GAP, SEQUENCE_GAP, COMPUTE, REQUEST, REQUEST_TOKEN)
DRIVEN = (GAP, RANK_GAP, SEQUENCE_GAP, COMPUTE)  # no server in the path
EAGER = (LAUNCH, GAP, SEQUENCE_GAP, COMPUTE)

SERVED_PRIOR = EngineOverhead(gap_s=1e-3, rank_gap_s=2e-4, sequence_gap_s=2e-5, request_s=8e-3, request_token_s=2e-6)

KNOBS: Mapping[str, tuple[tuple[Knob, ...], EngineOverhead]] = {
    "vllm-early": (EAGER, EngineOverhead(launch_s=25e-6, gap_s=2e-3, sequence_gap_s=5e-5)),
    "vllm-v0": (DRIVEN, replace(SERVED_PRIOR, gap_s=1.5e-3, rank_gap_s=5e-4, sequence_gap_s=5e-5)),
    "trtllm-static": (DRIVEN, EngineOverhead(gap_s=5e-4, rank_gap_s=2e-4)),
    "lmdeploy": (DRIVEN, EngineOverhead(gap_s=5e-4, rank_gap_s=2e-4, sequence_gap_s=1e-5)),
    "trtllm": (SERVED, replace(SERVED_PRIOR, gap_s=5e-4, sequence_gap_s=0.0)),
    "sglang": (SERVED, replace(SERVED_PRIOR, gap_s=5e-4, sequence_gap_s=0.0)),
}
"""Knobs of a generation and their priors: values assumed from how the engine works, used where no data speaks.

25 us a launch is what Python-driven eager kernels take; served engines of today schedule in about a millisecond.
"""


@dataclass(frozen=True, slots=True)
class Fitted:
    """One generation on one family: fitted on all rows, and without each source group."""

    generation: Generation
    gpu_family: str
    overhead: EngineOverhead
    without: Mapping[str, EngineOverhead]
    points: int
    sources: tuple[str, ...]


def usable_cases(points: Iterable[Point]) -> tuple[list[Case], dict[str, str]]:
    """Points that resolve, and the reason for each that does not, by id."""
    cases: list[Case] = []
    reasons: dict[str, str] = {}
    for point in points:
        try:
            cases.append((point, resolve(point)))
        except UnpredictableError as error:
            reasons[point.id] = str(error)
    return cases, reasons


def fit_all(
    cases: Sequence[Case],
    progress: Callable[[str], None] = lambda _: None,
    chosen: Callable[[Case], bool] | None = None,
) -> list[Fitted]:
    """Fit every (generation, family) among the cases; dense models only unless `chosen` says otherwise."""
    chosen = chosen or (lambda case: case[1].model.moe is None)
    groups: dict[tuple[str, str], list[Case]] = {}
    for case in filter(chosen, cases):
        groups.setdefault((case[1].generation.key, case[1].gpu.architecture), []).append(case)
    fitted = []
    for (key, family), members in groups.items():
        progress(f"{key} on {family}: {len(members)} points")
        fitted.append(_fit_one(key, family, members))
    return fitted


def knobs_of(key: str) -> tuple[tuple[Knob, ...], EngineOverhead]:
    """The knobs of a generation and their prior."""
    return KNOBS.get(key, (SERVED, SERVED_PRIOR))


def _fit_one(key: str, family: str, members: Sequence[Case]) -> Fitted:
    knobs, prior = knobs_of(key)
    overhead, linear = fit(thinned(members), prior, knobs)
    sources = tuple(dict.fromkeys(point.source_group for point, _ in members))
    without = {source: _left_out(linear, knobs, prior, source) for source in sources}
    return Fitted(members[0][1].generation, family, overhead, without, len(members), sources)


def _left_out(linear: Linear, knobs: Sequence[Knob], prior: EngineOverhead, source: str) -> EngineOverhead:
    return solve(linear, knobs, prior, without=source) or prior


def thinned(members: Sequence[Case]) -> list[Case]:
    """At most MOST_FIT_CASES, evenly spaced within each source so that small sources keep their weight."""
    if len(members) <= MOST_FIT_CASES:
        return list(members)
    by_source: dict[str, list[Case]] = {}
    for case in members:
        by_source.setdefault(case[0].source_group, []).append(case)
    kept: list[Case] = []
    for rows in by_source.values():
        count = max(min(len(rows), 8), round(MOST_FIT_CASES * len(rows) / len(members)))
        kept += [rows[i] for i in np.unique(np.linspace(0, len(rows) - 1, count).round().astype(int))]
    return kept


def as_entry(fitted: Fitted, overhead: EngineOverhead, command: str) -> Entry:
    """The calibration entry of a fit, in the units of the file."""
    values = {
        parameter.name: float(f"{getattr(overhead, parameter.field) / parameter.per_unit:.4g}")
        for parameter in PARAMETERS
    }
    return Entry(
        engine=fitted.generation.engine,
        from_version=fitted.generation.from_version,
        gpu_family=fitted.gpu_family,
        parameters=values,
        fitted_on=FittedOn(points=fitted.points, sources=fitted.sources, command=command),
    )
