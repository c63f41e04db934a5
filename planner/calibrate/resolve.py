"""From a measured point to what ran there: GPU, model, dtypes, engine defaults, op times. Or why that is unknown."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from splitplan.catalogs.engines import Engine, find_engine
from splitplan.catalogs.errors import SplitplanError
from splitplan.catalogs.gpus import Gpu, find_gpu
from splitplan.catalogs.links import Link, find_link
from splitplan.catalogs.models import Model, find_model
from splitplan.planner.calibrate.generations import (
    OTHER_ENGINE,
    Generation,
    engine_name,
    find_generation,
    with_stated_settings,
)
from splitplan.planner.calibrate.points import MODES, Point
from splitplan.planner.latency.calibration import version_key
from splitplan.planner.latency.memory import GIB, InstanceMemory, instance_memory
from splitplan.planner.latency.nodes import GPUS_PER_NODE, spanning_ops
from splitplan.planner.latency.operations import OpSource
from splitplan.planner.latency.siblings import find_op_times
from splitplan.planner.latency.weights import FP8_FEED_FORWARD

DTYPE_WORDS = (
    (r"fp8.?block|block.?fp8", "fp8_block"),
    (r"fp8|e4m3|e5m2|f8", "fp8"),
    (r"mxfp4|mx4", "mxfp4"),
    (r"nvfp4|fp4", "nvfp4"),
    (r"int4|awq|gptq|w4a|4.?bit|q4", "int4"),
    (r"int8|w8a8|w8a16|8.?bit|q8|smoothquant", "int8"),
    (r"bf16|bfloat16", "bf16"),
    (r"fp16|float16|half", "fp16"),
    (r"fp32|float32", "fp32"),
    (r"^(auto|default)?$", "bf16"),
)
"""How people write dtypes, first match first."""

STORAGE_DTYPES = {"fp8_block": "fp8"}
"""Formats that store as another one and compute by tables of their own."""

CHECKPOINTS = (
    (r"qwen3[^/]*-fp8$|deepseek-(v3|r1)", ("vllm", "sglang", "trtllm"), "fp8_block"),
    (r"llama-?3\.1-405b", ("vllm", "sglang"), FP8_FEED_FORWARD),
)
"""FP8 checkpoints as published: Qwen3's and DeepSeek's scale by blocks of 128 × 128 (their configurations); Meta's of
Llama-3.1-405B, the one that vLLM and SGLang load, quantises the feed-forward layers only (vLLM issue 6746: 57.75 GiB a
GPU at TP 8, where all of it in FP8 would be 47). AMD publishes its own, of all layers."""

NIC = "ib-ndr"
"""One 400 Gbit/s port for each GPU, between nodes of a measured run."""

SGLANG_RUNTIME_BYTES = 4.0 * GIB
"""What SGLang leaves beside its static share on an 80 GB card; activations and graphs live there, not in the share."""


class UnpredictableError(Exception):
    """A point that cannot be predicted; the message is the reason that reports print."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What ran: everything a step model and a simulation of the point need."""

    model: Model
    gpu: Gpu
    link: Link
    ops: OpSource
    engine: Engine
    generation: Generation
    tp: int  # of attention
    pp: int
    ep: int  # beyond tp where attention runs data parallel
    dp: int  # engines of tp × pp ranks that share their experts (or nothing, where the model is dense)
    weight_dtype: str  # of the op tables
    kv_dtype: str
    kv_capacity_tokens: int
    notes: tuple[str, ...] = ()


def resolve(point: Point) -> Setup:
    """Look everything up. Raises UnpredictableError with a reason where the catalogs or tables cannot say."""
    if point.problem:
        raise UnpredictableError(point.problem)
    if point.mode not in MODES:
        raise UnpredictableError(f"mode '{point.mode}' is not one of {', '.join(MODES)}")
    gpu = find_measured_gpu(point.gpu)
    model = _model(point.model)
    generation = find_generation(
        point.engine,
        point.engine_version,
        point.date,
        gpu,
        offline=point.mode in ("offline", "static-batch"),
        static=point.mode == "static-batch",
    )
    generation = with_stated_settings(generation, point.notes)
    tp, dp, ep = _parallelism(point, model)
    weight_dtype = _weight_dtype(point, model, generation.engine if gpu.vendor == "NVIDIA" else "")
    kv_dtype = _kv_dtype(point, generation, weight_dtype)
    ops, ops_note = find_op_times(gpu, generation.engine)
    link = find_link(gpu.nvlink or gpu.pcie)
    node_gpus = link.domain_gpus or GPUS_PER_NODE
    if max(tp, ep) > node_gpus:
        ops = spanning_ops(ops, node_gpus, find_link(NIC))
    setup = Setup(
        model=model,
        gpu=gpu,
        link=link,
        ops=ops,
        engine=replace(find_engine("vllm"), block_tokens=generation.block_tokens),
        generation=generation,
        tp=tp,
        pp=point.pp,
        ep=ep,
        dp=dp,
        weight_dtype=weight_dtype,
        kv_dtype=kv_dtype,
        kv_capacity_tokens=0,
        notes=tuple(note for note in (_engine_note(point), ops_note) if note),
    )
    return replace(setup, kv_capacity_tokens=_kv_capacity(setup, point))


