"""Predicting points: against step times by hand, and how the ways of driving a server differ."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from splitplan.catalogs.gpus import find_gpu
from splitplan.catalogs.links import find_link
from splitplan.catalogs.models import find_model
from splitplan.planner.calibrate.points import Point, read_points
from splitplan.planner.calibrate.predict import Prediction, make_requests, predict, setup_step_model
from splitplan.planner.calibrate.resolve import resolve
from splitplan.planner.latency.evaluate import step_seconds
from splitplan.planner.latency.operations import Stage, token_operations
from splitplan.planner.latency.overhead import EngineOverhead
from splitplan.planner.latency.siblings import find_op_times
from tests.planner.calibrate.rows import one_row

PLAIN = EngineOverhead()


def point(tmp_path: Path, **cells: object) -> Point:
    path = tmp_path / "row.csv"
    path.write_text(one_row(**cells))
    return read_points(path)[0]


def predicted(tmp_path: Path, overhead: EngineOverhead = PLAIN, **cells: object) -> Prediction:
    row = point(tmp_path, **cells)
    return predict(row, resolve(row), overhead)


def test_a_lone_request_is_one_prefill_and_its_decode_steps(tmp_path: Path) -> None:
    row = point(tmp_path, isl=1000, osl=9)
    setup = resolve(row)
    found = predict(row, setup, PLAIN)
    step = setup_step_model(row, setup, PLAIN)
    contexts = 1000 + 1 + np.arange(8)
    decode_s = step_seconds(step, decode_batch=1, decode_context=contexts)
    assert found.ttft.mean_s == pytest.approx(float(step_seconds(step, prefill_new=1000)), rel=1e-6)
    assert found.tpot.mean_s == pytest.approx(float(decode_s.mean()), rel=1e-3)
    assert found.output_tokens_per_s == pytest.approx(9 / (found.ttft.mean_s + 8 * found.tpot.mean_s))


def test_a_static_batch_has_one_ttft_the_time_of_all_its_prompts(tmp_path: Path) -> None:
    one = predicted(tmp_path, batch_or_concurrency=1, isl=4096)
    eight = predicted(tmp_path, batch_or_concurrency=8, isl=4096)
    assert eight.ttft.mean_s == eight.ttft.p50_s == pytest.approx(8 * one.ttft.mean_s, rel=0.1)


def test_the_front_end_adds_to_ttft_and_nothing_else(tmp_path: Path) -> None:
    cells: dict[str, object] = {"mode": "online-concurrency", "batch_or_concurrency": 1, "notes": "5 requests"}
    plain = predicted(tmp_path, **cells)
    slow = predicted(tmp_path, EngineOverhead(request_s=0.05, request_token_s=1e-5), **cells)
    assert slow.ttft.mean_s - plain.ttft.mean_s == pytest.approx(0.05 + 1024e-5)
    assert slow.tpot.mean_s == pytest.approx(plain.tpot.mean_s)
    assert slow.output_tokens_per_s < plain.output_tokens_per_s


def test_a_burst_queues_where_a_closed_loop_does_not(tmp_path: Path) -> None:
    """64 requests all at once wait for each other's prompts; 4 users in turn hardly do."""
    burst = predicted(tmp_path, mode="online-concurrency", batch_or_concurrency=64, notes="64 requests", isl=2048)
    loop = predicted(tmp_path, mode="online-concurrency", batch_or_concurrency=4, notes="64 requests", isl=2048)
    assert burst.ttft.p50_s > 5 * loop.ttft.p50_s
    assert burst.output_tokens_per_s > 2 * loop.output_tokens_per_s


def test_an_open_loop_queues_near_saturation_only(tmp_path: Path) -> None:
    """Reported shape of the knee: TTFT p99 goes from hundreds of ms to many seconds between two rates."""
    cells: dict[str, object] = {"mode": "online-rate", "model": "qwen3-32b", "isl": 1000, "osl": 300, "dtype": "fp8"}
    below = predicted(tmp_path, **cells, request_rate=1, notes="150 requests")
    above = predicted(tmp_path, **cells, request_rate=40, notes="400 requests")
    assert below.ttft.p99_s < 0.5
    assert above.ttft.p99_s > 10 * below.ttft.p99_s


