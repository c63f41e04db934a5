"""What fits on a GPU: the engine's fraction of *total* memory, less weights, activation peak and buffers, is KV cache.

    kv_bytes = memory_fraction · visible_bytes − weights − activation − communication − reserved
    visible_bytes = memory the driver reports − what it keeps for itself

The constants were read off the start-up logs of vLLM 0.19 on H100 (55 runs of 30 models; llm-d-planner's accuracy
tables, commit 30ec05f). Up to vLLM 0.2x CUDA graphs live outside the engine's fraction; they are reported apart and are
only required to fit in what the fraction leaves free.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from splitplan.catalogs.engines import Engine
from splitplan.catalogs.gpus import Gpu
from splitplan.catalogs.models import Model
from splitplan.catalogs.parameters import element_bytes
from splitplan.planner.latency.weights import StageCut, stage_share, weight_bytes_per_gpu

GIB = 2.0**30

DRIVER_SHARE = {"Ampere": 0.0106}
DEFAULT_DRIVER_SHARE = 0.0058
"""CUDA can allocate 79.19 of the 79.65 GiB that the driver reports for an H100, and 79.15 of an A100's 80."""

LOGITS_BYTES_PER_ENTRY = 14.0
"""Sampling over S sequences holds S·vocab logits in 16 bit, in fp32, and the sampler's two fp32 copies at once."""

LOGITS_PROFILE_SEQUENCES = 1024
"""The start-up profile run samples at the default slot limit of large GPUs, and never at more than the limit set."""

ACTIVATION_BYTES = 2.0  # activations are 16 bit

ACTIVATION_TENSORS = 2.0
"""Hidden states alive at the peak, in tensors of [max_num_batched_tokens, hidden]."""

ALLOCATOR_BYTES = 0.06 * GIB  # rounding and small tensors alive at the peak
SINGLE_GPU_BUFFER_BYTES = 0.25 * GIB  # workspaces of attention and BLAS libraries
TENSOR_PARALLEL_BUFFER_BYTES = 2.07 * GIB  # NCCL channels and custom all-reduce buffers at TP2
TENSOR_PARALLEL_BUFFER_PER_DOUBLING_BYTES = 0.09 * GIB
PIPELINE_BUFFER_BYTES = 0.07 * GIB

HYBRID_PADDING_RATIO = 1.25
"""Below this ratio of layer counts the hybrid allocator uses one group per kind instead of padding."""

GRAPH_BASE_BYTES = 0.45 * GIB  # CUDA graphs: a pool, and the nodes of every captured size and layer
GRAPH_PER_LAYER_BYTES = 0.0145 * GIB


@dataclass(frozen=True, slots=True)
class InstanceMemory:
    """Bytes on the fullest GPU of one instance, and the KV cache that is left on it."""

    total_bytes: float  # what CUDA can see
    budget_bytes: float  # the engine's fraction of it
    weights_bytes: float
    activation_bytes: float
    communication_bytes: float
    graph_bytes: float
    kv_bytes: float  # left for KV cache on each GPU; negative: it does not fit
    kv_bytes_per_token: float  # on one GPU, every layer charged (inside every window)
    kv_capacity_tokens: int  # of the instance, in whole blocks, as the engine logs it
    kv_bytes_per_sequence: float  # on one GPU, of one sequence of max_model_len, windows respected
    fits_one_sequence: bool

    @property
    def fits(self) -> bool:
        """Weights, buffers, graphs and one sequence of `max_model_len` fit."""
        return self.fits_one_sequence and self.budget_bytes - self.kv_bytes + self.graph_bytes < self.total_bytes


def instance_memory(
    model: Model,
    gpu: Gpu,
    engine: Engine,
    *,
    tp: int,
    pp: int,
    ep: int,
    weight_dtype: str,
    kv_dtype: str,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    memory_fraction: float,
    max_model_len: int,
    cut: StageCut | None = None,
) -> InstanceMemory:
    """Memory of one instance on its fullest GPU, or on a GPU of the stage `cut` of a pipeline that is not cut alike.

    `kv_capacity_tokens` is 0 when nothing is left for KV; a pipeline has that of its smallest stage.
    """
    total = gpu.memory_bytes * (1.0 - DRIVER_SHARE.get(gpu.architecture, DEFAULT_DRIVER_SHARE))
    weights = weight_bytes_per_gpu(model, tp=tp, pp=pp, ep=ep, weight_dtype=weight_dtype, cut=cut)
    activation = activation_bytes(
        model, tp=tp, ep=ep, max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens
    )
    communication = communication_bytes(tp=tp, pp=pp)
    kv_bytes = memory_fraction * total - weights - activation - communication
    per_token = kv_bytes_per_gpu(model, kv_dtype, 1, tp=tp, pp=pp, windows=False, cut=cut)
    blocks = math.floor(kv_bytes / (per_token * engine.block_tokens)) if kv_bytes > 0 and per_token > 0 else 0
    per_sequence = kv_bytes_per_gpu(model, kv_dtype, max_model_len, tp=tp, pp=pp, cut=cut)
    layers = model.num_layers / pp if cut is None else float(cut.layers)
    return InstanceMemory(
        total_bytes=total,
        budget_bytes=memory_fraction * total,
        weights_bytes=weights,
        activation_bytes=activation,
        communication_bytes=communication,
        graph_bytes=GRAPH_BASE_BYTES + GRAPH_PER_LAYER_BYTES * layers,
        kv_bytes=kv_bytes,
        kv_bytes_per_token=per_token,
        kv_capacity_tokens=blocks * engine.block_tokens,
        kv_bytes_per_sequence=per_sequence,
        fits_one_sequence=kv_bytes >= per_sequence,
    )


