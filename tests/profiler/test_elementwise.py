"""Measured memory-bound kernels answer instead of the roofline, in between their points and beyond."""

from __future__ import annotations

import numpy as np
import pytest

from splitplan.catalogs.gpus import find_gpu
from splitplan.profiler.profile import Basis, Profile
from splitplan.profiler.query import OpTimes
from splitplan.profiler.store import make_table

GPU = find_gpu("h100")


def op_times(slower: dict[str, float]) -> OpTimes:
    """Measurements that are a fixed factor over the roofline, by kind."""
    sizes = np.array([1 << 12, 1 << 20, 1 << 26])
    roofline = OpTimes(None, GPU).elementwise(sizes).seconds
    keys = {"kind": np.repeat(list(slower), 3), "num_bytes": np.tile(sizes, len(slower))}
    seconds = np.concatenate([factor * roofline for factor in slower.values()])
    table = make_table("elementwise", keys, seconds)
    return OpTimes(Profile(GPU.name, "splitplan", "1", {"elementwise": table}, {}), GPU)


@pytest.mark.parametrize("num_bytes", [1 << 10, 1 << 12, 100_000, 1 << 26, 1 << 30])
def test_a_constant_factor_over_the_roofline_is_found_everywhere(num_bytes: int) -> None:
    base = OpTimes(None, GPU).elementwise(num_bytes).seconds
    assert op_times({"rmsnorm": 3.0}).elementwise(num_bytes).seconds == pytest.approx(3.0 * base, rel=1e-5)


def test_kinds_are_averaged_geometrically() -> None:
    base = OpTimes(None, GPU).elementwise(100_000).seconds
    both = op_times({"rmsnorm": 2.0, "swiglu": 8.0}).elementwise(100_000).seconds
    assert both == pytest.approx(4.0 * base, rel=1e-5)


def test_inside_is_interpolated_outside_extrapolated() -> None:
    basis = op_times({"rmsnorm": 2.0}).elementwise(np.array([1 << 10, 100_000, 1 << 28])).basis
    assert basis.tolist() == [Basis.EXTRAPOLATED, Basis.INTERPOLATED, Basis.EXTRAPOLATED]


def test_without_measurements_it_is_assumed() -> None:
    assert int(OpTimes(None, GPU).elementwise(100).basis) == Basis.ASSUMED
