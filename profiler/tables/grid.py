"""Interpolation on grids of measured values: the primitives all families share."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from splitplan.profiler.profile import Basis

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.intp]
BasisArray = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Place:
    """Where queries fall on one axis: between knot `low` and the next, `weight` of the way; clamped at the ends."""

    low: IntArray
    weight: FloatArray
    inside: NDArray[np.bool_]


def place(knots: FloatArray, x: FloatArray) -> Place:
    """Finds queries on an ascending axis; both may be in logarithms."""
    if len(knots) == 1:
        return Place(np.zeros(x.shape, dtype=np.intp), np.zeros(x.shape), np.abs(x - knots[0]) < 1e-9)
    clipped = np.clip(x, knots[0], knots[-1])
    low = np.clip(np.searchsorted(knots, clipped, side="right") - 1, 0, len(knots) - 2)
    weight = (clipped - knots[low]) / (knots[low + 1] - knots[low])
    weight = np.where(weight < 1e-9, 0.0, np.where(weight > 1.0 - 1e-9, 1.0, weight))
    return Place(low, weight, np.abs(clipped - x) < 1e-9)


def interpolate(values: FloatArray, places: list[Place]) -> FloatArray:
    """Multilinear interpolation of values[axis0, axis1, …] at the places."""
    total = np.zeros(places[0].low.shape)
    for index, weight in _corners(values.shape, places):
        total += weight * values[index]
    return total


def basis_of(places: list[Place], basis: BasisArray) -> BasisArray:
    """The worst basis of the knots a query reads; at best INTERPOLATED off them, EXTRAPOLATED outside."""
    worst = np.zeros(places[0].low.shape, dtype=np.uint8)
    on_knot = np.ones(worst.shape, dtype=bool)
    inside = np.ones(worst.shape, dtype=bool)
    for index, weight in _corners(basis.shape, places):
        worst = np.where(weight > 0, np.maximum(worst, basis[index]), worst)
        on_knot &= (weight == 0.0) | (weight == 1.0)
    for at in places:
        inside &= at.inside
    floor = np.where(inside, np.where(on_knot, Basis.MEASURED, Basis.INTERPOLATED), Basis.EXTRAPOLATED)
    return np.maximum(worst, floor).astype(np.uint8)


def _corners(shape: tuple[int, ...], places: list[Place]) -> list[tuple[tuple[IntArray, ...], FloatArray]]:
    corners = []
    for sides in product((0, 1), repeat=len(places)):
        weight = np.ones(places[0].low.shape)
        index = []
        for axis, (side, at) in enumerate(zip(sides, places, strict=True)):
            weight = weight * (at.weight if side else 1.0 - at.weight)
            index.append(np.minimum(at.low + side, shape[axis] - 1))
        corners.append((tuple(index), weight))
    return corners


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


def distinct(key: NDArray[Any]) -> tuple[NDArray[Any], IntArray]:
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


def fill_last_axis(grid: FloatArray, axis: FloatArray) -> tuple[FloatArray, BasisArray]:
    """Corrections with their gaps filled, and each cell's basis.

    Along the last axis: interpolation between neighbours, the nearest value beyond them; a line without any value takes
    the nearest line's, along the last but one axis.
    """
    filled = grid.copy()
    basis = np.where(np.isnan(grid), Basis.EXTRAPOLATED, Basis.MEASURED).astype(np.uint8)
    lines, line_basis = filled.reshape(-1, grid.shape[-1]), basis.reshape(-1, grid.shape[-1])
    for row in np.flatnonzero(np.isnan(lines).any(axis=1)):
        known = ~np.isnan(lines[row])
        if known.any():
            lines[row, ~known] = np.interp(axis[~known], axis[known], lines[row, known])
            between = (axis > axis[known][0]) & (axis < axis[known][-1]) & ~known
            line_basis[row, between] = Basis.INTERPOLATED
    planes = filled.reshape(-1, *grid.shape[-2:]) if grid.ndim > 1 else filled.reshape(1, 1, -1)
    for plane in planes:
        _copy_to_empty_lines(plane)
    return filled, basis


def _copy_to_empty_lines(plane: FloatArray) -> None:
    empty = np.isnan(plane[:, 0])
    have = np.flatnonzero(~empty)
    if len(have):
        for row in np.flatnonzero(empty):
            plane[row] = plane[have[np.argmin(np.abs(have - row))]]


def monotone_slopes(x: FloatArray, y: FloatArray) -> FloatArray:
    """Slopes at the knots of a monotone cubic through (x, y[..., knots]) (Fritsch and Butland 1984).

    Weighted harmonic means of the neighbouring differences, zero where those change sign: no overshoot between knots.
    """
    if len(x) < 3:
        return np.zeros_like(y) if len(x) < 2 else np.repeat(np.diff(y) / np.diff(x), 2, axis=-1)
    h = np.diff(x)
    d = np.diff(y) / h
    before, after = d[..., :-1], d[..., 1:]
    w1, w2 = 2.0 * h[1:] + h[:-1], h[1:] + 2.0 * h[:-1]
    same_sign = before * after > 0
    safe_before, safe_after = np.where(same_sign, before, 1.0), np.where(same_sign, after, 1.0)
    inner = np.where(same_sign, (w1 + w2) / (w1 / safe_before + w2 / safe_after), 0.0)
    return np.concatenate([d[..., :1], inner, d[..., -1:]], axis=-1)


def cubic(at: Place, x: FloatArray, y: FloatArray, slopes: FloatArray, row: IntArray) -> FloatArray:
    """The monotone cubic of line `row` of y[rows, knots] at the places on x."""
    high = np.minimum(at.low + 1, len(x) - 1)
    h = x[high] - x[at.low]
    w = at.weight
    y0, y1 = y[row, at.low], y[row, high]
    s0, s1 = slopes[row, at.low] * h, slopes[row, high] * h
    bend = w * (1.0 - w)
    return np.asarray(y0 + w * (y1 - y0) + bend * ((s0 - (y1 - y0)) * (1.0 - w) + ((y1 - y0) - s1) * w))
