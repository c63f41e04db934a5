"""Block sizes, warps and stages of each kernel on each chip, in the open: nothing is tuned behind the user's back.

Every entry is compiled for its chip in the tests, where it must fit the shared memory, spill nothing and use tensor
cores. None has been timed on a GPU yet: they are sensible starting points, and docs/profiling.md says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from splitplan.kernels.chips import Chip


@dataclass(frozen=True, slots=True)
class Config:
    """One launch configuration. `block_m` counts query rows (or output rows), `block_n` keys (or output columns)."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int
    block_k: int = 0  # of matrix products only


PREFILL: Mapping[tuple[str, int], Config] = {
    ("sm_80", 64): Config(128, 64, 8, 3),
    ("sm_80", 128): Config(128, 32, 8, 3),  # 128 × 64 spills
    ("sm_80", 256): Config(64, 32, 8, 2),
    ("sm_89", 64): Config(128, 64, 8, 3),
    ("sm_89", 128): Config(128, 64, 8, 2),
    ("sm_89", 256): Config(64, 32, 8, 2),
    ("sm_90", 64): Config(128, 128, 8, 3),
    ("sm_90", 128): Config(128, 128, 8, 2),
    ("sm_90", 256): Config(64, 64, 8, 2),
    ("sm_100", 64): Config(128, 128, 8, 3),
    ("sm_100", 128): Config(128, 128, 8, 2),
    ("sm_100", 256): Config(64, 64, 8, 2),
}

DECODE: Mapping[tuple[str, int], Config] = {
    ("sm_80", 64): Config(16, 128, 4, 3),
    ("sm_80", 128): Config(16, 64, 4, 3),
    ("sm_80", 256): Config(16, 32, 4, 3),
    ("sm_89", 64): Config(16, 64, 4, 3),
    ("sm_89", 128): Config(16, 32, 4, 3),
    ("sm_89", 256): Config(16, 32, 4, 2),
    ("sm_90", 64): Config(16, 128, 4, 3),
    ("sm_90", 128): Config(16, 64, 4, 4),
    ("sm_90", 256): Config(16, 32, 4, 3),
    ("sm_100", 64): Config(16, 128, 4, 3),
    ("sm_100", 128): Config(16, 64, 4, 4),
    ("sm_100", 256): Config(16, 32, 4, 3),
}

MLA_DECODE: Mapping[str, Config] = {
    "sm_80": Config(16, 32, 4, 2),
    "sm_89": Config(16, 16, 4, 2),
    "sm_90": Config(16, 32, 4, 3),
    "sm_100": Config(16, 32, 4, 3),
}

GROUPED_GEMM: Mapping[tuple[str, bool], Config] = {  # (chip, many tokens per expert)
    ("sm_80", False): Config(16, 128, 4, 4, block_k=64),
    ("sm_80", True): Config(128, 128, 8, 3, block_k=64),
    ("sm_89", False): Config(16, 64, 4, 4, block_k=64),
    ("sm_89", True): Config(64, 128, 4, 3, block_k=64),
    ("sm_90", False): Config(16, 128, 4, 4, block_k=64),
    ("sm_90", True): Config(128, 128, 8, 4, block_k=64),
    ("sm_100", False): Config(16, 128, 4, 4, block_k=64),
    ("sm_100", True): Config(128, 128, 8, 4, block_k=64),
}

FEW_TOKENS_PER_EXPERT = 32  # up to here the small tile of GROUPED_GEMM runs


def head_block(head_dim: int) -> int:
    """The power of two that holds a head: 64, 128 or 256 in the tables; smaller heads run in tests."""
    block = 16
    while block < head_dim:
        block *= 2
    return block


def prefill_config(chip: Chip, head_dim: int) -> Config:
    """Tile of the prefill attention."""
    return PREFILL[chip.name, max(64, min(head_block(head_dim), 256))]


def decode_config(chip: Chip, head_dim: int) -> Config:
    """Tile of the decode attention; `block_m` is the least number of query heads that a tensor core takes."""
    return DECODE[chip.name, max(64, min(head_block(head_dim), 256))]


def grouped_gemm_config(chip: Chip, rows_per_expert: float) -> Config:
    """Tile of the experts' products."""
    return GROUPED_GEMM[chip.name, rows_per_expert > FEW_TOKENS_PER_EXPERT]
