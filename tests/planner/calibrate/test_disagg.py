"""Measured disaggregated runs: read, predicted, or refused with a reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from splitplan.catalogs.errors import DocumentError
from splitplan.planner.calibrate.disagg import is_disagg_file, read_disagg, score_disagg
from tests.planner.calibrate.rows import PUBLISHED

HEADER = (
    "id,role,gpu_prefill,gpu_decode,engine,engine_version,model,dtype,prefill_workers,prefill_parallel,decode_workers,"
    "decode_parallel,kv_transfer,isl,osl,concurrency,request_rate,ttft_ms_mean,notes"
)
MOONCAKE = "disagg,H800-80GB,H800-80GB,vllm,0.11.2,Qwen/Qwen3-8B,bf16,1,tp8,1,tp8,RDMA (about 200 GB/s aggregate)"
# Mooncake's documentation: mean TTFT of 50 prompts at concurrency 1, two nodes of 8 H800
MEASURED = {1024: 67.29, 8192: 212.05, 32768: 749.62}


def written(tmp_path: Path, *rows: str) -> Path:
    path = tmp_path / "disagg.csv"
    path.write_text("\n".join([HEADER, *rows]) + "\n")
    return path


def mooncake_rows() -> list[str]:
    return [f"m{isl},{MOONCAKE},{isl},128,1,,{ttft},50 prompts" for isl, ttft in MEASURED.items()]


def test_ttft_of_a_lone_request_through_a_connector(tmp_path: Path) -> None:
    """Prefill, transfer, first decode step: within 55 % of what was measured, and growing as it does."""
    rows = [score_disagg(run) for run in read_disagg(written(tmp_path, *mooncake_rows()))]
    predicted = [row.values["ttft"].predicted * 1e3 for row in rows]
    assert predicted == pytest.approx(list(MEASURED.values()), rel=0.55)
    assert predicted == sorted(predicted)
    assert predicted[2] / predicted[1] == pytest.approx(749.62 / 212.05, rel=0.25)


def test_what_cannot_be_predicted_says_why(tmp_path: Path) -> None:
    no_workers = mooncake_rows()[0].replace(",1,tp8,1,tp8,", ",,tp8,,tp8,")
    unreadable = mooncake_rows()[0].replace(",1024,128,", ",?,128,")
    reasons = [score_disagg(run).reason for run in read_disagg(written(tmp_path, no_workers, unreadable))]
    assert reasons[0] == "worker counts are not stated"
    assert reasons[1].startswith("isl is '?'")


def test_the_colocated_arm_is_an_ordinary_point(tmp_path: Path) -> None:
    row = mooncake_rows()[0].replace("disagg,H800", "colocated,H800", 1)
    scored = score_disagg(read_disagg(written(tmp_path, row))[0])
    assert scored.generation == "vllm-v1"
    assert scored.predicted


def test_a_worker_of_data_parallel_attention_is_several_engines(tmp_path: Path) -> None:
    """Two colocated engines of TP 4, and a decode side of eight attention ranks that share their experts."""
    two = mooncake_rows()[0].replace("disagg,H800", "colocated,H800", 1).replace(",1,tp8,1,tp8,", ",,tp4,2,tp4,")
    assert read_disagg(written(tmp_path, two))[0].point.replicas == 2
    shared = mooncake_rows()[0].replace(
        "Qwen/Qwen3-8B,bf16,1,tp8,1,tp8", "deepseek-r1,fp8,1,tp8 attn_dp1 moe_ep8,1,tp1 attn_dp8 moe_ep8"
    )
    run = read_disagg(written(tmp_path, shared.replace("H800-80GB", "H200-SXM-141GB")))[0]
    assert (run.point.tp, run.point.attention_dp, run.point.expert_parallel, run.point.num_gpus) == (1, 8, 8, 8)
    assert score_disagg(run).predicted


def test_files_are_told_apart_by_their_columns(tmp_path: Path) -> None:
    assert is_disagg_file(written(tmp_path, *mooncake_rows()))
    assert not is_disagg_file(PUBLISHED)
    with pytest.raises(DocumentError, match="missing column"):
        read_disagg(PUBLISHED)
