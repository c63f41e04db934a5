"""Importing published tables: units, names and versions are translated, and the known warts are not copied."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from splitplan.catalogs.errors import MissingExtraError, ProfileError
from splitplan.planner.cli.main import app
from splitplan.profiler.importers import aiconfigurator as importer
from splitplan.profiler.profile import OpTable
from splitplan.profiler.store import load_profile

arrow = pytest.importorskip("pyarrow", reason="needs the extra [import]")

Rows = dict[str, list[Any]]

GEMM: Rows = {
    "gemm_dtype": ["bfloat16", "bfloat16", "fp8_block", "bfloat16", "bfloat16"],
    "m": [1, 128, 1, 2, 4],
    "n": [4096] * 5,
    "k": [2048] * 5,
    "latency": [0.01, 0.5, 0.02, float("nan"), 0.0],
}
ATTENTION: Rows = {
    "batch_size": [2, 2],
    "num_heads": [32, 32],
    "num_key_value_heads": [8, 8],
    "head_dim": [128, 128],
    "attn_dtype": ["bfloat16", "bfloat16"],
    "kv_cache_dtype": ["bfloat16", "fp8"],
}
ALL_REDUCE: Rows = {
    "allreduce_dtype": ["bfloat16", "bfloat16"],
    "num_gpus": [8, 8],
    "message_size": [1024, 1024],
    "latency": [4.0, 5.0],
    "backend": ["vllm_graph", "vllm_eager"],
}
NCCL: Rows = {
    "op_name": ["all_reduce", "alltoall", "all_gather"],
    "nccl_dtype": ["half", "int8", "half"],
    "num_gpus": [2, 2, 2],
    "message_size": [256, 256, 512],
    "latency": [0.1, 0.2, 0.3],
}


def write(root: Path, place: str, rows: Rows) -> None:
    import pyarrow.parquet

    path = root / "aiconfigurator_core" / "systems" / "data" / place
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.table(rows), path)


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A miniature of the package, with every wart in it."""
    root = tmp_path / "site"
    write(root, "h100_sxm/gemm/vllm/0.24.0/gemm_perf.parquet", GEMM)
    write(root, "h100_sxm/gemm/vllm/0.9.0/gemm_perf.parquet", {**GEMM, "latency": [7.0] * 5})
    prefill = {**ATTENTION, "isl": [512, 512], "step": [0, 0], "latency": [0.1, 0.2]}
    write(root, "h100_sxm/attention/vllm/0.24.0/context_attention_perf.parquet", prefill)
    decode = {**ATTENTION, "isl": [1, 1], "step": [1023, 1023], "window_size": [0, 128], "latency": [0.1, 0.2]}
    write(root, "h100_sxm/attention/vllm/0.24.0/generation_attention_perf.parquet", decode)
    write(root, "h100_sxm/comm/vllm/0.19.0/custom_allreduce_perf.parquet", ALL_REDUCE)
    write(root, "h100_sxm/comm/nccl/2.9.1/nccl_perf.parquet", {**NCCL, "latency": [9.0] * 3})
    write(root, "h100_sxm/comm/nccl/2.27.3/nccl_perf.parquet", NCCL)
    write(root, "l40s/gemm/vllm/0.24.0/gemm_perf.parquet", GEMM)
    write(root, "l40s/comm/vllm/0.22.0/custom_allreduce_perf.parquet", ALL_REDUCE)
    fast = {**ALL_REDUCE, "latency": [0.4, 0.5], "backend": ["sglang_graph", "sglang_eager"]}
    write(root, "l40s/comm/sglang/0.5.12/custom_allreduce_perf.parquet", fast)
    (root / "aiconfigurator_core-0.12.0.dist-info").mkdir()
    return root


def row(table: OpTable, **wanted: object) -> float:
    """The seconds of the one row with these keys."""
    match = np.all([table.keys[name] == value for name, value in wanted.items()], axis=0)
    assert match.sum() == 1
    return float(table.seconds[match][0])


