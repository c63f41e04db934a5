"""Fitting the calibration: a handful of parameters per engine generation and GPU family, by least absolute log error.

For points i with measured values y_i and predictions f_i(p):

    minimise  Σ_i w_i · |log f_i(p) − log y_i|  +  β/2 · Σ_k ((p_k − prior_k) / σ_k)²    within each p_k's bounds

w_i is 1 for TPOT and throughput and less for TTFT, whose published noise is larger, and is scaled down so that no
source counts for more than SOURCE_ROWS rows: rows of one source share its errors. The prior is what is known of each
parameter beforehand, σ_k how well; absolute errors let it stand against one odd source, and many sources overrule it.
f is simulated at p and with each parameter moved; the linearised problem is solved by iteratively reweighted least
squares, and f is simulated anew, a few times. Leaving a source out solves on the remaining rows from the same
linearisation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from splitplan.planner.calibrate.points import Point
from splitplan.planner.calibrate.predict import Prediction, predict
from splitplan.planner.calibrate.resolve import Setup, UnpredictableError
from splitplan.planner.calibrate.score import measured_values, predicted_value
from splitplan.planner.latency.overhead import EngineOverhead

FloatArray = NDArray[np.float64]

WEIGHTS = {"tpot": 1.0, "throughput": 1.0, "ttft": 0.3}
ROUNDS = 3
REWEIGHTINGS = 30
LEAST_RESIDUAL = 0.02  # below this an error counts as squared, so that the weights stay finite
SOURCE_ROWS = 24.0
PRIOR_STRENGTH = 1.0  # β: what one σ weighs against summed log errors


@dataclass(frozen=True, slots=True)
class Knob:
    """One fitted parameter: field of EngineOverhead, the move that derivatives are taken with, and its bounds."""

    field: str
    move: float
    low: float
    high: float
    sigma: float  # how well the prior is known


LAUNCH = Knob("launch_s", 4e-6, 0.0, 60e-6, 10e-6)
GAP = Knob("gap_s", 4e-4, 0.0, 12e-3, 1e-3)
RANK_GAP = Knob("rank_gap_s", 2e-4, 0.0, 3e-3, 3e-4)
SEQUENCE_GAP = Knob("sequence_gap_s", 1e-5, 0.0, 3e-4, 3e-5)
COMPUTE = Knob("compute_scale", 0.05, 0.9, 1.5, 0.1)  # clocks under load; newer kernels than the table's are faster
STREAM = Knob("stream_scale", 0.05, 0.9, 1.5, 0.1)  # older bandwidth-bound kernels than the table's
SAMPLED = Knob("sequence_gap_s", 2e-5, 0.0, 5e-4, 1e-4)  # sampling sequence by sequence, a few launches each
REQUEST = Knob("request_s", 4e-3, 0.0, 0.2, 4e-3)
REQUEST_TOKEN = Knob("request_token_s", 2e-6, 0.0, 5e-5, 2e-6)

Case = tuple[Point, Setup]
Predictor = Callable[[Point, Setup, EngineOverhead], Prediction]


@dataclass(frozen=True, slots=True)
class Linear:
    """Log predictions of every measured value around one overhead, and their derivatives."""

    at: EngineOverhead
    fields: tuple[str, ...]
    log_error: FloatArray  # [values] log(predicted / measured)
    slopes: FloatArray  # [values, fields] per move
    weights: FloatArray  # [values]
    groups: NDArray[np.str_]  # [values] source group


def linearise(
    cases: Sequence[Case], at: EngineOverhead, knobs: Sequence[Knob], predictor: Predictor = predict
) -> Linear:
    """Simulate every case at `at` and with each knob moved once. Cases that cannot be predicted are left out."""
    columns = [_log_errors(cases, at, predictor)]
    for knob in knobs:
        moved = replace(at, **{knob.field: _value(at, knob.field) + knob.move})
        columns.append(_log_errors(cases, moved, predictor))
    keys = [key for key in columns[0] if all(key in column and np.isfinite(column[key]) for column in columns)]
    table = np.array([[column[key] for column in columns] for key in keys]).reshape(len(keys), len(columns))
    groups = np.array([cases[index][0].source_group for index, _ in keys], dtype=np.str_)
    weights = np.array([WEIGHTS[kind] for _, kind in keys])
    names = tuple(knob.field for knob in knobs)
    return Linear(at, names, table[:, 0], table[:, 1:] - table[:, :1], weights, groups)


def _log_errors(cases: Sequence[Case], overhead: EngineOverhead, predictor: Predictor) -> dict[tuple[int, str], float]:
    errors: dict[tuple[int, str], float] = {}
    for index, (point, setup) in enumerate(cases):
        try:
            predicted = predictor(point, setup, overhead)
        except UnpredictableError:
            continue
        for kind, (statistic, measured) in measured_values(point).items():
            value = predicted_value(predicted, kind, statistic)
            if value > 0 and measured > 0:
                errors[index, kind] = float(np.log(value / measured))
    return errors


def _value(overhead: EngineOverhead, field: str) -> float:
    return float(getattr(overhead, field))


def solve(
    linear: Linear, knobs: Sequence[Knob], prior: EngineOverhead, *, without: str | None = None
) -> EngineOverhead:
    """The overhead of least cost (see the module) on the linearised rows, without one source group."""
    rows = linear.groups != without if without is not None else np.ones(len(linear.groups), dtype=bool)
    start = np.array([_value(linear.at, knob.field) / knob.move for knob in knobs])
    low, high = (np.array([bound / knob.move for knob, bound in zip(knobs, side, strict=True)]) for side in (
        [knob.low for knob in knobs],
        [knob.high for knob in knobs],
    ))  # fmt: skip
    anchor = np.array([_value(prior, knob.field) / knob.move for knob in knobs]) - start
    curvature = np.array([PRIOR_STRENGTH * (knob.move / knob.sigma) ** 2 for knob in knobs])
    errors, slopes = linear.log_error[rows], linear.slopes[rows]
    weights = linear.weights[rows] * _source_shares(linear.groups[rows])
    step = np.zeros(len(knobs))
    for _ in range(REWEIGHTINGS):
        residual = errors + slopes @ step
        scale = np.sqrt(weights / np.maximum(np.abs(residual), LEAST_RESIDUAL))
        gram = (slopes * scale[:, None]).T @ (slopes * scale[:, None])
        gram[np.diag_indices_from(gram)] += curvature
        right = -(slopes * scale[:, None]).T @ (errors * scale) + curvature * anchor
        step = _bounded_minimum(gram, right, low - start, high - start)
    values = {knob.field: float((start[i] + step[i]) * knob.move) for i, knob in enumerate(knobs)}
    return replace(linear.at, **values)


def _source_shares(groups: NDArray[np.str_]) -> FloatArray:
    """Weight of each row such that a source of many rows counts as SOURCE_ROWS."""
    _, index, counts = np.unique(groups, return_inverse=True, return_counts=True)
    shares: FloatArray = np.minimum(1.0, SOURCE_ROWS / counts[index]) if len(groups) else np.zeros(0)
    return shares


def _bounded_minimum(gram: FloatArray, right: FloatArray, low: FloatArray, high: FloatArray) -> FloatArray:
    """min xᵀ·gram·x/2 − right·x within bounds, by cyclic coordinate descent (a few unknowns, convex)."""
    x = np.clip(np.zeros(len(right)), low, high)
    for _ in range(500):
        before = x.copy()
        for i in range(len(x)):
            x[i] = np.clip((right[i] - gram[i] @ x + gram[i, i] * x[i]) / gram[i, i], low[i], high[i])
        if float(np.max(np.abs(x - before))) < 1e-9:
            break
    return x


def fit(
    cases: Sequence[Case], prior: EngineOverhead, knobs: Sequence[Knob], predictor: Predictor = predict
) -> tuple[EngineOverhead, Linear]:
    """Fit on all cases; returns the result and the last linearisation, from which sources can be left out."""
    overhead = prior
    linear = linearise(cases, overhead, knobs, predictor)
    for round_index in range(ROUNDS):
        found = solve(linear, knobs, prior)
        if round_index == ROUNDS - 1 or _same(found, overhead, knobs):
            return found, linear
        overhead = found
        linear = linearise(cases, overhead, knobs, predictor)
    return overhead, linear


def _same(one: EngineOverhead, other: EngineOverhead, knobs: Sequence[Knob]) -> bool:
    return all(abs(_value(one, knob.field) - _value(other, knob.field)) < 0.05 * knob.move for knob in knobs)
