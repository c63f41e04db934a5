"""What one instance of an engine can run, and which attention backend it picks: pure predicates over catalog facts.

Read in the sources of vLLM 0.32 and SGLang 0.5.23; what was not read there is said in the rule. Each rule returns one
sentence that names the fact and the way out, or None.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from splitplan.catalogs.parameters import UNQUANTIZED_DTYPES

if TYPE_CHECKING:
    from splitplan.catalogs.engines import Engine, EngineSide
    from splitplan.catalogs.gpus import Gpu
    from splitplan.catalogs.models import Model

InstanceRule = Callable[["Engine", "Model", "Gpu", "EngineSide"], str | None]
BLOCK_SCALE_WIDTH = 128  # fp8 checkpoints of MoE models scale blocks of 128 × 128 weights

LEAST_SERVED_CAPABILITY = 7.5
LEAST_CAPABILITY = {
    # (engine, weight dtype) → compute capability from which it runs; the default is under "".
    "bf16": {"": 8.0},
    "fp16": {"": 7.5},
    "fp32": {"": 7.5},
    "int8": {"": 7.5},
    "int4": {"": 7.5, "trtllm": 8.0},
    "fp8": {"": 8.0, "trtllm": 8.9},  # vLLM and SGLang run fp8 weights on Ampere through weight-only Marlin kernels
    "mxfp4": {"": 8.0, "sglang": 9.0, "trtllm": 9.0},  # vLLM on Ampere and Ada: weight-only Marlin
    "nvfp4": {"": 8.0, "sglang": 10.0, "trtllm": 10.0},  # vLLM below Blackwell: weight-only Marlin
}
FP8_ARITHMETIC_CAPABILITY = 8.9
NO_FP8_CACHE_CAPABILITY = 8.6  # reported to fail there (vLLM issue 26431)
MLA_BLOCK_TOKENS = {
    "FLASHMLA": 64,
    "FLASHMLA_SPARSE": 64,
    "FLASH_ATTN_MLA": 64,
    "FLASHINFER_MLA": 64,
    "CUTLASS_MLA": 128,
}
"""Block sizes that vLLM enforces when it serves MLA (FLASH_ATTN_MLA: because FlashMLA is there on the same GPUs)."""
CPU_DTYPES = ("bf16", "fp16", "fp32", "int8", "int4")


def is_mla(model: Model) -> bool:
    """Whether the model caches latents instead of heads."""
    return model.mla is not None


def is_hybrid(model: Model) -> bool:
    """Whether layers of one model cache in different ways: windows beside full attention, or state layers."""
    return len({(group.kind, group.window_tokens) for group in model.attention}) > 1 or has_state(model)


def has_state(model: Model) -> bool:
    """Whether some layers keep a constant state instead of a KV cache."""
    return any(group.kind == "state" for group in model.attention)


def default_attention_backend(engine: Engine, gpu: Gpu, model: Model, kv_dtype: str = "bf16") -> str:
    """The attention backend the engine picks by itself on this GPU for this model.

    vLLM: FLASH_ATTN up to Hopper, FLASHINFER first on sm_100; attention sinks and fp8 caches narrow the choice. Other
    engines and AMD: as documented by them, not read in their sources.
    """
    if engine.base == "sglang":
        return _sglang_backend(gpu, model)
    if engine.base == "trtllm":
        return "TRTLLM"
    if gpu.vendor == "AMD":
        return "TRITON_MLA" if is_mla(model) else "TRITON_ATTN"
    if gpu.architecture == "CPU":
        return "CPU_ATTN"
    capability = gpu.compute_capability_number
    if is_mla(model):
        if model.indexer is not None:
            return "FLASHMLA_SPARSE"
        return {9: "FLASH_ATTN_MLA", 10: "FLASHINFER_MLA"}.get(int(capability), "TRITON_MLA")
    if int(capability) == 10:
        return "FLASHINFER"
    if model.attention_sinks and capability < 9.0:
        return "TRITON_ATTN"  # FlashAttention 2 knows no sinks
    if kv_dtype == "fp8" and int(capability) != 9:
        return "FLASHINFER"  # FlashAttention reads an fp8 cache on Hopper only
    return "FLASH_ATTN"


def _sglang_backend(gpu: Gpu, model: Model) -> str:
    if gpu.vendor == "AMD":
        return "aiter"
    if gpu.architecture == "CPU":
        return "torch_native"
    major = int(gpu.compute_capability_number)
    if is_mla(model):
        return {9: "fa3", 10: "trtllm_mla"}.get(major, "triton")
    if model.attention_sinks and major < 9:
        return "triton"
    return {9: "fa3", 10: "trtllm_mha"}.get(major, "flashinfer")


def common_attention_backend(engine: Engine, gpus: Sequence[Gpu], model: Model, kv_dtype: str = "bf16") -> str | None:
    """A backend to pin on all of these GPUs.

    Their common default, else vLLM's next choice that all of them have, else None.
    """
    defaults = {default_attention_backend(engine, gpu, model, kv_dtype) for gpu in gpus}
    if len(defaults) == 1:
        return defaults.pop()
    if engine.base != "vllm" or {gpu.vendor for gpu in gpus} != {"NVIDIA"}:
        return None
    if is_mla(model):
        return "TRITON_MLA" if kv_dtype != "fp8" and model.indexer is None else None
    if model.attention_sinks:
        return "TRITON_ATTN"
    return "FLASHINFER" if kv_dtype == "fp8" else "FLASH_ATTN"


def effective_block_tokens(engine: Engine, backend: str, block_tokens: int) -> int:
    """Tokens of a KV block after the engine has adjusted what was asked: vLLM raises it for MLA, silently."""
    if engine.base != "vllm":
        return block_tokens
    least = MLA_BLOCK_TOKENS.get(backend, 1)
    return block_tokens if block_tokens % least == 0 else least


def instance_problems(engine: Engine, model: Model, gpu: Gpu, side: EngineSide) -> list[str]:
    """Why this engine cannot run this model so on this GPU type; [] when it can. Memory is checked elsewhere."""
    return [message for rule in INSTANCE_RULES if (message := rule(engine, model, gpu, side)) is not None]


def _sizes_are_positive(engine: Engine, model: Model, gpu: Gpu, side: EngineSide) -> str | None:
    sizes = {
        "tensor parallel": side.tensor_parallel,
        "pipeline parallel": side.pipeline_parallel,
        "expert parallel": side.expert_parallel,
        "block": side.block_tokens,
    }
    bad = [f"{name} size {size}" for name, size in sizes.items() if size < 1]
    return f"{' and '.join(bad)} must be at least 1" if bad else None


def _engine_runs_on_device(engine: Engine, model: Model, gpu: Gpu, side: EngineSide) -> str | None:
    if gpu.vendor == "AMD" and engine.base == "trtllm":
        return f"{engine.name} runs on NVIDIA GPUs only, not on {gpu.name}: use vllm or sglang"
    if gpu.architecture == "CPU" and engine.base != "vllm":
        return f"{engine.name} has no CPU build that can be relied on: use vllm"
    if gpu.vendor == "NVIDIA" and gpu.compute_capability_number < LEAST_SERVED_CAPABILITY:
        needs = f"{engine.name} {engine.version} needs compute capability {LEAST_SERVED_CAPABILITY}"
        return f"{needs}, {gpu.name} has {gpu.compute_capability}: use a newer GPU type"
    return None


def _weight_dtype_runs(engine: Engine, model: Model, gpu: Gpu, side: EngineSide) -> str | None:
    dtype = side.weight_dtype
    if dtype not in engine.weight_dtypes:
        return f"{engine.name} has no {dtype} weights: use {', '.join(engine.weight_dtypes)}"
    if gpu.architecture == "CPU":
        return None if dtype in CPU_DTYPES else f"{dtype} weights do not run on a CPU: use bf16"
    if gpu.vendor == "AMD":
        return f"nvfp4 weights do not run on {gpu.name}: use fp8 or mxfp4" if dtype == "nvfp4" else None
    least = LEAST_CAPABILITY[dtype]
    needed = least.get(engine.base, least[""])
    if LEAST_SERVED_CAPABILITY <= gpu.compute_capability_number < needed:
        return (
            f"{dtype} weights need compute capability {needed:.1f} in {engine.base}, {gpu.name} has "
            f"{gpu.compute_capability}: use {'fp16' if dtype == 'bf16' else 'bf16 or int4'} there"
        )
    return None


def _kv_dtype_runs(engine: Engine, model: Model, gpu: Gpu, side: EngineSide) -> str | None:
    dtype = side.kv_dtype
    if dtype not in engine.kv_dtypes:
        return f"{engine.name} has no {dtype} KV cache: use {', '.join(engine.kv_dtypes)}"
    if dtype != "fp8" or gpu.vendor == "AMD":
        return None
    capability, needed = gpu.compute_capability_number, _fp8_cache_capability(engine, model, gpu, side)
    if capability >= needed and capability != NO_FP8_CACHE_CAPABILITY:
        return None
    if capability >= needed:
        return (
            f"an fp8 KV cache was reported to fail on compute capability {capability}, which {gpu.name} has: use bf16"
        )
    kind = "an fp8 cache of MLA latents" if is_mla(model) else "an fp8 KV cache"
    return f"{kind} needs compute capability {needed:.1f}, {gpu.name} has {gpu.compute_capability or 'none'}: use bf16"


def _fp8_cache_capability(engine: Engine, model: Model, gpu: Gpu, side: EngineSide) -> float:
    """vLLM on A100 keeps an fp8 cache through FlashInfer, which widens it as it reads (its pull request 24577)."""
    if is_mla(model):
        return 9.0
    backend = side.attention_backend or default_attention_backend(engine, gpu, model, "fp8")
    return 8.0 if engine.base == "vllm" and not backend.startswith("TRITON") else FP8_ARITHMETIC_CAPABILITY


def _dtype_suits_model(engine: Engine, model: Model, gpu: Gpu, side: EngineSide) -> str | None:
    if side.weight_dtype == "mxfp4" and model.moe is None:
        return f"mxfp4 kernels cover experts only and {model.name} has none: use fp8 or int4"
    return None


def _sparse_mla_runs(engine: Engine, model: Model, gpu: Gpu, side: EngineSide) -> str | None:
    if model.indexer is not None and gpu.vendor == "NVIDIA" and int(gpu.compute_capability_number) not in (9, 10):
        return f"sparse MLA kernels need sm_90 or sm_100, {gpu.name} has {gpu.compute_capability}: use Hopper or B200"
    return None


def _heads_divide(engine: Engine, model: Model, gpu: Gpu, side: EngineSide) -> str | None:
    tp = max(side.tensor_parallel, 1)
    for group in model.attention:
        if group.num_heads % tp:
            return f"{group.num_heads} attention heads do not divide by TP {tp}: use a divisor of {group.num_heads}"
        if group.num_kv_heads and group.kind != "mla" and group.num_kv_heads % tp and tp % group.num_kv_heads:
            return f"{group.num_kv_heads} KV heads neither divide by TP {tp} nor divide it: use TP {group.num_kv_heads}"
    return None


def _widths_divide(engine: Engine, model: Model, gpu: Gpu, side: EngineSide) -> str | None:
    tp = max(side.tensor_parallel, 1)
    if model.num_dense_mlp_layers and model.intermediate_size % tp:
        return f"the feed-forward width {model.intermediate_size} does not divide by TP {tp}: use another TP"
    moe = model.moe
    if moe is None or side.expert_parallel > 1:
        return None
    if moe.moe_intermediate_size % tp:
        return f"the expert width {moe.moe_intermediate_size} does not divide by TP {tp}: use expert parallelism"
    part = moe.moe_intermediate_size // tp
    if side.weight_dtype == "fp8" and part % BLOCK_SCALE_WIDTH and moe.moe_intermediate_size % BLOCK_SCALE_WIDTH == 0:
        return (
            f"TP {tp} cuts experts to {part} columns, not a multiple of the fp8 scale block of {BLOCK_SCALE_WIDTH}: "
            f"use expert parallelism or a smaller TP"
        )
    return None


def _experts_divide(engine: Engine, model: Model, gpu: Gpu, side: EngineSide) -> str | None:
    if side.expert_parallel <= 1:
        return None
    if model.moe is None:
        return f"{model.name} has no experts to spread over EP {side.expert_parallel}: use EP 1"
    if model.moe.num_experts % side.expert_parallel:
        return f"{model.moe.num_experts} experts do not divide by EP {side.expert_parallel}: use a divisor"
    return None


def _stages_have_layers(engine: Engine, model: Model, gpu: Gpu, side: EngineSide) -> str | None:
    if side.pipeline_parallel > model.num_layers:
        return f"{model.num_layers} layers cannot fill {side.pipeline_parallel} pipeline stages: use fewer stages"
    return None


def _stages_may_differ(engine: Engine, model: Model, gpu: Gpu, side: EngineSide) -> str | None:
    layers = side.stage_layers
    if not layers:
        return None
    if not engine.stage_layers:
        return f"{engine.name} cuts layers alike for all pipeline stages: use stages of one GPU type"
    if len(layers) != side.pipeline_parallel or sum(layers) != model.num_layers or min(layers) < 1:
        wanted = f"{model.num_layers} layers on {side.pipeline_parallel} stages, at least one on each"
        return f"stages of {', '.join(map(str, layers))} layers are not {wanted}"
    return None


def _block_suits_kernels(engine: Engine, model: Model, gpu: Gpu, side: EngineSide) -> str | None:
    if engine.base != "vllm" or gpu.architecture == "CPU" or side.block_tokens < 1:
        return None
    if side.block_tokens % 16:
        return (
            f"vLLM's attention kernels want KV blocks of a multiple of 16 tokens, not {side.block_tokens}: use 16 or 64"
        )
    return None


def _backend_runs(engine: Engine, model: Model, gpu: Gpu, side: EngineSide) -> str | None:
    backend, capability = side.attention_backend.upper(), gpu.compute_capability_number
    if engine.base != "vllm" or not backend or gpu.vendor != "NVIDIA":
        return None
    if is_mla(model) != ("MLA" in backend):
        return (
            f"{backend} does not serve {'MLA' if is_mla(model) else 'plain'} attention: leave the backend to the engine"
        )
    if model.attention_sinks and backend == "FLASH_ATTN" and int(capability) != 9:
        return f"{backend} knows attention sinks on Hopper only, not on {gpu.name}: use TRITON_ATTN"
    if side.kv_dtype == "fp8" and backend == "FLASH_ATTN" and int(capability) != 9:
        return f"{backend} reads an fp8 KV cache on Hopper only, not on {gpu.name}: use FLASHINFER"
    return None


INSTANCE_RULES: tuple[InstanceRule, ...] = (
    _sizes_are_positive,
    _engine_runs_on_device,
    _weight_dtype_runs,
    _kv_dtype_runs,
    _dtype_suits_model,
    _sparse_mla_runs,
    _heads_divide,
    _widths_divide,
    _experts_divide,
    _stages_have_layers,
    _stages_may_differ,
    _block_suits_kernels,
    _backend_runs,
)


def needs_weight_only_kernels(gpu: Gpu, weight_dtype: str) -> bool:
    """Whether the weights are stored in `weight_dtype` but multiplied in bf16.

    They save memory and bandwidth, not arithmetic.
    """
    if weight_dtype in UNQUANTIZED_DTYPES:
        return False
    if weight_dtype == "int4":
        return True
    needed = {"fp8": FP8_ARITHMETIC_CAPABILITY, "int8": 7.5, "mxfp4": 10.0, "nvfp4": 10.0}[weight_dtype]
    return gpu.vendor == "NVIDIA" and gpu.compute_capability_number < needed
