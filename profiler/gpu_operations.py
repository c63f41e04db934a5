"""Operations on a GPU. Dense GEMM and copies are torch's (cuBLAS, cudaMemcpy)."""

from __future__ import annotations

from typing import Any

from splitplan.profiler.operations import Operation, rotating
from splitplan.profiler.points import Point
from splitplan.profiler.torch_operations import TorchWorkbench

L2_ROTATIONS = 5  # buffers repeat after five times the L2: the data of one call is gone before the next needs it


class GpuWorkbench(TorchWorkbench):
    """Builds operations on one GPU."""

    def __init__(self, torch: Any, device: str, l2_bytes: int) -> None:
        super().__init__(torch, device, L2_ROTATIONS * l2_bytes)

    def _send(self, point: Point) -> Operation:
        """A copy within the GPU, to or from pinned host memory, or to the next GPU of this host."""
        link, torch = point.text("link"), self._torch
        if link == "device-to-device":
            return super()._send(point)
        shape = (point["num_bytes"] // 2,)
        host = torch.randn(shape).to(torch.bfloat16).pin_memory() if link != "peer-to-peer" else None
        here = self._pool.random(shape, torch.bfloat16)
        if link == "peer-to-peer":
            index = (torch.device(self._device).index + 1) % torch.cuda.device_count()
            out, source = torch.empty_like(here, device=f"cuda:{index}"), here
        elif link == "host-to-device":
            out, source = here, host
        else:
            out, source = torch.empty(shape, dtype=torch.bfloat16, pin_memory=True), here
        call = rotating(lambda tensor: out.copy_(tensor, non_blocking=True), [source])
        return self._operation(call, 1, out)