def test_latency_becomes_seconds_and_bad_rows_are_dropped_and_counted(package: Path) -> None:
    profile = importer.import_profile("h100-sxm", "vllm", importer.find_source(package))
    gemm = profile.tables["gemm"]
    assert row(gemm, dtype="bf16", m=1, n=4096, k=2048) == pytest.approx(10e-6)
    assert row(gemm, dtype="fp8_block", m=1, n=4096, k=2048) == pytest.approx(20e-6)
    assert len(gemm) == 3
    assert profile.provenance["rows_dropped"] == "2"


def test_products_that_time_their_launch_are_left_out(package: Path) -> None:
    """A dtype whose smallest products take as long as its middling ones was launched by a host; large ones stay."""
    sizes = [(m, n, n) for m in (1, 16, 128) for n in (256, 512, 1024)] + [(4096, 16384, 8192), (128, 16384, 8192)]
    rows: Rows = {
        "gemm_dtype": ["fp8_block"] * len(sizes) + ["fp8"] * len(sizes),
        "m": [m for m, _, _ in sizes] * 2,
        "n": [n for _, n, _ in sizes] * 2,
        "k": [k for _, _, k in sizes] * 2,
        "latency": [0.090] * 9 + [0.850, 0.095] + [0.005] * 9 + [0.900, 0.062],
    }
    write(package, "h100_sxm/gemm/vllm/0.25.0/gemm_perf.parquet", rows)
    profile = importer.import_profile("h100-sxm", "vllm", importer.find_source(package))
    gemm = profile.tables["gemm"]
    assert (gemm.keys["dtype"] == "fp8").sum() == 11
    assert gemm.seconds[gemm.keys["dtype"] == "fp8_block"].tolist() == [pytest.approx(850e-6)]
    assert profile.provenance["rows_dropped_host_bound"] == "10"
    assert any("launch by the host" in note for note in profile.notes)


def test_a_hiccup_between_two_quick_neighbours_is_left_out(package: Path) -> None:
    """The third of six took three times its neighbours; a step up that stays, or a slow first row, is no hiccup."""
    rows: Rows = {
        "gemm_dtype": ["bfloat16"] * 6,
        "m": [1, 2, 3, 4, 5, 6],
        "n": [4096] * 6,
        "k": [2048] * 6,
        "latency": [0.025, 0.01, 0.03, 0.011, 0.03, 0.031],
    }
    write(package, "h100_sxm/gemm/vllm/0.25.0/gemm_perf.parquet", rows)
    profile = importer.import_profile("h100-sxm", "vllm", importer.find_source(package))
    assert profile.tables["gemm"].keys["m"].tolist() == [1, 2, 4, 5, 6]
    assert profile.provenance["rows_dropped_spikes"] == "1"


def test_a_gpu_may_be_named_as_users_name_it(package: Path, tmp_path: Path) -> None:
    (path, profile), *rest = importer.import_profiles(package, ["H100"], ["vllm"], tmp_path)
    assert (path.name, profile.gpu, rest) == ("h100-sxm.vllm.npz", "h100-sxm", [])


def test_the_newest_version_wins_by_number_not_by_spelling(package: Path) -> None:
    """0.24.0 comes after 0.9.0, 2.27.3 after 2.9.1; a table the main version lacks comes from an older one, said so."""
    profile = importer.import_profile("h100-sxm", "vllm", importer.find_source(package))
    assert profile.engine_version == "0.24.0"
    assert "gemm/vllm/0.24.0/" in profile.provenance["files"]
    assert "comm/vllm/0.19.0/" in profile.provenance["files"]
    assert "comm/nccl/2.27.3/" in profile.provenance["files"]
    assert "aiconfigurator-core 0.12.0" in profile.provenance["source"]


@pytest.mark.parametrize(
    ("older", "newer"),
    [("1.3.0rc9", "1.3.0rc20"), ("1.3.0rc20", "1.3.0"), ("0.5.6", "0.5.6.post2"), ("0.5.6.post2", "0.5.10")],
)
def test_versions_are_ordered_as_releases_are(older: str, newer: str) -> None:
    assert importer._version_order(older) < importer._version_order(newer)


