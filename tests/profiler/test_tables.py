"""The primitives under the look-ups, against brute force and theory."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from splitplan.profiler.profile import Basis
from splitplan.profiler.tables.attention import Variant, equivalent_length, nearest_heads, nearest_variant
from splitplan.profiler.tables.grid import (
    basis_of,
    cubic,
    distinct,
    fill_last_axis,
    interpolate,
    monotone_slopes,
    pivot,
    place,
)
from splitplan.profiler.tables.holes import Sample, fill_holes
from splitplan.profiler.tables.lengths import find_key_block, make_grid
from splitplan.profiler.tables.roofline import attended_pairs


@settings(max_examples=100, deadline=None, derandomize=True)
@given(new=st.integers(1, 40), past=st.integers(0, 40), window=st.integers(0, 30))
def test_attended_pairs_are_those_of_a_mask(new: int, past: int, window: int) -> None:
    """Query i of the new tokens sees keys up to past + i, and of those the last `window`."""
    query = past + np.arange(new)[:, None]
    key = np.arange(past + new)[None, :]
    mask = (key <= query) & ((key > query - window) if window else True)
    assert float(attended_pairs(new, past, window)) == mask.sum()


@settings(max_examples=60, deadline=None, derandomize=True)
@given(new=st.integers(1, 5000), past=st.integers(0, 5000), window=st.sampled_from([0, 128, 1024]))
def test_the_equivalent_prompt_has_as_many_pairs(new: int, past: int, window: int) -> None:
    sizes = np.array([float(new)]), np.array([float(past)])
    length = equivalent_length(*sizes, window)
    assert attended_pairs(length, 0.0, window) == pytest.approx(attended_pairs(*sizes, window), rel=1e-9)
    assert equivalent_length(sizes[0], np.zeros(1), window)[0] == pytest.approx(new)


def test_multilinear_interpolation_is_exact_for_a_multilinear_function() -> None:
    x, y = np.array([0.0, 1.0, 3.0]), np.array([2.0, 5.0])
    values = 1.0 + 2.0 * x[:, None] + 3.0 * y[None, :] + 0.5 * x[:, None] * y[None, :]
    px, py = np.array([0.5, 2.5, 3.0]), np.array([2.0, 4.0, 5.0])
    places = [place(x, px), place(y, py)]
    np.testing.assert_allclose(interpolate(values, places), 1.0 + 2.0 * px + 3.0 * py + 0.5 * px * py)


def test_beyond_an_axis_the_end_is_read_and_said() -> None:
    axis = np.array([1.0, 2.0])
    at = place(axis, np.array([0.5, 1.0, 1.5, 2.0, 9.0]))
    assert interpolate(axis, [at]).tolist() == [1.0, 1.0, 1.5, 2.0, 2.0]
    wanted = [Basis.EXTRAPOLATED, Basis.MEASURED, Basis.INTERPOLATED, Basis.MEASURED, Basis.EXTRAPOLATED]
    assert basis_of([at], np.zeros(2, dtype=np.uint8)).tolist() == wanted


def test_a_query_is_as_good_as_the_worst_knot_it_reads() -> None:
    """And knots it does not read do not matter."""
    basis = np.array([Basis.MEASURED, Basis.EXTRAPOLATED, Basis.MEASURED], dtype=np.uint8)
    at = place(np.array([1.0, 2.0, 3.0]), np.array([1.0, 1.5, 2.0, 3.0]))
    assert basis_of([at], basis).tolist() == [0, Basis.EXTRAPOLATED, Basis.EXTRAPOLATED, 0]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(rises=st.lists(st.floats(0, 10), min_size=3, max_size=8))
def test_the_cubic_goes_through_its_knots_and_never_overshoots(rises: list[float]) -> None:
    x = np.arange(len(rises) + 1, dtype=float)
    y = np.concatenate([[0.0], np.cumsum(rises)])[None, :]
    slopes = monotone_slopes(x, y)
    fine = np.linspace(0.0, x[-1], 200)
    curve = cubic(place(x, fine), x, y, slopes, np.zeros(200, dtype=np.intp))
    assert np.all(np.diff(curve) >= -1e-9)
    at_knots = cubic(place(x, x), x, y, slopes, np.zeros(len(x), dtype=np.intp))
    np.testing.assert_allclose(at_knots, y[0], atol=1e-9)


def test_distinct_is_unique_with_its_inverse() -> None:
    for column in (np.array([7, 3, 3, 9, 7]), np.array(["b", "a", "b"]), np.array([1 << 40, 5])):
        axis, code = distinct(column)
        expected, inverse = np.unique(column, return_inverse=True)
        assert axis.tolist() == expected.tolist()
        assert code.tolist() == inverse.tolist()


def test_rows_become_a_grid_with_its_gaps() -> None:
    (n, m), grid = pivot([np.array([2, 2, 4]), np.array([1, 8, 8])], np.array([1.0, 2.0, 3.0]))
    assert (n.tolist(), m.tolist()) == ([2.0, 4.0], [1.0, 8.0])
    np.testing.assert_array_equal(grid, [[1.0, 2.0], [np.nan, 3.0]])


def test_gaps_of_corrections_are_filled_along_a_line_and_empty_lines_from_the_nearest() -> None:
    grid = np.array([[1.0, np.nan, 3.0], [np.nan] * 3, [np.nan, 7.0, np.nan]])
    filled, basis = fill_last_axis(grid, np.array([0.0, 1.0, 2.0]))
    np.testing.assert_array_equal(filled, [[1, 2, 3], [1, 2, 3], [7, 7, 7]])
    assert basis[0].tolist() == [Basis.MEASURED, Basis.INTERPOLATED, Basis.MEASURED]
    assert set(basis[1].tolist()) == {Basis.EXTRAPOLATED}
    assert basis[2].tolist() == [Basis.EXTRAPOLATED, Basis.MEASURED, Basis.EXTRAPOLATED]


@pytest.mark.parametrize("block", [64, 128, 256])
def test_the_key_block_is_read_off_the_step(block: int) -> None:
    context = 2.0 ** np.arange(1, 13)
    flat = 10.0 + 0.001 * context
    assert find_key_block(context, np.where(context > block, 1.15 * flat, flat)[None, :]) == block
    assert find_key_block(context, flat[None, :]) == 0
    assert find_key_block(context, np.full((1, 12), np.nan)) == 0


def test_a_step_is_kept_between_the_knots_around_it() -> None:
    """Linear up to the block, a step, linear again: right on either side of it, however far the knots are apart."""

    def seconds(context: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
        return np.where(context > 128, 12.0, 10.0) + context / 1000

    context = np.array([32.0, 64.0, 256.0, 512.0])
    sample = seconds(context)[None, :] * np.array([[1.0], [2.0]])
    grid = make_grid("decode", np.array([1.0, 2.0]), context, sample, lambda b, c: b + c, key_block=128)
    asked = np.array([50.0, 100.0, 128.0, 129.0, 200.0, 400.0])
    got, _ = grid.read(np.full(6, 1.5), asked)
    np.testing.assert_allclose(got, 1.5 * seconds(asked), rtol=1e-9)


def test_beyond_the_measured_a_grid_grows_with_the_roofline() -> None:
    batch, length = np.array([1.0, 2.0]), np.array([1.0, 2.0, 4.0])
    sample = np.array([[1.0, 2.0, 4.0], [2.0, 4.0, np.nan]])
    grid = make_grid("decode", batch, length, sample, lambda b, n: b * n**2)
    got, basis = grid.read(np.array([2.0]), np.array([4.0]))
    assert got[0] == pytest.approx(4.0 * 4)  # the roofline says a length twice as long takes four times as long
    assert basis[0] == Basis.EXTRAPOLATED


def test_a_hole_takes_the_shape_its_siblings_have_there() -> None:
    """All kernels jump at one cell; a sibling that does not keep step with the others is not asked."""
    batch, length = np.array([1.0, 2.0, 4.0]), np.array([256.0, 512.0, 1024.0])
    shape = np.array([1.0, 2.5, 4.0])[None, :] * np.ones((3, 1))
    own = shape.copy()
    own[1, 1] = np.nan
    kin = [Sample(batch, length, factor * shape) for factor in (0.5, 2.0, 3.0)]
    odd = Sample(batch, length, np.array([[1.0, 9.0, 1.0], [5.0, 0.1, 5.0], [1.0, 9.0, 1.0]]))
    alone, _ = fill_holes("decode", Sample(batch, length, own), 0, list)
    filled, basis = fill_holes("decode", Sample(batch, length, own), 0, lambda: [*kin, odd])
    assert alone[1, 1] == pytest.approx(2.0)  # linear between 1 and 4
    assert filled[1, 1] == pytest.approx(2.0 * (2.5 / 2.0) ** 0.75)  # three siblings agree; shrunk by 3 / 4
    assert basis[1, 1] == Basis.INTERPOLATED


def test_stand_ins_are_the_nearest_kernels() -> None:
    heads = [(8, 8), (8, 1), (32, 8), (32, 4)]
    assert nearest_heads(heads, (64, 16)) == (32, 8)  # same queries per KV head
    assert nearest_heads(heads, (28, 4)) == (32, 4)
    variants = [Variant(dtype, dim, w) for dtype in ("bf16", "fp8") for dim in (64, 128) for w in (0, 128, 8192)]
    assert nearest_variant(variants, Variant("fp8", 128, 0)) == Variant("fp8", 128, 0)
    assert nearest_variant(variants, Variant("bf16", 96, 4096)) == Variant("bf16", 128, 8192)
    assert nearest_variant(variants, Variant("bf16", 80, 1024)).window == 0  # both windows are far off