def test_prompts_first_stalls_decodes(tmp_path: Path) -> None:
    """The same load under SGLang's scheduler: lower TPOT and higher TTFT than with mixed chunks, as published."""
    cells: dict[str, object] = {"mode": "online-concurrency", "batch_or_concurrency": 64, "osl": 64, "isl": 1024}
    mixed = predicted(tmp_path, **cells, engine_version="0.11.0")
    first = predicted(tmp_path, **cells, engine="sglang", engine_version="0.5.3")
    assert first.ttft.mean_s > 1.3 * mixed.ttft.mean_s
    assert first.tpot.mean_s < mixed.tpot.mean_s


def test_lengths_are_drawn_as_the_source_describes_them(tmp_path: Path) -> None:
    fixed = make_requests(point(tmp_path, mode="offline", notes="500 requests"))
    spread = make_requests(point(tmp_path, mode="offline", notes="500 requests; lengths 0.8-1.0 x nominal"))
    chat = make_requests(point(tmp_path, mode="offline", notes="ShareGPT 500 prompts"))
    assert set(fixed.input_tokens) == {1024}
    assert 819 <= spread.input_tokens.min() < spread.input_tokens.max() <= 1024
    assert chat.input_tokens.mean() == pytest.approx(1024, rel=0.01)
    assert chat.input_tokens.std() > 800


def test_replicas_multiply_throughput(tmp_path: Path) -> None:
    one, two = predicted(tmp_path), predicted(tmp_path, replicas=2, num_gpus=2)
    assert two.output_tokens_per_s == pytest.approx(2 * one.output_tokens_per_s)


def test_replicas_share_the_users_of_a_closed_loop(tmp_path: Path) -> None:
    """32 users on four replicas are 8 users on each: the latencies of one replica with 8, and four times its output."""
    cells: dict[str, object] = {"mode": "online-concurrency", "osl": 64}
    one = predicted(tmp_path, **cells, batch_or_concurrency=8)
    four = predicted(tmp_path, **cells, batch_or_concurrency=32, replicas=4, num_gpus=4)
    assert four.tpot.mean_s == pytest.approx(one.tpot.mean_s, rel=0.05)
    assert four.ttft.mean_s == pytest.approx(one.ttft.mean_s, rel=0.15)
    assert four.output_tokens_per_s == pytest.approx(4 * one.output_tokens_per_s, rel=0.05)


def test_replicas_share_the_batch_and_the_rate(tmp_path: Path) -> None:
    batch = predicted(tmp_path, batch_or_concurrency=16, replicas=4, num_gpus=4)
    assert batch.tpot.mean_s == predicted(tmp_path, batch_or_concurrency=4).tpot.mean_s
    cells: dict[str, object] = {"mode": "online-rate", "isl": 1000, "osl": 200, "notes": "200 requests"}
    crowded = predicted(tmp_path, **cells, request_rate=40)
    spread = predicted(tmp_path, **cells, request_rate=40, replicas=8, num_gpus=8)
    assert spread.tpot.mean_s < 0.8 * crowded.tpot.mean_s


def test_attention_data_parallel_ranks_bring_their_tokens_to_shared_experts(tmp_path: Path) -> None:
    """DeepSeek-R1 on 8 H200, 64 users: each rank decodes 8 sequences of its own, its experts see all 64."""
    cells: dict[str, object] = {
        "gpu": "H200-SXM-141GB",
        "model": "deepseek-r1",
        "dtype": "fp8",
        "mode": "online-concurrency",
        "batch_or_concurrency": 64,
        "num_gpus": 8,
        "osl": 32,
        "tp": 8,
    }
    setup = resolve(point(tmp_path, **cells, notes="dp=8; 64 requests"))
    assert (setup.tp, setup.dp, setup.ep) == (1, 8, 8)
    beside = resolve(point(tmp_path, **{**cells, "tp": 1}, notes="moe_ep=8 attn_dp=8"))
    assert (beside.tp, beside.dp, beside.ep) == (1, 8, 8)
    tensor = resolve(point(tmp_path, **cells, notes="moe_ep=8 attn_dp=1"))
    assert (tensor.tp, tensor.dp, tensor.ep) == (8, 1, 8)
    # what the latents take is kept once by each rank, not eight times: room for many more sequences in all
    assert 8 * setup.kv_capacity_tokens > 3 * tensor.kv_capacity_tokens
    assert predict(point(tmp_path, **cells, notes="dp=8; 64 requests"), setup, PLAIN).tpot.mean_s > 0


