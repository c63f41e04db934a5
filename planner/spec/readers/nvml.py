"""This machine's GPUs, as its driver reports them → one host. Reads only; nothing on a device is changed."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence

from splitplan.catalogs.errors import InputError, Problem, shorten
from splitplan.catalogs.gpus import find_gpu
from splitplan.planner.spec.readers.hosts import Host, Notes
from splitplan.planner.spec.readers.nvidia_smi import groups
from splitplan.profiler.device import GpuReading

SAME_ROOT_MARKS = ("(PIX)", "(PXB)", "same board")


def read_machine(gpus: Sequence[GpuReading], name: str = "", memory_bytes: int | None = None) -> tuple[Host, Notes]:
    """(host, notes) of readings from `profiler.device.read_gpus`.

    Raises InputError without GPUs or with several types.
    """
    names = sorted({reading.name for reading in gpus})
    if len(names) != 1:
        found = ", ".join(shorten(kind, 40) for kind in names) or "none"
        raise InputError(Problem(f"GPU types on this machine: {found}", expected="GPUs of one type on a host"))
    kind = find_gpu(names[0])
    notes = Notes()
    linked = [reading.index for reading in gpus if reading.active_nvlinks]
    if linked and len(linked) < len(gpus):
        notes.add(f"only GPUs {linked} have active NVLinks, so none is planned with")
    all_linked = len(linked) == len(gpus) and len(gpus) > 1
    if all_linked:
        notes.add("NVLink is up on every GPU; which GPUs it joins, `nvidia-smi topo -m` tells")
    host = Host(
        name=name or platform.node() or "this-machine",
        gpu=names[0],
        num_gpus=len(gpus),
        gpu_link=(kind.nvlink or kind.pcie) if all_linked else kind.pcie,
        host_memory_bytes=memory_bytes or _host_memory_bytes(),
        pci_roots=_pci_roots(gpus),
        where="this machine",
    )
    return host, notes


def _pci_roots(gpus: Sequence[GpuReading]) -> tuple[tuple[int, ...], ...]:
    """GPUs that reach each other without a host bridge share a root; () where the driver does not say."""
    reach = {(reading.index, other): level for reading in gpus for other, level in reading.peers}
    if not reach:
        return ()

    def joined(first: str, second: str) -> bool:
        return any(mark in reach.get((int(first), int(second)), "") for mark in SAME_ROOT_MARKS)

    indices = [str(reading.index) for reading in gpus]
    return tuple(tuple(int(index) for index in group) for group in groups(indices, joined))


def _host_memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None
