"""What ran behind a measured point, and the reasons for not knowing."""

from __future__ import annotations

from pathlib import Path

import pytest

from splitplan.catalogs.gpus import find_gpu
from splitplan.planner.calibrate.accuracy import shipped_overhead
from splitplan.planner.calibrate.generations import find_generation
from splitplan.planner.calibrate.points import Point, read_points
from splitplan.planner.calibrate.resolve import Setup, UnpredictableError, resolve
from splitplan.planner.latency.weights import weight_bytes_per_gpu
from tests.planner.calibrate.rows import one_row


def point(tmp_path: Path, **cells: object) -> Point:
    path = tmp_path / "row.csv"
    path.write_text(one_row(**cells))
    return read_points(path, strict=False)[0]


def setup(tmp_path: Path, **cells: object) -> Setup:
    return resolve(point(tmp_path, **cells))


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("H100-SXM-80GB(JLSE)", "h100-sxm"),
        ("A100-80GB(DGX-A100)", "a100-sxm-80"),
        ("A100-SXM4-40GB(ALCF Polaris)", "a100-sxm-40"),
        ("H200-SXM-141GB", "h200-sxm"),
        ("8x H100", "h100-sxm"),
        ("DGX H100", "h100-sxm"),
        ("H100-SXM5-80GBx8", "h100-sxm"),
        ("H100-NVL-94GB", "h100-nvl"),
        ("L40S-PCIe-48GB", "l40s"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
    ],
)
def test_gpus_as_benchmarks_write_them(tmp_path: Path, written: str, name: str) -> None:
    assert setup(tmp_path, gpu=written).gpu.name == name


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("meta-llama/Llama-3.3-70B-Instruct", "llama-3.3-70b"),
        ("nvidia/Llama-3.1-8B-Instruct-FP8", "llama-3.1-8b"),
        ("somebody/Qwen3-32B-AWQ", "qwen3-32b"),
        ("deepseek-ai/DeepSeek-R1-Distill-Llama-70B", "llama-3.1-70b"),
        ("lmsys/vicuna-13b-v1.5", "llama-2-13b"),
        ("llama3.1-70b-instruct", "llama-3.1-70b"),
        ("nvidia/Llama-3.1-Nemotron-70B-Instruct-HF", "llama-3.1-70b"),
        ("Qwen/Qwen2.5-Coder-32B-Instruct", "qwen2.5-32b"),
        ("gptj-99.9", "gpt-j-6b"),
        ("mistralai/Mistral-7B-Instruct-v0.3", "mistral-7b-v0.1"),
        ("RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w4a16", "llama-3.1-8b"),
    ],
)
def test_models_by_the_names_of_their_checkpoints(tmp_path: Path, written: str, name: str) -> None:
    assert setup(tmp_path, model=written, tp=4).model.name == name


@pytest.mark.parametrize(
    ("written", "model", "dtype"),
    [
        ("FP8-dynamic", "qwen3-8b", "fp8"),
        ("fp8_block", "qwen3-8b", "fp8_block"),
        ("awq-int4", "qwen3-8b", "int4"),
        ("float16", "qwen3-8b", "fp16"),
        ("", "Qwen/Qwen3-8B-FP8", "fp8_block"),
        ("nvfp4", "openai/gpt-oss-20b", "mxfp4"),
    ],
)
def test_dtypes_as_benchmarks_write_them(tmp_path: Path, written: str, model: str, dtype: str) -> None:
    assert setup(tmp_path, dtype=written, model=model).weight_dtype == dtype


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"gpu": "TPU v5e"}, "GPU 'TPU v5e' is in no catalog"),
        ({"model": "gpt-17"}, "model 'gpt-17' is in no catalog"),
        ({"dtype": "ternary"}, "dtype 'ternary' is not modelled"),
        ({"mode": "by telegraph"}, "mode 'by telegraph' is not one of"),
        ({"model": "deepseek-v3", "dtype": "fp8"}, "the weights do not fit"),
    ],
)
def test_what_is_unknown_is_named(tmp_path: Path, cells: dict[str, object], reason: str) -> None:
    with pytest.raises(UnpredictableError, match=reason):
        setup(tmp_path, **cells)


def test_tensorrt_llm_keeps_kv_in_fp8_with_fp8_checkpoints(tmp_path: Path) -> None:
    assert setup(tmp_path, engine="tensorrt-llm", engine_version="1.0", dtype="fp8").kv_dtype == "fp8"
    assert setup(tmp_path, engine="tensorrt-llm", engine_version="1.0", dtype="bf16").kv_dtype == "bf16"
    assert setup(tmp_path, engine="vllm", dtype="fp8").kv_dtype == "bf16"


def test_scaled_relatives_are_noted(tmp_path: Path) -> None:
    """Nobody measured the kernels of the A100 40 GB: its times come from the 80 GB card, and the prediction says so."""
    assert "scaled from a100-sxm-80" in setup(tmp_path, gpu="A100-SXM4-40GB").notes[0]
    assert setup(tmp_path).notes == ()


