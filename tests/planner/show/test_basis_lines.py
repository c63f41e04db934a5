"""What a plan says about where its numbers come from."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from splitplan.planner.columns.column import Part
from splitplan.planner.emit import _host_notes
from splitplan.profiler.store import find_profile


def test_a_plan_says_on_which_kind_of_pcie_host_its_collectives_were_measured() -> None:
    """One line for each tensor parallelism and link; none for a single GPU or for NVLink."""
    columns: list[Any] = [
        SimpleNamespace(parts=(Part("l40s", link, 1, ranks),))
        for ranks, link in ((4, "pcie4-x16"), (4, "pcie4-x16"), (1, "pcie4-x16"), (2, "pcie4-slow-host"))
    ]
    notes = _host_notes(find_profile("l40s", "vllm"), "l40s", columns)
    assert len(notes) == 2
    assert notes[0].startswith("l40s: all-reduce of 2 over pcie4-slow-host as measured on a pcie-slow-host")
    assert "pcie-fast-host" in notes[1]
    hopper: list[Any] = [SimpleNamespace(parts=(Part("h100-sxm", "nvlink4", 1, 4),))]
    assert _host_notes(find_profile("h100-sxm", "vllm"), "h100-sxm", hopper) == []
