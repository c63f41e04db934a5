"""Which chip a kernel is launched on, and the limits of a block on it. Needs neither torch nor triton."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Chip:
    """A compute capability (CUDA C++ Programming Guide, technical specifications per compute capability)."""

    name: str  # "sm_90"
    shared_memory_per_block_bytes: int  # with opt-in
    sm_count: int  # of the part that splitplan plans for


CHIPS: Mapping[str, Chip] = {
    "sm_80": Chip("sm_80", 163 * 1024, 108),  # A100
    "sm_89": Chip("sm_89", 99 * 1024, 142),  # L40S, L4
    "sm_90": Chip("sm_90", 227 * 1024, 132),  # H100, H200, H20
    "sm_100": Chip("sm_100", 227 * 1024, 148),  # B200
}

DEFAULT_CHIP = "sm_80"  # for a capability that has no column of its own: the smallest tiles that fit nearly anywhere

_chosen: ContextVar[str | None] = ContextVar("chip", default=None)


@contextmanager
def use_chip(name: str) -> Iterator[Chip]:
    """Launch as on this chip, whatever the tensors' device says: for compiling without one."""
    token = _chosen.set(CHIPS[name].name)
    try:
        yield CHIPS[name]
    finally:
        _chosen.reset(token)


def chip_of(tensor: Any) -> Chip:
    """The chip that a tensor is on; the default where it is on none or on one without a column."""
    chosen = _chosen.get()
    if chosen is not None:
        return CHIPS[chosen]
    if tensor.device.type != "cuda":
        return CHIPS[DEFAULT_CHIP]
    import torch

    major, minor = torch.cuda.get_device_capability(tensor.device)
    name = {(8, 0): "sm_80", (8, 6): "sm_89", (8, 9): "sm_89", (9, 0): "sm_90"}.get((major, minor))
    return CHIPS[name or ("sm_100" if major == 10 else DEFAULT_CHIP)]
