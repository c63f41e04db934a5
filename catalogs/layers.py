"""The kinds of layers a model is made of, as dimensions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

AttentionKind = Literal["full", "sliding", "mla", "state"]


@dataclass(frozen=True, slots=True)
class AttentionGroup:
    """Layers that attend in the same way.

    The groups add up to the layers that mix tokens: all, but for models whose feed-forward layers stand alone
    (Nemotron-H).
    """

    num_layers: int
    kind: AttentionKind  # "state": linear or SSM layers, constant memory
    num_heads: int
    num_kv_heads: int  # 1 for "mla", 0 for "state"
    head_dim: int  # for "mla" the width of the cached entry: kv_lora_rank + qk_rope_head_dim
    window_tokens: int | None = None
    shares_key_and_value: bool = False  # one projection gives keys and values; both are cached
    gated_output: bool = False  # the query projection is twice as wide and gates the output

    @property
    def cached_values_per_token(self) -> int:
        """Elements one layer caches per token."""
        if self.kind == "state":
            return 0
        return self.head_dim if self.kind == "mla" else 2 * self.num_kv_heads * self.head_dim

    def kv_heads_per_rank(self, tensor_parallel: int) -> int:
        """KV heads on each rank; replicated when there are more ranks than heads. MLA's latent is on every rank."""
        return -(-self.num_kv_heads // tensor_parallel) if self.num_kv_heads else 0

    def cached_tokens(self, tokens: float) -> float:
        """Tokens of a sequence of `tokens` that stay cached."""
        return tokens if self.window_tokens is None else min(tokens, self.window_tokens)


@dataclass(frozen=True, slots=True)
class Mla:
    """Multi-head latent attention: what is cached is one latent and one rotary key per token."""

    q_lora_rank: int | None
    kv_lora_rank: int
    qk_rope_head_dim: int
    qk_nope_head_dim: int
    v_head_dim: int


@dataclass(frozen=True, slots=True)
class Moe:
    """Mixture-of-experts feed-forward layers."""

    num_experts: int
    experts_per_token: int
    num_shared_experts: int
    moe_intermediate_size: int
    num_moe_layers: int
    first_dense_layers: int
    shared_intermediate_size: int | None = None  # of one shared expert, where it differs
    latent_size: int | None = None  # experts work in this width instead of the hidden size

    @property
    def shared_width(self) -> int:
        """Intermediate size of all shared experts together."""
        return self.num_shared_experts * (self.shared_intermediate_size or self.moe_intermediate_size)


@dataclass(frozen=True, slots=True)
class Mamba2:
    """Mamba-2 mixers: a constant state per sequence instead of a KV cache."""

    num_heads: int
    head_dim: int
    num_groups: int
    state_size: int
    conv_kernel: int

    @property
    def state_bytes(self) -> int:
        """One layer's state of one sequence: the SSM state in fp32 and the convolution's window in 16 bits."""
        channels = self.num_heads * self.head_dim + 2 * self.num_groups * self.state_size
        return self.num_heads * self.head_dim * self.state_size * 4 + channels * (self.conv_kernel - 1) * 2

    def parameters(self, hidden_size: int) -> int:
        """One mixer: input and output projections and the convolution."""
        inner, shared = self.num_heads * self.head_dim, 2 * self.num_groups * self.state_size
        return (
            hidden_size * (2 * inner + shared + self.num_heads)
            + inner * hidden_size
            + (inner + shared) * self.conv_kernel
        )


@dataclass(frozen=True, slots=True)
class Indexer:
    """The lightning indexer of sparse MLA: queries attend to the `topk_tokens` best keys.

    Its keys are cached in fp8.
    """

    num_layers: int  # layers that own one
    topk_tokens: int
    num_heads: int
    head_dim: int

    @property
    def cached_bytes_per_token(self) -> int:
        """head_dim fp8 values and one fp32 scale per layer."""
        return self.num_layers * (self.head_dim + 4)


@dataclass(frozen=True, slots=True)
class DeltaNet:
    """Gated delta-rule mixers (Qwen3-Next, Qwen3.5): a constant state per sequence instead of a KV cache."""

    num_key_heads: int
    num_value_heads: int
    key_head_dim: int
    value_head_dim: int
    conv_kernel: int

    @property
    def _widths(self) -> tuple[int, int]:
        return self.num_key_heads * self.key_head_dim, self.num_value_heads * self.value_head_dim

    @property
    def state_bytes(self) -> int:
        """One layer's state of one sequence.

        A matrix per value head in fp32 and the convolution's window in 16 bits.
        """
        keys, values = self._widths
        matrix = self.num_value_heads * self.key_head_dim * self.value_head_dim * 4
        return matrix + (2 * keys + values) * (self.conv_kernel - 1) * 2

    def parameters(self, hidden_size: int) -> int:
        """One mixer: queries, keys, values and gate, the two scalars per head, the convolution and the output."""
        keys, values = self._widths
        projections = hidden_size * (2 * keys + 2 * values + 2 * self.num_value_heads)
        return projections + (2 * keys + values) * self.conv_kernel + values * hidden_size
