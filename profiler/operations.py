"""What a point runs: an operation on prepared buffers, and the pool its buffers come from.

Buffers hold random numbers, never zeros or constants (chips run those 13–15 % faster), and rotate through more memory
than the caches hold wherever serving would find them cold: weights and KV cache always, fresh activations never.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from splitplan.profiler.points import Point

MAX_ROTATIONS = 512  # the smallest caches under measurement still exceed an L2 together


@dataclass(frozen=True, slots=True)
class Operation:
    """A point made ready: `call(i)` runs it once on the i-th set of buffers."""

    call: Callable[[int], Any]
    rotations: int  # after how many calls the buffers repeat
    cache: str  # "cold" or "warm": how its large operands are found
    poison: Callable[[], None]  # fills the outputs with NaN
    is_finite: Callable[[], bool]  # whether every output was written


class Workbench(Protocol):
    """Builds operations for one kind of device."""

    def prepare(self, point: Point) -> Operation:
        """Buffers and callable of a point. Whatever it raises becomes that point's recorded failure."""
        ...

    def is_alive(self) -> bool:
        """False when the device fails even at nothing, as after an illegal memory access."""
        ...


class Pool:
    """One block of random numbers per dtype on a device, handed out as views that move on through it.

    `rotation_bytes` is how much must pass before a buffer may repeat: several times the last-level cache.
    """

    def __init__(self, torch: Any, device: str, rotation_bytes: int, seed: int = 0) -> None:
        self._torch = torch
        self._device = device
        self._rotation_bytes = rotation_bytes
        self._generator = torch.Generator(device=device).manual_seed(seed)
        self._blocks: dict[Any, Any] = {}

    def views(self, shape: tuple[int, ...], dtype: Any) -> list[Any]:
        """Tensors of `shape` that together exceed `rotation_bytes`, at most MAX_ROTATIONS of them; at least one."""
        count = 1
        for size in shape:
            count *= size
        wanted = max(count, self._rotation_bytes // dtype.itemsize)
        block = self._block(dtype, wanted)
        stride = -(-count // 128) * 128
        number = max(1, min(MAX_ROTATIONS, wanted // stride))
        return [block[index * stride : index * stride + count].view(shape) for index in range(number)]

    def random(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """A tensor of its own, for operands that are warm or that the operation writes to."""
        count = 1
        for size in shape:
            count *= size
        return self._fill(count, dtype).view(shape)

    def _block(self, dtype: Any, count: int) -> Any:
        block = self._blocks.get(dtype)
        if block is None or block.numel() < count + 128:
            self._blocks[dtype] = None  # let go of the smaller one before the larger is made
            self._blocks[dtype] = block = self._fill(count + 128, dtype)
        return block

    def _fill(self, count: int, dtype: Any) -> Any:
        """Random numbers, a million of which repeat: as good for timing, and quick to make."""
        torch = self._torch
        seed_count = min(count, 1 << 20)
        if dtype == torch.uint8:  # e4m3 codes: below 0x78, so none is NaN
            seed = torch.randint(0, 120, (seed_count,), dtype=dtype, device=self._device, generator=self._generator)
        else:
            seed = torch.randn(seed_count, generator=self._generator, device=self._device).to(dtype)
        return seed.repeat(-(-count // seed_count))[:count]


def rotating(call: Callable[..., Any], *operands: list[Any]) -> Callable[[int], Any]:
    """`call` on the i-th of each list of operands, starting over at each list's end."""
    return lambda index: call(*(operand[index % len(operand)] for operand in operands))


def ignoring_index(call: Callable[[], Any]) -> Callable[[int], Any]:
    """`call` for every repetition alike: its operands are warm."""
    return lambda _: call()
