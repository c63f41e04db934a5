"""The shipped H100 tables predict their own interior points at least as well as another tool's interpolation does."""

from __future__ import annotations

import numpy as np
import pytest

from splitplan.catalogs.gpus import find_gpu
from splitplan.profiler.describe import describe
from splitplan.profiler.leave_one_out import leave_points_out, leave_values_out
from splitplan.profiler.profile import Profile
from splitplan.profiler.store import find_profile, make_table
from splitplan.profiler.tables.gemm import reference
from splitplan.profiler.tables.roofline import Roofline

H100 = find_gpu("h100-sxm")


@pytest.mark.parametrize(
    ("family", "axis", "lines", "rival_percent"),
    [("gemm", "m", 1000, 4.9), ("prefill_attention", "new", 441, 2.0), ("decode_attention", "context", 385, 1.1)],
)
def test_one_point_out_of_each_line_is_predicted_as_well_as_by_the_rival(
    family: str, axis: str, lines: int, rival_percent: float
) -> None:
    """Rival: aiconfigurator 0.12 on the same tables. A seeded sample; benchmarks/interpolation.py prints all of it."""
    held_out = leave_points_out(find_profile("h100-sxm", "vllm"), H100, family, axis, passes=2, limit=lines)
    assert len(held_out.errors) >= 700
    assert 100 * held_out.median <= rival_percent


@pytest.mark.parametrize(("axis", "percent"), [("n", 4.0), ("k", 3.0)])
def test_a_column_of_the_gemm_grid_is_predicted_from_its_neighbours(axis: str, percent: float) -> None:
    """A real model's n or k is on no grid: leaving a whole one out shows the error it will have."""
    table = find_profile("h100-sxm", "vllm").tables["gemm"]
    plain = {name: column[table.keys["dtype"] == "bf16"] for name, column in table.keys.items()}
    bf16 = make_table("gemm", plain, table.seconds[table.keys["dtype"] == "bf16"])
    held_out = leave_values_out(Profile("h100-sxm", "vllm", "", {"gemm": bf16}, {}), H100, "gemm", axis)
    assert 100 * held_out.median <= percent


def test_errors_are_signed_and_of_the_rows_left_out() -> None:
    """A table that is its reference is predicted exactly; a row of twice the time is missed by half of it."""
    m = np.array([64.0, 128, 192, 256, 320, 384])
    sizes = np.full(6, 4096.0)
    rows = {"dtype": ["bf16"] * 6, "n": sizes, "k": sizes, "m": m}
    exact = reference(Roofline(H100), m, sizes, sizes, "bf16", stairs=True)
    for raised, expected in ((1.0, 0.0), (2.0, -0.5)):
        table = make_table("gemm", rows, exact * np.where(m == 192, raised, 1.0))
        held_out = leave_values_out(Profile("h100-sxm", "x", "", {"gemm": table}, {}), H100, "gemm", "m")
        assert held_out.keys["m"].tolist() == [128, 192, 256, 320]
        assert held_out.errors[1] == pytest.approx(expected, abs=1e-6)


def test_a_profile_is_described_with_ranges_and_its_own_check() -> None:
    facts = {table.family: table for table in describe(find_profile("a100-sxm-80", "vllm"))}
    assert facts["gemm"].num_rows == 9240
    assert facts["gemm"].columns["m"] == "1–8,192 (21 values)"
    assert facts["gemm"].columns["dtype"] == "bf16"
    assert facts["gemm"].check == ""
    checked = {
        table.family: table for table in describe(find_profile("a100-sxm-80", "vllm"), find_gpu("a100"), passes=1)
    }
    assert checked["decode_attention"].check.startswith("one context left out: median ")
    assert checked["all_to_all"].check == ""


def test_a_table_without_interior_points_is_described_without_a_check() -> None:
    rows = {"dtype": ["bf16"] * 2, "m": [1, 2], "n": [64, 64], "k": [64, 64]}
    profile = Profile("h100-sxm", "own", "", {"gemm": make_table("gemm", rows, [1e-6, 2e-6])}, {})
    (facts,) = describe(profile, H100)
    assert (facts.num_rows, facts.check) == (2, "")
    assert len(leave_values_out(profile, H100, "gemm", "m").errors) == 0
