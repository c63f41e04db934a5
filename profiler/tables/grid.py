"""Interpolation in log–log space on grids of measured corrections: the primitives all families share."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from splitplan.profiler.profile import Basis

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Place:
    """Where queries fall on one axis: between knot `low` and the next, `weight` of the way; clamped at the ends."""

    low: IntArray
    weight: FloatArray
    on_knot: NDArray[np.bool_]
    inside: NDArray[np.bool_]


def place(log_knots: FloatArray, log_x: FloatArray) -> Place:
    """Finds queries on an axis given in logarithms."""
    if len(log_knots) == 1:
        on_knot = np.abs(log_x - log_knots[0]) < 1e-9
        return Place(np.zeros(log_x.shape, dtype=np.intp), np.zeros(log_x.shape), on_knot, on_knot)
    clipped = np.clip(log_x, log_knots[0], log_knots[-1])
    low = np.clip(np.searchsorted(log_knots, clipped, side="right") - 1, 0, len(log_knots) - 2)
    weight = (clipped - log_knots[low]) / (log_knots[low + 1] - log_knots[low])
    weight = np.where(weight < 1e-9, 0.0, np.where(weight > 1.0 - 1e-9, 1.0, weight))
    inside = np.abs(clipped - log_x) < 1e-9
    return Place(low, weight, ((weight == 0.0) | (weight == 1.0)) & inside, inside)


def interpolate(values: FloatArray, places: list[Place]) -> FloatArray:
    """Multilinear interpolation of values[axis0, axis1, …] at the places."""
    total = np.zeros(places[0].low.shape)
    for corner in product((0, 1), repeat=len(places)):
        weight = np.ones_like(total)
        index: list[Any] = []
        for side, at in zip(corner, places, strict=True):
            weight = weight * (at.weight if side else 1.0 - at.weight)
            index.append(at.low + side if side and values.shape[len(index)] > 1 else at.low)
        total += weight * values[tuple(index)]
    return total


def basis_of(places: list[Place], measured: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """MEASURED on a measured knot of every axis, INTERPOLATED inside all of them, EXTRAPOLATED else."""
    shape = places[0].low.shape
    inside = np.ones(shape, dtype=bool)
    on_knot = np.ones(shape, dtype=bool)
    index = []
    for at in places:
        inside &= at.inside
        on_knot &= at.on_knot
        index.append(at.low + (at.weight == 1.0))
    exact = on_knot & measured[tuple(index)]
    return np.where(exact, Basis.MEASURED, np.where(inside, Basis.INTERPOLATED, Basis.EXTRAPOLATED)).astype(np.uint8)


def pivot(keys: list[NDArray[Any]], values: FloatArray) -> tuple[list[FloatArray], FloatArray]:
    """Rows to a dense grid: ascending axes and values[axis0, axis1, …], NaN where there is no row."""
    axes, codes = [], []
    for key in keys:
        axis, code = distinct(key)
        axes.append(axis.astype(np.float64))
        codes.append(code)
    grid = np.full([len(axis) for axis in axes], np.nan)
    grid[tuple(codes)] = values
    return axes, grid


def distinct(key: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.intp]]:
    """`numpy.unique` with its inverse, by counting instead of sorting where the values are small whole numbers."""
    if key.dtype.kind in "iu" and len(key) and int(key.max()) < 2**22 and int(key.min()) >= 0:
        present = np.zeros(int(key.max()) + 1, dtype=bool)
        present[key] = True
        axis = np.flatnonzero(present)
        code = np.zeros(len(present), dtype=np.intp)
        code[axis] = np.arange(len(axis))
        return axis, code[key]
    axis, code = np.unique(key, return_inverse=True)
    return axis, code


def fill_last_axis(grid: FloatArray, log_axis: FloatArray) -> FloatArray:
    """Gaps are filled along the last axis, by interpolation between neighbours and the nearest value beyond them.

    Lines without any value take those of the nearest line that has some, along the last but one axis.
    """
    filled = grid.copy()
    lines = filled.reshape(-1, grid.shape[-1])
    for row in np.flatnonzero(np.isnan(lines).any(axis=1)):
        known = ~np.isnan(lines[row])
        if known.any():
            lines[row, ~known] = np.interp(log_axis[~known], log_axis[known], lines[row, known])
    return _copy_to_empty_lines(filled)


def _copy_to_empty_lines(filled: FloatArray) -> FloatArray:
    shape = filled.shape
    planes = filled.reshape(-1, shape[-2], shape[-1]) if filled.ndim > 1 else filled.reshape(1, 1, -1)
    for plane in planes:
        empty = np.isnan(plane[:, 0])
        if empty.any() and not empty.all():
            have = np.flatnonzero(~empty)
            for row in np.flatnonzero(empty):
                plane[row] = plane[have[np.argmin(np.abs(have - row))]]
    return planes.reshape(shape)
