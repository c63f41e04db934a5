"""From a measured point to what ran there: GPU, model, dtypes, engine defaults, op times. Or why that is unknown."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from splitplan.catalogs.engines import Engine, find_engine
from splitplan.catalogs.errors import SplitplanError
from splitplan.catalogs.gpus import Gpu, find_gpu
from splitplan.catalogs.links import Link, find_link
from splitplan.catalogs.models import Model, find_model
from splitplan.planner.calibrate.generations import Generation, find_generation
from splitplan.planner.calibrate.points import Point
from splitplan.planner.latency.memory import GIB, InstanceMemory, instance_memory
from splitplan.planner.latency.operations import OpSource
from splitplan.planner.latency.siblings import find_op_times

DTYPES = {
    "": "bf16",
    "auto": "bf16",
    "bfloat16": "bf16",
    "bf16": "bf16",
    "float16": "fp16",
    "fp16": "fp16",
    "fp8": "fp8",
    "fp8block": "fp8_block",
    "int8": "int8",
    "w8a8": "int8",
    "int4": "int4",
    "awqint4": "int4",
    "gptqint4": "int4",
    "awq": "int4",
    "gptq": "int4",
    "w4a16": "int4",
    "mxfp4": "mxfp4",
    "nvfp4": "nvfp4",
    "fp4": "nvfp4",
    "fp32": "fp32",
}

STORAGE_DTYPES = {"fp8_block": "fp8"}
"""Formats that store as another one and compute by tables of their own."""

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
    tp: int
    pp: int
    ep: int
    weight_dtype: str  # of the op tables
    kv_dtype: str
    kv_capacity_tokens: int
    notes: tuple[str, ...] = ()


def resolve(point: Point) -> Setup:
    """Look everything up. Raises UnpredictableError with a reason where the catalogs or tables cannot say."""
    gpu = _gpu(point.gpu)
    try:
        model = find_model(point.model)
    except SplitplanError:
        raise UnpredictableError(f"model '{point.model}' is in no catalog") from None
    generation = find_generation(
        point.engine,
        point.engine_version,
        point.date,
        gpu,
        offline=point.mode in ("offline", "static-batch"),
        static=point.mode == "static-batch",
    )
    if generation is None:
        raise UnpredictableError(f"engine '{point.engine}' is not modelled")
    weight_dtype = _weight_dtype(point, model)
    kv_dtype = _kv_dtype(point, generation, weight_dtype)
    ops, ops_note = find_op_times(gpu, generation.engine)
    setup = Setup(
        model=model,
        gpu=gpu,
        link=find_link(gpu.nvlink or gpu.pcie),
        ops=ops,
        engine=replace(find_engine("vllm"), block_tokens=generation.block_tokens),
        generation=generation,
        tp=point.tp,
        pp=point.pp,
        ep=_expert_parallel(point, model),
        weight_dtype=weight_dtype,
        kv_dtype=kv_dtype,
        kv_capacity_tokens=0,
        notes=(ops_note,) if ops_note else (),
    )
    return replace(setup, kv_capacity_tokens=_kv_capacity(setup, point))


def _gpu(text: str) -> Gpu:
    plain = re.sub(r"\(.*", "", text).strip()
    for name in (plain, re.sub(r"-\d+GB$", "", plain), re.sub(r"-(SXM\d?|PCIe)", "", plain)):
        try:
            return find_gpu(name)
        except SplitplanError:
            continue
    raise UnpredictableError(f"GPU '{text}' is in no catalog")


def _dtype(text: str, what: str) -> str:
    found = DTYPES.get(re.sub(r"[^a-z0-9]", "", text.lower()))
    if found is None:
        raise UnpredictableError(f"{what} '{text}' is not modelled")
    return found


def _weight_dtype(point: Point, model: Model) -> str:
    found = _dtype(point.weight_dtype or model.weight_dtype, "dtype")
    if found == "nvfp4" and model.weight_dtype == "mxfp4":
        return "mxfp4"  # published in MXFP4; some tables label it otherwise
    return found


def _kv_dtype(point: Point, generation: Generation, weight_dtype: str) -> str:
    """As stated; else 16 bit, but for TensorRT-LLM, whose FP8 checkpoints come with FP8 KV scales and use them."""
    if not point.kv_dtype and generation.engine == "trtllm" and weight_dtype.startswith("fp8"):
        return "fp8"
    return _dtype(re.sub(r"\(.*", "", point.kv_dtype), "KV dtype")


def _expert_parallel(point: Point, model: Model) -> int:
    stated = re.search(r"moe_ep=(\d+)", point.notes)
    return int(stated.group(1)) if stated and model.moe else 1


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
