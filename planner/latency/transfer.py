"""Moving a prompt's KV cache from a prefill instance to a decode instance.

    transfer_s = latency_s + num_bytes / bytes_per_s + per_descriptor_s · num_descriptors / parallel_ranks

A descriptor is one contiguous piece: a block of one layer's K or V as one pair of ranks sees it. Small blocks mean many
descriptors, which is why bandwidth alone predicts several times too little for 16-token blocks. Engines that send layer
by layer hide the transfer behind the prefill's own compute, all but the last layer, while the link keeps up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from splitplan.catalogs.models import AttentionGroup, Model
from splitplan.catalogs.parameters import element_bytes


@dataclass(frozen=True, slots=True)
class KvTransfer:
    """What has to move for one request, over all ranks together."""

    num_bytes: float
    num_descriptors: int
    num_layers: int
    parallel_ranks: int  # rank pairs that post their descriptors side by side

    def seconds(self, bytes_per_s: float, *, latency_s: float = 0.0, per_descriptor_s: float = 0.0) -> float:
        """Seconds of the whole transfer on a path that gives this request `bytes_per_s` (one direction, all ranks)."""
        if self.num_bytes == 0:
            return 0.0
        return latency_s + self.num_bytes / bytes_per_s + per_descriptor_s * self.num_descriptors / self.parallel_ranks

    def exposed_seconds(self, transfer_s: float, prefill_s: float) -> float:
        """Seconds of `transfer_s` that end after the prefill when each layer is sent as soon as it is computed.

        Layer i of L is ready at i·prefill_s/L and takes transfer_s/L: the last layer always shows, and what the link
        cannot carry during the prefill shows too.
        """
        if self.num_layers == 0:
            return transfer_s
        share = 1.0 / self.num_layers
        return max(transfer_s * share, transfer_s - prefill_s * (1.0 - share))


def kv_transfer(
    model: Model, kv_dtype: str, tokens: int, *, prefill_tp: int, decode_tp: int, block_tokens: int
) -> KvTransfer:
    """Bytes and descriptors of `tokens` prompt tokens; whole blocks move, of a sliding window only what it still sees.

    With more tensor ranks than KV heads the heads are replicated, and each decode rank fetches its own copy.
    """
    num_bytes = 0.0
    descriptors = 0
    layers = 0
    for group in model.attention:
        if group.kind == "state":
            continue
        blocks = math.ceil(group.cached_tokens(tokens) / block_tokens)
        pieces, copies = _pieces_and_copies(group, prefill_tp, decode_tp)
        per_token = group.cached_values_per_token * element_bytes(kv_dtype)
        num_bytes += blocks * block_tokens * per_token * group.num_layers * copies
        descriptors += blocks * pieces * group.num_layers
        layers += group.num_layers
    return KvTransfer(num_bytes, descriptors, layers, max(prefill_tp, decode_tp))


def _pieces_and_copies(group: AttentionGroup, prefill_tp: int, decode_tp: int) -> tuple[int, float]:
    """Contiguous pieces of one block of one layer over all rank pairs, and how often its bytes are fetched."""
    if group.kind == "mla":
        return decode_tp, float(decode_tp)
    copies = max(1.0, decode_tp / group.num_kv_heads)
    return 2 * max(prefill_tp, decode_tp), copies