def _engine_note(point: Point) -> str:
    if engine_name(point.engine):
        return ""
    return f"engine '{point.engine}' is not modelled: taken as {OTHER_ENGINE}"


def find_measured_gpu(text: str) -> Gpu:
    """The GPU that a benchmark's label means; raises UnpredictableError for one in no catalog."""
    plain = re.sub(r"\(.*", "", text).strip()
    plain = re.sub(r"^\d+ ?[x*] ?|^(DGX|HGX)[ -]| ?[x*] ?\d+$", "", plain, flags=re.IGNORECASE)  # "8x H100", "DGX H100"
    without_size = re.sub(r"[- ]\d+ ?GB$", "", plain)
    for name in (plain, without_size, re.sub(r"-(SXM\d?|PCIe)", "", plain), re.sub(r"^NVIDIA[ -]", "", without_size)):
        try:
            return find_gpu(name)
        except SplitplanError:
            continue
    raise UnpredictableError(f"GPU '{text}' is in no catalog")


MODEL_SUFFIX = re.compile(
    r"[-_](instruct|chat|it|hf|base|fp8|fp4|nvfp4|mxfp4|bf16|fp16|awq|gptq|int4|int8|dynamic|kv|block|w4a16|w8a8|v\d|"
    r"quantized|quantized\.\w+|\d{4})$",
    re.IGNORECASE,
)
"""Parts of a model's name that say how it was tuned or stored, not what its dimensions are."""


FINE_TUNES = (
    (r"deepseek-r1-distill-llama-(8|70)b", r"llama-3.1-\1b"),
    (r"deepseek-r1-distill-qwen-(1\.5|7|14|32)b", r"qwen2.5-\1b"),
    (r"vicuna-(7|13)b.*", r"llama-2-\1b"),
    (r"wizardlm-(7|13|70)b.*", r"llama-2-\1b"),
    (r"llama-33b.*", "llama-30b"),
    (r"gpt-?j(-.*)?", "gpt-j-6b"),
    (r"zephyr-7b.*", "mistral-7b-v0.1"),
    (r"qwen2\.5-(?:coder|math)-([\d.]+)b.*", r"qwen2.5-\1b"),
    (r"(?:meta-)?llama-?(3(?:\.\d)?)-(\d+)b.*", r"llama-\1-\2b"),
    (r"llama-3\.1-nemotron-70b.*", "llama-3.1-70b"),
    (r"(?:meta-)?llama-?2-(\d+)b.*", r"llama-2-\1b"),
    (r"mistral-7b.*", "mistral-7b-v0.1"),
    (r"qwen(2(?:\.5)?|3)-([\d.]+)b.*", r"qwen\1-\2b"),
)
"""Families whose fine-tunes share their base's dimensions, by the last part of a name."""


def _model(text: str) -> Model:
    name = text.strip()
    candidates = [name, name.rsplit("/", 1)[-1]]
    for pattern, base in FINE_TUNES:
        last = candidates[1].lower()
        if re.fullmatch(pattern, last) and "-a" not in last:
            candidates.append(re.sub(pattern, base, last))
    stripped = candidates[1]
    while MODEL_SUFFIX.search(stripped):
        stripped = MODEL_SUFFIX.sub("", stripped)
        candidates.append(stripped)
    for candidate in candidates:
        try:
            return find_model(candidate)
        except SplitplanError:
            continue
    raise UnpredictableError(f"model '{text}' is in no catalog")


def _dtype(text: str, what: str) -> str:
    for pattern, dtype in DTYPE_WORDS:
        if re.search(pattern, text.strip().lower()):
            return dtype
    raise UnpredictableError(f"{what} '{text}' is not modelled")


