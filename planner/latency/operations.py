"""The operations of one pipeline stage: which kernels an engine launches for a step, and what each takes.

One dense layer runs  norm · QKV GEMM · rope · attention · output GEMM · all-reduce · norm · gate-up GEMM · activation ·
down GEMM · all-reduce.  With MLA the profile's module covers norm to output projection; with experts the MLP is router,
fused experts and shared experts. Attention depends on contexts and stands in tables of its own (build.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from splitplan.catalogs.links import Link
from splitplan.catalogs.models import AttentionGroup, Model
from splitplan.planner.latency.weights import FP8_FEED_FORWARD, stage_share
from splitplan.profiler.profile import Timed

FloatArray = NDArray[np.float64]

ACTIVATION_BYTES = 2.0
"""Activations are 16 bit between operations."""

LARGEST_GRAPH_TOKENS = 512

SAMPLER_PASSES = 6.0
"""Times the sampler streams the fp32 logits: conversion, penalties, temperature, soft-max, top-p, arg-max."""


class OpSource(Protocol):
    """Operation times, as `profiler.query.OpTimes` gives them. Arguments broadcast; heads are per rank."""

    def gemm(self, m: Any, n: Any, k: Any, dtype: str) -> Timed:
        """[m, k] × [k, n]."""

    def prefill_attention(
        self,
        new: Any,
        past: Any,
        *,
        batch: Any = 1,
        heads: int,
        kv_heads: int,
        head_dim: int,
        window: int | None = None,
        kv_dtype: str,
    ) -> Timed:
        """Causal attention of `new` tokens that see `past` earlier ones."""

    def decode_attention(
        self,
        batch: Any,
        context: Any,
        *,
        heads: int,
        kv_heads: int,
        head_dim: int,
        window: int | None = None,
        kv_dtype: str,
    ) -> Timed:
        """One new token of each of `batch` sequences against `context` cached tokens."""

    def mla_prefill(
        self, new: Any, past: Any, *, heads: int, hidden: int, mla: Any, dtype: str, kv_dtype: str
    ) -> Timed:
        """The MLA module over a prompt chunk, projections included."""

    def mla_decode(
        self, batch: Any, context: Any, *, heads: int, hidden: int, mla: Any, dtype: str, kv_dtype: str
    ) -> Timed:
        """The MLA module over one token of each sequence, projections included."""

    def moe(
        self,
        tokens: Any,
        *,
        hidden: int,
        inter: int,
        topk: int,
        num_experts: int,
        tp: int,
        ep: int,
        dtype: str,
        distribution: str = "power_law",
    ) -> Timed:
        """Fused experts of one layer on one rank."""

    def all_reduce(self, num_bytes: Any, ranks: int, link: Link, *, how: str = "graph") -> Timed:
        """Sum over `ranks` GPUs; `how` is "graph" (replayed) or "eager" (launched)."""

    def all_gather(self, num_bytes: Any, ranks: int, link: Link) -> Timed:
        """Gather; `num_bytes` is the full result."""

    def all_to_all(self, num_bytes: Any, ranks: int, link: Link) -> Timed:
        """Exchange; `num_bytes` leave each rank."""

    def send(self, num_bytes: Any, ranks: int, link: Link) -> Timed:
        """Point to point."""

    def elementwise(self, num_bytes: Any) -> Timed:
        """A kernel that streams `num_bytes` through memory."""


Position = Literal["", "first", "middle", "last"]


@dataclass(frozen=True, slots=True)
class Stage:
    """What one pipeline stage of one instance runs, per GPU."""

    model: Model
    tp: int
    pp: int
    ep: int
    weight_dtype: str
    kv_dtype: str
    layers: int = 0  # of this one stage; 0: of the fullest of `pp` stages that are cut alike
    position: Position = ""  # of this one stage; "": any, as if it did what the first and the last do

    @property
    def layer_share(self) -> float:
        """The stage's layers as a share of all; of the fullest stage where they are cut alike."""
        return self.layers / self.model.num_layers if self.layers else stage_share(self.model, self.pp)

    @property
    def embeddings(self) -> float:
        """Token embeddings of a step: on the first stage, or a part of one where the stage is any."""
        return float(self.position == "first") if self.position else 1.0 / self.pp

    @property
    def num_layers(self) -> float:
        """Layers of the stage."""
        return self.model.num_layers * self.layer_share

    @property
    def data_parallel(self) -> int:
        """Ranks that run attention data parallel and share their experts: experts spread over more than `tp` ranks."""
        return max(1, self.ep // self.tp)

    @property
    def linear_dtype(self) -> str:
        """Dtype of dense GEMMs; mxfp4 models keep these in 16 bit."""
        return {"mxfp4": "bf16", FP8_FEED_FORWARD: "fp8"}.get(self.weight_dtype, self.weight_dtype)

    @property
    def attention_dtype(self) -> str:
        """Dtype of attention's GEMMs."""
        return "bf16" if self.weight_dtype == FP8_FEED_FORWARD else self.linear_dtype

    def heads(self, group: AttentionGroup) -> int:
        """Query heads of a rank."""
        return max(1, group.num_heads // self.tp)

    def kv_heads(self, group: AttentionGroup) -> int:
        """KV heads of a rank; replicated when there are fewer than ranks."""
        return max(1, group.kv_heads_per_rank(self.tp))


@dataclass(frozen=True, slots=True)
class Operation:
    """One kernel of the stage: how often it runs in a step, and its time at each queried size."""

    name: str
    count: float
    timed: Timed

    @property
    def seconds(self) -> FloatArray:
        """All its runs in one step."""
        return self.count * self.timed.seconds


def token_operations(stage: Stage, ops: OpSource, link: Link, tokens: FloatArray) -> Iterator[Operation]:
    """Everything whose time depends only on the number of tokens in the step."""
    model = stage.model
    hidden_bytes = tokens * model.hidden_size * ACTIVATION_BYTES
    yield Operation("embedding", stage.embeddings, ops.elementwise(2 * hidden_bytes))
    for group in model.attention:
        yield from _projection_operations(stage, ops, group, tokens)
    yield from _mlp_operations(stage, ops, link, tokens)
    layers = stage.num_layers
    norms = ops.elementwise(4 * hidden_bytes)  # reads and writes the hidden state and the residual
    yield Operation("norm", 2 * layers, norms)
    if stage.tp > 1:
        yield Operation(
            "all-reduce", 2 * layers + stage.embeddings, _all_reduce(stage, ops, link, tokens, hidden_bytes)
        )


def _all_reduce(stage: Stage, ops: OpSource, link: Link, tokens: FloatArray, num_bytes: FloatArray) -> Timed:
    """Steps up to the largest captured graph replay their collectives, longer ones launch them."""
    graph = ops.all_reduce(num_bytes, stage.tp, link)
    eager = ops.all_reduce(num_bytes, stage.tp, link, how="eager")
    replayed = tokens <= LARGEST_GRAPH_TOKENS
    return Timed(np.where(replayed, graph.seconds, eager.seconds), np.where(replayed, graph.basis, eager.basis))


def _projection_operations(
    stage: Stage, ops: OpSource, group: AttentionGroup, tokens: FloatArray
) -> Iterator[Operation]:
    if group.kind in ("mla", "state"):
        return  # in the module's own table
    count = group.num_layers * stage.layer_share
    hidden, dtype = stage.model.hidden_size, stage.attention_dtype
    query = stage.heads(group) * group.head_dim
    qkv = query + 2 * stage.kv_heads(group) * group.head_dim
    yield Operation("qkv gemm", count, ops.gemm(tokens, qkv, hidden, dtype))
    yield Operation("rope", count, ops.elementwise(2 * tokens * qkv * ACTIVATION_BYTES))
    yield Operation("output gemm", count, ops.gemm(tokens, hidden, query, dtype))


def _mlp_operations(stage: Stage, ops: OpSource, link: Link, tokens: FloatArray) -> Iterator[Operation]:
    model, share = stage.model, stage.layer_share
    moe_layers = model.moe.num_moe_layers if model.moe else 0
    dense_layers = model.num_dense_mlp_layers * share
    if dense_layers:
        yield from _dense_mlp(stage, ops, "mlp", model.intermediate_size, dense_layers, tokens)
    if model.moe is None:
        return
    moe = model.moe
    count = moe_layers * share
    yield Operation("router", count, ops.gemm(tokens, moe.num_experts, model.hidden_size, "bf16"))
    yield Operation(
        "experts",
        count,
        ops.moe(
            tokens * stage.data_parallel,  # every rank brings as many
            hidden=moe.latent_size or model.hidden_size,
            inter=moe.moe_intermediate_size,
            topk=moe.experts_per_token,
            num_experts=moe.num_experts,
            tp=stage.tp if stage.ep == 1 else max(1, stage.tp // stage.ep),
            ep=stage.ep,
            dtype=stage.weight_dtype,
        ),
    )
    if stage.data_parallel > 1:  # tokens travel there and back, once to each rank that holds one of their experts
        reached = stage.ep * (1.0 - (1.0 - 1.0 / stage.ep) ** moe.experts_per_token)
        sent = tokens * reached * model.hidden_size * ACTIVATION_BYTES / stage.tp
        yield Operation("expert all-to-all", 2 * count, ops.all_to_all(sent, stage.ep, link))
    if moe.num_shared_experts:
        yield from _dense_mlp(stage, ops, "shared experts", moe.shared_width, count, tokens)


def _dense_mlp(
    stage: Stage, ops: OpSource, name: str, inter: int, count: float, tokens: FloatArray
) -> Iterator[Operation]:
    hidden, dtype = stage.model.hidden_size, stage.linear_dtype
    width = max(1, inter // stage.tp)
    matrices = 2 if stage.model.gated_mlp else 1
    yield Operation(f"{name} up gemm", count, ops.gemm(tokens, matrices * width, hidden, dtype))
    yield Operation(f"{name} activation", count, ops.elementwise((matrices + 1) * tokens * width * ACTIVATION_BYTES))
    yield Operation(f"{name} down gemm", count, ops.gemm(tokens, hidden, width, dtype))


def sequence_operations(stage: Stage, ops: OpSource, link: Link, sequences: FloatArray) -> Iterator[Operation]:
    """LM head and sampling of the sequences that get a token in this step; on the last stage, which is the slowest."""
    if stage.position in ("first", "middle"):
        return
    model = stage.model
    vocab = math.ceil(model.vocab_size / stage.tp)
    yield Operation("lm head", 1.0, ops.gemm(sequences, vocab, model.hidden_size, "bf16"))
    if stage.tp > 1:
        logits = sequences * model.vocab_size * ACTIVATION_BYTES
        yield Operation("logits gather", 1.0, ops.all_gather(logits, stage.tp, link))
    yield Operation("sampling", 1.0, ops.elementwise(SAMPLER_PASSES * sequences * model.vocab_size * 4.0))


def prefill_attention_operations(stage: Stage, ops: OpSource, new: FloatArray, past: FloatArray) -> Iterator[Operation]:
    """Attention of one sequence's chunk of `new` tokens over `past` cached ones, every layer of the stage."""
    for group in stage.model.attention:
        count = group.num_layers * stage.layer_share
        if group.kind == "mla":
            yield Operation(
                "mla prefill",
                count,
                ops.mla_prefill(
                    new,
                    past,
                    heads=stage.heads(group),
                    hidden=stage.model.hidden_size,
                    mla=stage.model.mla,
                    dtype=stage.linear_dtype,
                    kv_dtype=stage.kv_dtype,
                ),
            )
        elif group.kind != "state":
            yield Operation(
                f"{group.kind} prefill attention",
                count,
                ops.prefill_attention(
                    new,
                    past,
                    heads=stage.heads(group),
                    kv_heads=stage.kv_heads(group),
                    head_dim=group.head_dim,
                    window=group.window_tokens,
                    kv_dtype=stage.kv_dtype,
                ),
            )


def decode_attention_operations(
    stage: Stage, ops: OpSource, batch: FloatArray, context: FloatArray
) -> Iterator[Operation]:
    """Attention of `batch` decoding sequences at a mean `context`, every layer of the stage."""
    for group in stage.model.attention:
        count = group.num_layers * stage.layer_share
        if group.kind == "mla":
            yield Operation(
                "mla decode",
                count,
                ops.mla_decode(
                    batch,
                    context,
                    heads=stage.heads(group),
                    hidden=stage.model.hidden_size,
                    mla=stage.model.mla,
                    dtype=stage.linear_dtype,
                    kv_dtype=stage.kv_dtype,
                ),
            )
        elif group.kind != "state":
            yield Operation(
                f"{group.kind} decode attention",
                count,
                ops.decode_attention(
                    batch,
                    context,
                    heads=stage.heads(group),
                    kv_heads=stage.kv_heads(group),
                    head_dim=group.head_dim,
                    window=group.window_tokens,
                    kv_dtype=stage.kv_dtype,
                ),
            )
