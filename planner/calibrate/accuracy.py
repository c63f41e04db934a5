"""Predicting and scoring a whole file of measured points, with the shipped calibration or held-out ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from splitplan.planner.calibrate.generations import engine_name
from splitplan.planner.calibrate.points import Point
from splitplan.planner.calibrate.predict import Prediction, predict, prepare_for_many
from splitplan.planner.calibrate.resolve import Setup, UnpredictableError, find_measured_gpu, resolve
from splitplan.planner.calibrate.score import Row, Value, measured_values, predicted_value
from splitplan.planner.latency.calibration import find_overhead
from splitplan.planner.latency.overhead import EngineOverhead

WORTH_COMPILING = 50
"""Points from which loading the compiled simulator pays."""

UNCALIBRATED_SPREADS = {"tpot_spread": 1.6, "ttft_spread": 2.5, "throughput_spread": 1.6}
"""Least intervals where nothing was fitted: a generation without measured rows, an engine taken as another."""

OverheadOf = Callable[[Point, Setup], EngineOverhead]


def shipped_overhead(point: Point, setup: Setup) -> EngineOverhead:
    """The shipped calibration of the point's engine generation and GPU."""
    found = find_overhead(setup.generation.engine, setup.generation.version, setup.gpu.architecture)
    if engine_name(point.engine):
        return found
    return replace(found, **{name: max(getattr(found, name), least) for name, least in UNCALIBRATED_SPREADS.items()})


def score_points(
    points: Iterable[Point], overhead_of: OverheadOf = shipped_overhead, progress: Callable[[int], None] | None = None
) -> list[Row]:
    """Predict and score every point."""
    points = list(points)
    if len(points) >= WORTH_COMPILING:
        prepare_for_many()
    rows = []
    for index, point in enumerate(points):
        rows.append(score_point(point, overhead_of))
        if progress is not None:
            progress(index + 1)
    return rows


def score_point(point: Point, overhead_of: OverheadOf = shipped_overhead) -> Row:
    """One point: what was measured, what is predicted, and the interval; or the reason for no prediction."""
    try:
        setup = resolve(point)
    except UnpredictableError as error:
        values = interval_values(point, None, EngineOverhead())
        return Row(point, _gpu_label(point), point.engine, True, values, str(error))
    overhead = overhead_of(point, setup)
    dense, generation = setup.model.moe is None, setup.generation.key
    try:
        prediction = predict(point, setup, overhead)
    except UnpredictableError as error:
        return Row(point, setup.gpu.name, generation, dense, interval_values(point, None, overhead), str(error))
    values = interval_values(point, prediction, overhead)
    return Row(
        point,
        setup.gpu.name,
        generation,
        dense,
        values,
        notes=prediction.notes,
        basis_shares=prediction.basis_shares,
    )


def _gpu_label(point: Point) -> str:
    """The catalog name of the point's GPU where there is one, so that rows that fail are counted where they belong."""
    try:
        return find_measured_gpu(point.gpu).name
    except UnpredictableError:
        return point.gpu.lower()


def interval_values(point: Point, prediction: Prediction | None, overhead: EngineOverhead) -> Mapping[str, Value]:
    """What the point measured beside what is predicted, with its interval."""
    spreads = {"ttft": overhead.ttft_spread, "tpot": overhead.tpot_spread, "throughput": overhead.throughput_spread}
    found = {}
    for kind, (statistic, measured) in measured_values(point).items():
        value = math.nan if prediction is None else predicted_value(prediction, kind, statistic)
        spread = spreads[kind]
        found[kind] = Value(statistic, measured, value, value / spread, value * spread)
    return found


def spread_of(rows: Sequence[Row], kind: str, share: float = 0.9) -> float | None:
    """The factor up and down that holds `share` of the rows' measured figures; None below five rows."""
    logs = sorted(
        abs(math.log(row.values[kind].measured / row.values[kind].predicted))
        for row in rows
        if kind in row.values and row.predicted and row.values[kind].predicted > 0
    )
    if len(logs) < 5:
        return None
    return math.exp(logs[min(len(logs) - 1, math.ceil(share * len(logs)) - 1)])