def activation_bytes(model: Model, *, tp: int, ep: int, max_num_seqs: int, max_num_batched_tokens: int) -> float:
    """Peak of the engine's start-up profile run: logits of every sampled sequence, hidden states, expert workspace.

    Logits are gathered to full vocabulary on every tensor rank, so tensor parallelism does not shrink them.
    """
    sequences = min(LOGITS_PROFILE_SEQUENCES, max(max_num_seqs, 1))
    logits = LOGITS_BYTES_PER_ENTRY * model.vocab_size * sequences
    hidden = ACTIVATION_TENSORS * ACTIVATION_BYTES * model.hidden_size * max_num_batched_tokens
    workspace = expert_workspace_bytes(model, tp=tp, ep=ep, tokens=max_num_batched_tokens)
    return logits + hidden + workspace + ALLOCATOR_BYTES


def expert_workspace_bytes(model: Model, *, tp: int, ep: int, tokens: int) -> float:
    """Intermediate buffers of a fused MoE layer: tokens·topk rows of the wider of (2·inter, hidden), and of inter."""
    if model.moe is None:
        return 0.0
    inter = model.moe.moe_intermediate_size / (1 if ep > 1 else tp)
    width = max(2.0 * inter, model.hidden_size) + inter
    return ACTIVATION_BYTES * tokens * model.moe.experts_per_token * width


def communication_bytes(*, tp: int, pp: int) -> float:
    """Workspaces and communication buffers outside the allocator, by parallelism."""
    if tp > 1:
        return TENSOR_PARALLEL_BUFFER_BYTES + TENSOR_PARALLEL_BUFFER_PER_DOUBLING_BYTES * (math.log2(tp) - 1)
    return PIPELINE_BUFFER_BYTES if pp > 1 else SINGLE_GPU_BUFFER_BYTES


def kv_bytes_per_gpu(
    model: Model,
    kv_dtype: str,
    tokens: int,
    *,
    tp: int,
    pp: int,
    windows: bool = True,
    cut: StageCut | None = None,
) -> float:
    """KV bytes of one sequence of `tokens` on one GPU of the fullest stage, or of the stage `cut`.

    Heads divide over tensor ranks down to one a rank; MLA's latent is replicated on every rank. `windows=False`
    charges every layer for every token, which is how engines state their capacity in tokens, and leaves out what a
    sequence holds beside its tokens (states of Mamba and delta-rule layers).
    """
    size = element_bytes(kv_dtype)
    total = 0.0
    for group, num_slots in zip(model.attention, kv_layer_slots(model), strict=True):
        seen = group.cached_tokens(tokens) if windows else tokens
        values = group.head_dim if group.kind == "mla" else 2 * group.kv_heads_per_rank(tp) * group.head_dim
        total += seen * num_slots * values * size * (group.kind != "state")
    if model.indexer is not None:
        total += tokens * model.indexer.cached_bytes_per_token
    share = stage_share(model, pp) if cut is None else cut.layers / model.num_layers
    return (total + (model.state_bytes / tp if windows else 0.0)) * share


def kv_layer_slots(model: Model) -> tuple[int, ...]:
    """Layers that the KV allocator makes room for, by attention group.

    A hybrid allocator cuts every kind into groups of as many layers as the rarest kind has and pads the last one:
    gemma-3-4b's 29 sliding and 5 full layers take 30 + 5 slots, as its logged KV bytes per token show.
    """
    counts = [group.num_layers for group in model.attention]
    kinds = [group.kind for group in model.attention]
    if len(set(kinds)) < 2 or "state" in kinds or max(counts) < HYBRID_PADDING_RATIO * min(counts):
        return tuple(counts)
    size = min(counts)
    return tuple(math.ceil(count / size) * size for count in counts)


def capacity_at_context(memory: InstanceMemory, model: Model, kv_dtype: str, context: int, *, tp: int, pp: int) -> int:
    """KV tokens the instance holds when every sequence has `context` tokens: more than logged where windows cut in."""
    per_sequence = kv_bytes_per_gpu(model, kv_dtype, context, tp=tp, pp=pp)
    if memory.kv_bytes <= 0 or per_sequence <= 0:
        return 0
    return math.floor(memory.kv_bytes / per_sequence) * context