def test_collective_sizes_become_bytes(package: Path) -> None:
    """Sizes are in elements: 1,024 bf16 are 2,048 bytes, 256 int8 are 256."""
    tables = importer.import_profile("h100-sxm", "vllm", importer.find_source(package)).tables
    assert row(tables["all_reduce"], how="graph", ranks=8, num_bytes=2048) == pytest.approx(4e-3)
    assert row(tables["all_reduce"], how="eager", ranks=8, num_bytes=2048) == pytest.approx(5e-3)
    assert row(tables["all_reduce"], how="nccl", ranks=2, num_bytes=512) == pytest.approx(0.1e-3)
    assert row(tables["all_to_all"], how="nccl", ranks=2, num_bytes=256) == pytest.approx(0.2e-3)
    assert row(tables["all_gather"], how="nccl", ranks=2, num_bytes=1024) == pytest.approx(0.3e-3)


def test_decode_context_includes_the_token_being_decoded(package: Path) -> None:
    decode = importer.import_profile("h100-sxm", "vllm", importer.find_source(package)).tables["decode_attention"]
    assert decode.keys["context"].tolist() == [1024, 1024]
    assert row(decode, kv_dtype="fp8", window=128) == pytest.approx(0.2e-3)


def test_a_table_without_a_window_column_is_full_attention(package: Path) -> None:
    prefill = importer.import_profile("h100-sxm", "vllm", importer.find_source(package)).tables["prefill_attention"]
    assert prefill.keys["window"].tolist() == [0, 0]
    assert prefill.keys["past"].tolist() == [0, 0]


def test_the_two_pcie_hosts_of_l40s_stay_apart(package: Path) -> None:
    profile = importer.import_profile("l40s", "vllm", importer.find_source(package))
    table = profile.tables["all_reduce"]
    assert row(table, link="pcie", host=importer.SLOW_HOST, how="graph", ranks=8) == pytest.approx(4e-3)
    assert row(table, link="pcie", host=importer.FAST_HOST, how="graph", ranks=8) == pytest.approx(0.4e-3)
    assert any("two kinds of host" in note for note in profile.notes)


def test_the_command_writes_profiles_and_says_which(package: Path, tmp_path: Path) -> None:
    """Without --gpu every GPU that has tables is imported."""
    options = ["profile", "import", "aiconfigurator", "--root", str(package), "-o", str(tmp_path / "out")]
    result = CliRunner().invoke(app, options)
    assert result.exit_code == 0, result.output
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["h100-sxm.vllm.npz", "l40s.vllm.npz"]
    assert load_profile(tmp_path / "out" / "l40s.vllm.npz").gpu == "l40s"
    assert "vllm 0.24.0" in result.stdout


def test_two_imports_give_the_same_bytes(package: Path, tmp_path: Path) -> None:
    for folder in ("one", "two"):
        list(importer.import_profiles(package, ["l40s"], ["vllm"], tmp_path / folder))
    assert (tmp_path / "one" / "l40s.vllm.npz").read_bytes() == (tmp_path / "two" / "l40s.vllm.npz").read_bytes()


def test_what_the_package_does_not_have_is_said_with_what_it_has(package: Path, tmp_path: Path) -> None:
    source = importer.find_source(package)
    with pytest.raises(ProfileError, match="did you mean l40s"):
        importer.import_profile("l40", "vllm", source)
    with pytest.raises(ProfileError, match="vllm, sglang, trtllm"):
        importer.import_profile("l40s", "tgi", source)
    with pytest.raises(ProfileError, match="no GEMM table of sglang"):
        importer.import_profile("l40s", "sglang", source)
    with pytest.raises(ProfileError, match="no systems/data"):
        importer.find_source(tmp_path)


def test_without_the_package_or_pyarrow_the_next_step_is_named(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importer.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ProfileError, match=r"pip install aiconfigurator-core==0\.12\.0"):
        importer.find_source()
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(MissingExtraError, match=r"splitplan\[import\]"):
        importer.import_profile("l40s", "vllm", importer.find_source(package))


def test_a_torn_parquet_file_is_named(package: Path) -> None:
    path = next(package.rglob("l40s/gemm/**/*.parquet"))
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ProfileError, match=r"gemm_perf\.parquet: not a readable"):
        importer.import_profile("l40s", "vllm", importer.find_source(package))