def _weight_dtype(point: Point, model: Model, engine: str) -> str:
    in_name = re.search(r"fp8|nvfp4|mxfp4|awq|gptq|int4|int8|w4a16|w8a8", point.model.lower())
    found = _dtype(point.weight_dtype or (in_name.group(0) if in_name else model.weight_dtype), "dtype")
    if found == "nvfp4" and model.weight_dtype == "mxfp4":
        return "mxfp4"  # published in MXFP4; some tables label it otherwise
    if found == "fp8":
        for pattern, engines, dtype in CHECKPOINTS:
            if engine in engines and re.search(pattern, point.model.lower()):
                return dtype
    return found


def _kv_dtype(point: Point, generation: Generation, weight_dtype: str) -> str:
    """As stated; else 16 bit, but for TensorRT-LLM, whose own FP8 checkpoints come with FP8 KV scales and use them."""
    if not point.kv_dtype and generation.engine == "trtllm" and weight_dtype == "fp8":
        return "fp8"
    if not point.kv_dtype and _vllm_reads_kv_scales(point, generation):
        return "fp8"
    return _dtype(re.sub(r"\(.*", "", point.kv_dtype), "KV dtype")


def _vllm_reads_kv_scales(point: Point, generation: Generation) -> bool:
    """NVIDIA's own FP8 and FP4 checkpoints ask for an FP8 cache; vLLM heeds that since 0.13 (pull request 29980)."""
    own = re.match(r"nvidia/.*-(nv)?fp[48]$", point.model.lower()) is not None
    return own and generation.engine == "vllm" and version_key(generation.version) >= (0, 13)


def _parallelism(point: Point, model: Model) -> tuple[int, int, int]:
    """(tensor ranks of attention, data-parallel ranks of attention, expert ranks).

    Sources count data-parallel attention ranks among the tensor ranks (SGLang's --tp 8 --dp 8 is 8 GPUs) or beside
    them; the number of GPUs tells. Experts are then spread over all of them; cutting each expert instead moves and
    computes as much, and is taken as the same.
    """
    tp, dp = point.tp, point.attention_dp
    if model.moe is not None and dp == 1 and "attention-dp" in point.notes.lower():
        dp = tp
    if dp > 1 and tp % dp == 0 and tp * point.pp * dp > point.num_gpus:
        tp //= dp
    if model.moe is None:
        return tp, dp, 1
    return tp, dp, max(point.expert_parallel, tp * dp if dp > 1 else 1)


def _kv_capacity(setup: Setup, point: Point) -> int:
    generation = setup.generation
    memory = _memory(setup, int(point.input_tokens + point.output_tokens) + 1)
    if generation.engine == "sglang":
        # the share counts weights and KV; activations and graphs are outside it
        kv_bytes = memory.kv_bytes + memory.activation_bytes + memory.communication_bytes
        kv_bytes = min(kv_bytes, memory.total_bytes - SGLANG_RUNTIME_BYTES - memory.weights_bytes)
    elif generation.memory_of == "free":
        used = memory.weights_bytes + memory.activation_bytes + memory.communication_bytes
        kv_bytes = generation.memory_fraction * (memory.total_bytes - used)
    elif generation.memory_of == "cache":
        kv_bytes = generation.memory_fraction * memory.total_bytes
    else:
        kv_bytes = memory.kv_bytes
    per_token = memory.kv_bytes_per_token
    tokens = int(kv_bytes / per_token) if kv_bytes > 0 else 0
    longest = point.input_tokens + point.output_tokens
    if tokens < longest:
        if memory.weights_bytes >= memory.total_bytes:
            raise UnpredictableError("the weights do not fit by our count")
        # It ran, so it had room: the operator raised the fraction or cut buffers. Room for one sequence is certain.
        return int(longest) + setup.engine.block_tokens
    return tokens


def _memory(setup: Setup, max_model_len: int) -> InstanceMemory:
    generation = setup.generation
    return instance_memory(
        setup.model,
        setup.gpu,
        setup.engine,
        tp=setup.tp,
        pp=setup.pp,
        ep=setup.ep,
        weight_dtype=STORAGE_DTYPES.get(setup.weight_dtype, setup.weight_dtype),
        kv_dtype=STORAGE_DTYPES.get(setup.kv_dtype, setup.kv_dtype),
        max_num_seqs=min(generation.max_num_seqs, 1024),
        max_num_batched_tokens=min(generation.max_num_batched_tokens, 16384),
        memory_fraction=generation.memory_fraction,
        max_model_len=max_model_len,
    )
