"""Calibrating on measured points: fit each engine generation on each GPU family, and again without each source.

entries(points)   the calibration fitted on all of them, with spreads: what `planner calibrate` writes
held_out(points)  for each source group the calibration fitted without it: what cross-validation scores with
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import yaml

from splitplan.catalogs.errors import InputError, Problem, SplitplanError
from splitplan.catalogs.gpus import find_gpu
from splitplan.planner.calibrate.accuracy import (
    UNCALIBRATED_SPREADS,
    WORTH_COMPILING,
    OverheadOf,
    score_points,
    shipped_overhead,
    spread_of,
)
from splitplan.planner.calibrate.fit import (
    COMPUTE,
    GAP,
    LAUNCH,
    RANK_GAP,
    REQUEST,
    REQUEST_TOKEN,
    SAMPLED,
    SEQUENCE_GAP,
    STREAM,
    Case,
    Knob,
    Linear,
    fit,
    solve,
)
from splitplan.planner.calibrate.generations import Generation
from splitplan.planner.calibrate.points import Point
from splitplan.planner.calibrate.predict import prepare_for_many
from splitplan.planner.calibrate.resolve import Setup, UnpredictableError, resolve
from splitplan.planner.calibrate.score import KINDS, Row
from splitplan.planner.latency.calibration import PARAMETERS, Entry, FittedOn
from splitplan.planner.latency.overhead import EngineOverhead

MOST_FIT_CASES = 120
"""Cases a fit simulates per generation and family; more are thinned evenly, source by source."""

FEWEST_SPREAD_ROWS = 20
LARGEST_SPREAD = 10.0
"""An interval wider than ten times up and down says nothing; calibration files do not hold it."""

Progress = Callable[[str], None]

SERVED = (GAP, RANK_GAP, SEQUENCE_GAP, COMPUTE, REQUEST, REQUEST_TOKEN)
DRIVEN = (GAP, RANK_GAP, SEQUENCE_GAP, COMPUTE)  # no server in the path
EAGER = (LAUNCH, GAP, RANK_GAP, SAMPLED, COMPUTE, STREAM)

SERVED_PRIOR = EngineOverhead(gap_s=1e-3, rank_gap_s=2e-4, sequence_gap_s=2e-5, request_s=8e-3, request_token_s=2e-6)

KNOBS: Mapping[str, tuple[tuple[Knob, ...], EngineOverhead]] = {
    "vllm-early": (
        EAGER,
        EngineOverhead(
            launch_s=30e-6, gap_s=2e-3, rank_gap_s=5e-4, sequence_gap_s=1.5e-4, compute_scale=1.2, stream_scale=1.2
        ),
    ),
    "vllm-v0": (DRIVEN, replace(SERVED_PRIOR, gap_s=1.5e-3, rank_gap_s=5e-4, sequence_gap_s=5e-5)),
    "vllm-v1-async": (SERVED, replace(SERVED_PRIOR, gap_s=4e-4, rank_gap_s=1e-4, sequence_gap_s=5e-6)),
    "trtllm-static": (DRIVEN, EngineOverhead(gap_s=5e-4, rank_gap_s=2e-4)),
    "lmdeploy": (DRIVEN, EngineOverhead(gap_s=5e-4, rank_gap_s=2e-4, sequence_gap_s=1e-5)),
    "trtllm": (SERVED, replace(SERVED_PRIOR, gap_s=5e-4, sequence_gap_s=0.0)),
    "sglang": (SERVED, replace(SERVED_PRIOR, gap_s=5e-4, sequence_gap_s=0.0)),
}
"""Knobs of a generation and their priors: values assumed from how the engine works, used where no data speaks.

Engines that schedule the next step ahead leave some 0.4 ms, others of today about a millisecond; 30 us a launch is what
Python-driven eager kernels take, and sampling without batching some five of them a sequence; kernels of 2023 reached
some 80 % of today's on the same GPU.
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
    progress: Progress = lambda _: None,
    chosen: Callable[[Case], bool] | None = None,
) -> list[Fitted]:
    """Fit every (generation, family) among the cases; dense models only unless `chosen` says otherwise."""
    chosen = chosen or (lambda case: case[1].model.moe is None)
    if len(cases) >= WORTH_COMPILING:
        prepare_for_many()
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
    return solve(linear, knobs, prior, without=source)


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


