"""This machine as a fleet, from readings of the driver."""

from __future__ import annotations

from pathlib import Path

import pytest

from splitplan.catalogs.errors import InputError, ProfileError, UnknownNameError
from splitplan.planner.spec.fleet import load_fleet
from splitplan.planner.spec.readers.hosts import ImportOptions, build_document, parse_nics
from splitplan.planner.spec.readers.imports import import_machine, write_imported
from splitplan.planner.spec.readers.nvml import read_machine
from splitplan.profiler.device import GpuReading


def readings(count: int, name: str = "NVIDIA H100 80GB HBM3", nvlinks: int = 18) -> list[GpuReading]:
    """GPUs in pairs below one PCIe switch each, pairs across sockets."""
    return [
        GpuReading(
            index=index,
            name=name,
            uuid=f"GPU-{index}",
            memory_bytes=85520809984,
            driver_version="570",
            active_nvlinks=nvlinks,
            peers=tuple(
                (other, "PCIe switches (PXB)" if other // 2 == index // 2 else "between sockets (SYS)")
                for other in range(count)
                if other != index
            ),
        )
        for index in range(count)
    ]


def test_machine_with_nvlink_and_pci_roots(tmp_path: Path) -> None:
    host, notes = read_machine(readings(4), "box", 2**40)
    options = ImportOptions(nics=parse_nics(["ib-ndr:4"]))
    write_imported(build_document([host], options, "this machine", notes), tmp_path / "fleet.yaml")
    node = load_fleet(tmp_path / "fleet.yaml").nodes[0]
    assert (node.name, node.gpu, node.num_gpus, node.gpu_link) == ("box", "h100-sxm", 4, "nvlink4")
    assert node.pci_roots == ((0, 1), (2, 3))
    assert node.host_memory_bytes == 2**40


def test_machine_without_nvlink_is_on_pcie() -> None:
    host, _ = read_machine(readings(2, "NVIDIA L40S", 0))
    assert host.gpu_link == "pcie4-x16"


def test_some_links_down_means_none_is_planned_with() -> None:
    up, down = readings(2), readings(2, nvlinks=0)
    host, notes = read_machine([up[0], down[1]])
    assert host.gpu_link == "pcie5-x16"
    assert any("only GPUs [0] have active NVLinks" in line for line in notes.lines())


def test_mixed_missing_and_unknown_gpus_are_told() -> None:
    with pytest.raises(InputError, match=r"NVIDIA H100 80GB HBM3, NVIDIA L4[\s\S]*GPUs of one type"):
        read_machine([readings(1)[0], readings(2, "NVIDIA L4", 0)[1]])
    with pytest.raises(InputError, match="GPU types on this machine: none"):
        read_machine([])
    with pytest.raises(UnknownNameError):
        read_machine(readings(1, "NVIDIA Z900"))


def test_machine_without_a_driver_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_driver() -> None:
        raise ProfileError("no NVIDIA driver answers on this machine")

    monkeypatch.setattr("splitplan.profiler.device.read_gpus", no_driver)
    with pytest.raises(ProfileError, match=r"no NVIDIA driver[\s\S]*nvidia-smi topo -m"):
        import_machine(ImportOptions())