def test_experts_of_data_parallel_ranks_see_the_tokens_of_all() -> None:
    """100 tokens on each of eight attention ranks are 800 for the experts: as 800 tokens under TP 8 with EP 8."""
    gpu = find_gpu("h200")
    ops, _ = find_op_times(gpu, "vllm")
    model, link = find_model("deepseek-r1"), find_link("nvlink4")

    def seconds(tp: int, tokens: float) -> dict[str, float]:
        stage = Stage(model, tp, 1, 8, "fp8", "bf16")
        operations = token_operations(stage, ops, link, np.array([tokens]))
        return {operation.name: float(operation.seconds[0]) for operation in operations}

    shared, tensor = seconds(1, 100.0), seconds(8, 800.0)
    assert shared["experts"] == pytest.approx(tensor["experts"])
    assert shared["expert all-to-all"] > 0
    assert "expert all-to-all" not in tensor
    assert "all-reduce" not in shared


def test_chats_are_cut_as_benchmarks_cut_them(tmp_path: Path) -> None:
    """No prompt and no answer beyond 1,024 tokens, and the stated means kept; long chats keep their means too."""
    chat = make_requests(point(tmp_path, mode="offline", notes="ShareGPT 3000 prompts", isl=217, osl=201))
    assert max(chat.input_tokens.max(), chat.output_tokens.max()) <= 1024
    assert chat.input_tokens.mean() == pytest.approx(217, rel=0.02)
    assert chat.output_tokens.mean() == pytest.approx(201, rel=0.02)
    long = make_requests(point(tmp_path, mode="offline", notes="OpenOrca 3000 samples", isl=4000, osl=900))
    assert long.input_tokens.mean() == pytest.approx(4000, rel=0.02)


def test_an_open_loop_runs_until_what_builds_up_has_built_up(tmp_path: Path) -> None:
    """Five minutes of arrivals where a source states no number, and an engine's part of the number that it states."""
    row = point(tmp_path, mode="online-rate", request_rate=4)
    assert len(make_requests(row)) == 1200
    assert make_requests(row).arrival_s[-1] == pytest.approx(300, rel=0.1)
    assert len(make_requests(point(tmp_path, mode="offline", notes="24576 samples"), engines=8)) == 3072


def test_the_tail_of_a_chat_is_a_small_part_of_a_long_run(tmp_path: Path) -> None:
    """Llama-2-70B in FP8 on H200, answers of very different lengths: of a few hundred the longest decides the end."""
    cells: dict[str, object] = {
        "gpu": "H200-SXM-141GB",
        "engine": "tensorrt-llm",
        "engine_version": "",
        "date": "2024-08",
        "mode": "offline",
        "model": "llama2-70b",
        "dtype": "fp8",
        "isl": 155,
        "osl": 294,
        "batch_or_concurrency": "",
    }
    long = predicted(tmp_path, **cells, notes="OpenOrca").output_tokens_per_s
    few = predicted(tmp_path, **cells, notes="OpenOrca 500 samples").output_tokens_per_s
    equal = predicted(tmp_path, **cells).output_tokens_per_s
    assert long > 1.2 * few
    assert long == pytest.approx(equal, rel=0.25)


def test_an_offline_run_keeps_the_batch_it_is_said_to_keep(tmp_path: Path) -> None:
    """Sixteen at a time of 200 requests: about what sixteen users in a closed loop get, less than no limit gives."""
    few = predicted(tmp_path, mode="offline", batch_or_concurrency=16, notes="200 requests").output_tokens_per_s
    free = predicted(tmp_path, mode="offline", batch_or_concurrency="", notes="200 requests").output_tokens_per_s
    loop = predicted(tmp_path, mode="online-concurrency", batch_or_concurrency=16, notes="200 requests")
    assert few == pytest.approx(loop.output_tokens_per_s, rel=0.1)
    assert free > 1.5 * few