def held_out_overhead(fitted: Sequence[Fitted]) -> OverheadOf:
    """For each point the overhead fitted without its source; the shipped one where its generation was not fitted."""
    index = {(one.generation.key, one.gpu_family): one for one in fitted}

    def overhead_of(point: Point, setup: Setup) -> EngineOverhead:
        one = index.get((setup.generation.key, setup.gpu.architecture))
        if one is None:
            return shipped_overhead(point, setup)
        return one.without.get(point.source_group, one.overhead)

    return overhead_of


def with_spreads(fitted: Sequence[Fitted], rows: Sequence[Row]) -> list[Fitted]:
    """The fits with intervals that hold 90 % of their held-out dense rows; pooled over all fits where rows are few.

    A fold's interval leaves its own source out, as its parameters do.
    """
    dense = [row for row in rows if row.dense]
    members: dict[tuple[str, str], list[Row]] = {}
    for row in dense:
        members.setdefault((row.generation, family_of(row)), []).append(row)
    spread = []
    for one in fitted:
        own = members.get((one.generation.key, one.gpu_family), [])
        without = {
            source: replace(overhead, **_spreads(*(_other_sources(some, source) for some in (own, dense))))
            for source, overhead in one.without.items()
        }
        spread.append(replace(one, overhead=replace(one.overhead, **_spreads(own, dense)), without=without))
    return spread


def family_of(row: Row) -> str:
    """GPU architecture of a row; "" for a GPU in no catalog."""
    try:
        return find_gpu(row.gpu).architecture
    except SplitplanError:
        return ""


def _other_sources(rows: Sequence[Row], source: str) -> list[Row]:
    return [row for row in rows if row.point.source_group != source]


def _spreads(own: Sequence[Row], pooled: Sequence[Row]) -> dict[str, float]:
    found = {}
    for kind in KINDS:
        measured = [row for row in own if kind in row.values and row.predicted]
        spread = spread_of(measured if len(measured) >= FEWEST_SPREAD_ROWS else pooled, kind)
        if spread is not None:
            least = 1.0 if measured else UNCALIBRATED_SPREADS[f"{kind}_spread"]
            found[f"{kind}_spread"] = min(max(spread, least), LARGEST_SPREAD)
    return found


def as_entry(fitted: Fitted, command: str) -> Entry:
    """The calibration entry of a fit, in the units of the file."""
    values = {
        parameter.name: float(f"{getattr(fitted.overhead, parameter.field) / parameter.per_unit:.4g}")
        for parameter in PARAMETERS
    }
    return Entry(
        engine=fitted.generation.engine,
        from_version=fitted.generation.from_version,
        gpu_family=fitted.gpu_family,
        parameters=values,
        fitted_on=FittedOn(points=fitted.points, sources=fitted.sources, command=command),
    )


def calibrate(points: Sequence[Point], command: str, progress: Progress = lambda _: None) -> list[Entry]:
    """Fit every engine generation and GPU family among the points, with intervals from held-out predictions."""
    cases, reasons = usable_cases(points)
    if not cases:
        worst = next(iter(reasons.values()), "no points")
        raise InputError(Problem("no point can be predicted, so there is nothing to fit", expected=worst))
    fitted = fit_all(cases, progress)
    progress("held-out predictions, for the intervals")
    rows = score_points([point for point, setup in cases if setup.model.moe is None], held_out_overhead(fitted))
    return [as_entry(one, command) for one in with_spreads(fitted, rows)]


def entries_text(entries: Sequence[Entry]) -> str:
    """A calibration file: YAML, with the meaning of each parameter at its head."""
    lines = ["# Written by `planner calibrate`. What each parameter means:"]
    lines += [f"#   {one.name:18} {one.unit or 'factor':6} {one.meaning}" for one in PARAMETERS]
    document = {"kind": "Calibration", "version": 1, "entries": [entry.model_dump(mode="json") for entry in entries]}
    return "\n".join(lines) + "\n" + yaml.safe_dump(document, sort_keys=False, width=118)


def write_entries(entries: Sequence[Entry], path: Path) -> None:
    """Write a calibration file; it appears whole or not at all."""
    temporary = path.with_name(path.name + ".part")
    try:
        temporary.write_text(entries_text(entries), encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise InputError(Problem(f"cannot write the calibration: {error.strerror}", str(path))) from None
