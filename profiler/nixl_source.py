"""What NIXL, the transfer library of vLLM, SGLang and Dynamo, reaches on this host: bytes in descriptors of one size.

Two agents in this process, each with a registered buffer; one reads from the other, as a decode instance pulls KV. The
size of a descriptor decides nearly everything (a page of one layer is 16–64 KiB), so each size is a row of its own:
family "send", link "nixl", host "dram" or "vram", how "descriptors-<bytes>".
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import logging
import os
import time
from typing import Any

from splitplan.catalogs.errors import ProfileError
from splitplan.profiler.points import Point
from splitplan.profiler.runners import Run
from splitplan.profiler.timer import CpuTimer, Effort

TRANSFER_LIMIT_S = 30.0


def is_installed() -> bool:
    """Whether the nixl package is there."""
    return importlib.util.find_spec("nixl") is not None


def _quiet_api() -> Any:
    """The library; what it says is not ours to print: its logger writes to standard output."""
    os.environ.setdefault("NIXL_LOG_LEVEL", "ERROR")
    api = importlib.import_module("nixl._api")
    logging.getLogger("nixl").setLevel(logging.ERROR)
    return api


class NixlRunner:
    """Times reads between two agents of this process; memory of torch tensors on one or two devices."""

    def __init__(self, torch: Any, source: str, target: str, api: Any = None) -> None:
        self._torch = torch
        self._devices = (source, target)
        self._api = api
        self._agents: tuple[Any, Any] | None = None
        self._remote = ""
        self._buffers: tuple[Any, ...] = ()
        self._registered: list[Any] = []

    def run(self, point: Point, effort: Effort) -> Run:
        """Times one transfer of `num_bytes` in descriptors; checks that the bytes have arrived."""
        descriptor_bytes = int(point.text("how").removeprefix("descriptors-"))
        num_bytes = point["num_bytes"]
        reader = self._prepare(num_bytes)
        handle = reader.initialize_xfer(
            "READ", *(self._descriptors(side, num_bytes, descriptor_bytes) for side in (1, 0)), self._remote
        )
        try:
            self._buffers[1].zero_()
            self._transfer(handle)
            if not self._torch.equal(self._buffers[0].cpu()[:num_bytes], self._buffers[1].cpu()[:num_bytes]):
                raise ProfileError("NIXL reported done before the bytes were there")
            return Run(CpuTimer().measure(lambda _: self._transfer(handle), effort), "cold")
        finally:
            reader.release_xfer_handle(handle)

    def _prepare(self, num_bytes: int) -> Any:
        """The reading agent, with buffers of at least `num_bytes` registered on both sides."""
        api = self._api or _quiet_api()
        if self._agents is None:
            self._agents = (api.nixl_agent("splitplan-source"), api.nixl_agent("splitplan-target"))
        if not self._buffers or self._buffers[0].numel() < num_bytes:
            self._release()
            torch = self._torch
            source = torch.randint(0, 256, (num_bytes,), dtype=torch.uint8, device=self._devices[0])
            self._buffers = (source, torch.zeros(num_bytes, dtype=torch.uint8, device=self._devices[1]))
            self._registered = [
                agent.register_memory(buffer) for agent, buffer in zip(self._agents, self._buffers, strict=True)
            ]
            self._remote = self._agents[1].add_remote_agent(self._agents[0].get_agent_metadata())
        return self._agents[1]

    def _descriptors(self, side: int, num_bytes: int, descriptor_bytes: int) -> Any:
        assert self._agents is not None
        buffer = self._buffers[side]
        index = buffer.device.index or 0
        pieces = [
            (buffer.data_ptr() + start, min(descriptor_bytes, num_bytes - start), index)
            for start in range(0, num_bytes, descriptor_bytes)
        ]
        return self._agents[1].get_xfer_descs(pieces, "VRAM" if buffer.is_cuda else "DRAM")

    def _transfer(self, handle: Any) -> None:
        assert self._agents is not None
        reader = self._agents[1]
        limit_s = time.monotonic() + TRANSFER_LIMIT_S
        state = reader.transfer(handle)
        while state != "DONE":
            if state == "ERR" or time.monotonic() > limit_s:
                raise ProfileError(f"NIXL transfer ended in state {state}")
            state = reader.check_xfer_state(handle)

    def _release(self) -> None:
        for agent, registered in zip(self._agents or (), self._registered, strict=False):
            with contextlib.suppress(Exception):  # the buffers go away in any case
                agent.deregister_memory(registered)
        self._registered = []

    def close(self) -> None:
        """Lets go of buffers and agents."""
        self._release()
        self._buffers, self._agents = (), None
