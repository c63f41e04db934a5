"""How many KV tokens Helix's nodes hold: what its objective and its table leave out.

Every node of a pipeline keeps KV for the layers it has, of every sequence in the pipeline; the fullest node decides.
Layers are 16 bit, cards those of Helix (ASPLOS 2025): T4 16 GB, L4 24 GB, A100 40 GB, of which 0.9 is used.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.published import cases
from benchmarks.published.cases import LayerTable
from splitplan.planner.columns.column import Column

MEMORY_BYTES = {"T4": 16e9, "L4": 24e9, "A100": 40e9}
MEMORY_FRACTION = 0.9


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer of the model."""

    weight_bytes: float
    kv_bytes_per_token: float


LAYERS = {
    cases.HELIX_10.name: Layer(2 * 32.5e9 / 60, 2 * 6656 * 2),  # LLaMA-30B, MHA of width 6,656
    cases.HELIX_24.name: Layer(2 * 69e9 / 80, 2 * 8 * 128 * 2),  # Llama-2-70B, 8 KV heads of 128
}


def resident_tokens(table: LayerTable, column: Column) -> int:
    """KV tokens that the fullest node of a pipeline leaves room for."""
    layer = LAYERS[table.name]
    rooms = [
        (MEMORY_FRACTION * MEMORY_BYTES[stage.gpu] - stage.layers * layer.weight_bytes)
        / (stage.layers * layer.kv_bytes_per_token)
        for stage in column.stages
    ]
    return int(max(min(rooms), 0.0))
