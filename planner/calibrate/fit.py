"""Fitting the calibration: a handful of parameters per engine generation and GPU family, by least absolute log error.

For points i with measured values y_i and predictions f_i(p):

    minimise  Σ_i w_i · |log f_i(p) − log y_i|    within each parameter's bounds

w_i is 1 for TPOT and throughput and less for TTFT, whose published noise is larger. f is simulated at p and with each
parameter moved; the linearised problem is solved by iteratively reweighted least squares with a step limit, and f is
simulated anew, a few times. Leaving a source out solves on the remaining rows from the same linearisation.
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
RIDGE = 1e-3  # of a parameter's scale: keeps what the data cannot tell at its starting value
LEAST_POINTS = 3


@dataclass(frozen=True, slots=True)
class Knob:
    """One fitted parameter: field of EngineOverhead, the move that derivatives are taken with, and its bounds."""

    field: str
    move: float
    low: float
    high: float


LAUNCH = Knob("launch_s", 4e-6, 0.0, 60e-6)
GAP = Knob("gap_s", 4e-4, 0.0, 12e-3)
RANK_GAP = Knob("rank_gap_s", 2e-4, 0.0, 3e-3)
SEQUENCE_GAP = Knob("sequence_gap_s", 1e-5, 0.0, 3e-4)
COMPUTE = Knob("compute_scale", 0.05, 0.9, 1.15)  # clocks under load; newer kernels than the table's may be faster
OLD_COMPUTE = Knob("compute_scale", 0.05, 0.9, 1.5)  # kernels older than the table's besides
REQUEST = Knob("request_s", 4e-3, 0.0, 0.2)
REQUEST_TOKEN = Knob("request_token_s", 2e-6, 0.0, 5e-5)

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
) -> EngineOverhead | None:
    """The overhead of least weighted absolute log error on the linearised rows, without one source group.

    What the rows cannot tell stays at `prior`. None when too few rows are left.
    """
    rows = linear.groups != without if without is not None else np.ones(len(linear.groups), dtype=bool)
    start = np.array([_value(linear.at, knob.field) / knob.move for knob in knobs])
    low, high = (np.array([bound / knob.move for knob, bound in zip(knobs, side, strict=True)]) for side in (
        [knob.low for knob in knobs],
        [knob.high for knob in knobs],
    ))  # fmt: skip
    if rows.sum() < LEAST_POINTS:
        return None
    anchor = np.array([_value(prior, knob.field) / knob.move for knob in knobs]) - start
    errors, slopes, weights = linear.log_error[rows], linear.slopes[rows], linear.weights[rows]
    step = np.zeros(len(knobs))
    for _ in range(REWEIGHTINGS):
        residual = errors + slopes @ step
        scale = np.sqrt(weights / np.maximum(np.abs(residual), LEAST_RESIDUAL))
        step = _bounded_least_squares(slopes * scale[:, None], -errors * scale, low - start, high - start, anchor)
    values = {knob.field: float((start[i] + step[i]) * knob.move) for i, knob in enumerate(knobs)}
    return replace(linear.at, **values)


def _bounded_least_squares(
    matrix: FloatArray, target: FloatArray, low: FloatArray, high: FloatArray, anchor: FloatArray
) -> FloatArray:
    """min |matrix·x − target|² + ridge·|x − anchor|² within bounds, by cyclic coordinate descent (convex)."""
    gram = matrix.T @ matrix
    ridge = RIDGE * max(1.0, float(np.trace(gram)) / max(1, len(gram)))
    gram[np.diag_indices_from(gram)] += ridge
    right = matrix.T @ target + ridge * anchor
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
        found = solve(linear, knobs, prior) or prior
        if round_index == ROUNDS - 1 or _same(found, overhead, knobs):
            return found, linear
        overhead = found
        linear = linearise(cases, overhead, knobs, predictor)
    return overhead, linear


def _same(one: EngineOverhead, other: EngineOverhead, knobs: Sequence[Knob]) -> bool:
    return all(abs(_value(one, knob.field) - _value(other, knob.field)) < 0.05 * knob.move for knob in knobs)