@pytest.mark.parametrize(
    ("engine", "version", "date", "key", "budget"),
    [
        ("vllm(early)", "", "2023", "vllm-early", 8192),
        ("vllm", "0.6.3", "", "vllm-v0", 8192),
        ("vllm", "", "2024-10", "vllm-v0", 8192),
        ("vllm", "0.11.0", "", "vllm-v1", 8192),
        ("vllm", "0.18.0", "", "vllm-v1-async", 8192),
        ("vllm", "", "2026-03", "vllm-v1-async", 8192),
        ("sglang", "0.5.3", "", "sglang", 8192),
        ("tensorrt-llm", "0.17", "", "trtllm", 8192),
        ("tensorrt-llm", "0.5", "", "trtllm-static", 8192),
    ],
)
def test_generations_by_version_or_date(engine: str, version: str, date: str, key: str, budget: int) -> None:
    found = find_generation(engine, version, date, find_gpu("h100"), offline=False, static=False)
    assert found is not None
    assert found.key == key
    assert found.max_num_batched_tokens == budget


def test_a100_servers_of_vllm_v1_take_a_smaller_chunk_budget() -> None:
    a100 = find_generation("vllm", "0.11", "", find_gpu("a100"), offline=False, static=False)
    assert a100 is not None
    assert (a100.max_num_batched_tokens, a100.max_num_seqs) == (2048, 256)


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("vLLM V1", "vllm"),
        ("sglang-router", "sglang"),
        ("NVIDIA NIM 1.8", "trtllm"),
        ("TensorRT-LLM (PyTorch)", "trtllm"),
        ("dynamo/sglang", "sglang"),
        ("LMDeploy PyTorch", "lmdeploy"),
    ],
)
def test_engines_as_benchmarks_write_them(tmp_path: Path, written: str, name: str) -> None:
    found = setup(tmp_path, engine=written, engine_version="")
    assert found.generation.engine == name
    assert not any("not modelled" in note for note in found.notes)


def test_an_engine_that_is_not_modelled_is_taken_as_vllm_and_says_so(tmp_path: Path) -> None:
    """With its date, not its version, and with an interval as wide as where nothing was fitted."""
    row = point(tmp_path, engine="text-generation-inference", engine_version="3.1", date="2025-06", mode="offline")
    found = resolve(row)
    assert found.generation.key == "vllm-v1"
    assert found.notes == ("engine 'text-generation-inference' is not modelled: taken as vllm",)
    spreads = shipped_overhead(row, found)
    assert spreads.tpot_spread >= 1.6
    assert spreads.ttft_spread >= 2.5


@pytest.mark.parametrize(
    ("written", "mode"),
    [
        ("Offline", "offline"),
        ("static", "static-batch"),
        ("closed_loop", "online-concurrency"),
        ("server", "online-rate"),
    ],
)
def test_modes_in_other_words(tmp_path: Path, written: str, mode: str) -> None:
    assert point(tmp_path, mode=written).mode == mode


def test_a_cell_that_says_nothing_is_unknown(tmp_path: Path) -> None:
    row = point(tmp_path, ttft_ms_mean="N/A", output_tok_s="-", tpot_ms_mean=8)
    assert (row.problem, row.ttft.central, row.output_tokens_per_s) == ("", None, None)
    assert row.tpot.central == ("mean", 0.008)


def test_published_fp8_checkpoints_are_what_they_are(tmp_path: Path) -> None:
    """Block scales in Qwen3's, 16-bit attention in Meta's 405B: vLLM logged 57.75 GiB a GPU at TP 8 (issue 6746)."""
    assert setup(tmp_path, model="Qwen/Qwen3-32B-FP8", dtype="fp8", engine="tensorrt-llm").weight_dtype == "fp8_block"
    assert setup(tmp_path, model="Qwen/Qwen3-32B", dtype="fp8", engine="tensorrt-llm").weight_dtype == "fp8"
    large = setup(tmp_path, model="Llama-3.1-405B", dtype="fp8", tp=8, engine_version="0.6.3")
    stored = weight_bytes_per_gpu(large.model, tp=8, pp=1, ep=1, weight_dtype=large.weight_dtype)
    assert stored / 2**30 == pytest.approx(57.75, rel=0.04)
    own = setup(tmp_path, model="Llama-3.1-405B", dtype="fp8", tp=8, engine="tensorrt-llm")
    assert own.weight_dtype == "fp8"
    assert large.kv_capacity_tokens < 0.7 * own.kv_capacity_tokens


@pytest.mark.parametrize(("version", "dtype"), [("0.12.0", "bf16"), ("0.13.0", "fp8")])
def test_vllm_heeds_the_kv_scales_of_a_checkpoint_since_013(tmp_path: Path, version: str, dtype: str) -> None:
    found = setup(tmp_path, model="nvidia/Llama-3.1-8B-Instruct-FP8", dtype="fp8", engine_version=version)
    assert found.kv_dtype == dtype


def test_settings_that_a_source_states_replace_the_defaults(tmp_path: Path) -> None:
    stated = "chunked prefill=TRUE; max_num_batched_tokens=512; max_num_seqs=96; gpu-memory-utilization 0.95"
    found = setup(tmp_path, engine_version="0.6.3", notes=stated).generation
    assert (found.scheduler, found.max_num_batched_tokens, found.max_num_seqs) == ("chunked", 512, 96)
    assert found.memory_fraction == 0.95
    assert (
        setup(tmp_path, engine_version="0.6.3", notes="max_num_batched_tokens=default").generation.max_num_seqs == 256
    )
