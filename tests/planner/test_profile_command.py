"""`planner profile merge` and `catalog show profile FILE`: what was measured here goes before what was published."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from splitplan.catalogs.gpus import find_gpu
from splitplan.planner.cli.main import app
from splitplan.profiler.profile import Basis, Profile
from splitplan.profiler.query import OpTimes
from splitplan.profiler.store import find_profile, load_profile, make_table, save_profile

GPU = find_gpu("h100")
M = np.array([16, 256, 4096])


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    """Products of one shape, measured at twice what the published table says."""
    published = OpTimes(find_profile(GPU.name, "vllm"), GPU).gemm(M, 4096, 4096, "bf16").seconds
    keys = {"dtype": np.repeat("bf16", 3), "n": np.repeat(4096, 3), "k": np.repeat(4096, 3), "m": M}
    table = make_table("gemm", keys, 2 * published)
    path = tmp_path / "h100-sxm.splitplan.npz"
    save_profile(Profile(GPU.name, "splitplan", "2.13", {"gemm": table}, {"device": "NVIDIA H100 80GB HBM3"}), path)
    return path


def test_merging_puts_measured_rows_first_and_scales_the_published_ones(measured: Path, tmp_path: Path) -> None:
    out = tmp_path / "merged.npz"
    result = CliRunner().invoke(app, ["profile", "merge", str(measured), "-o", str(out), "--json"])
    assert result.exit_code == 0, result.output
    assert "base times 2.00" in json.loads(result.stdout)["merged"]["merged (gemm)"]
    merged, base = OpTimes(load_profile(out), GPU), OpTimes(find_profile(GPU.name, "vllm"), GPU)
    here = merged.gemm(M, 4096, 4096, "bf16")
    assert here.seconds == pytest.approx(2 * base.gemm(M, 4096, 4096, "bf16").seconds, rel=1e-5)
    assert set(here.basis.tolist()) == {int(Basis.MEASURED)}
    elsewhere = (merged.gemm(512, 8192, 8192, "bf16").seconds, base.gemm(512, 8192, 8192, "bf16").seconds)
    assert elsewhere[0] == pytest.approx(2 * elsewhere[1], rel=0.02)


def test_a_profile_file_is_shown_with_its_provenance(measured: Path) -> None:
    result = CliRunner().invoke(app, ["catalog", "show", "profile", str(measured), "--json"])
    assert result.exit_code == 0, result.output
    assert "NVIDIA H100 80GB HBM3" in result.stdout
    assert "precedence" in result.stdout
