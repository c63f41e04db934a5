"""NIXL transfers: bytes in descriptors, checked on arrival; with a stand-in for the library, and itself where it is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from splitplan.catalogs.errors import ProfileError
from splitplan.catalogs.models import find_model
from splitplan.profiler.nixl_source import NixlRunner, is_installed
from splitplan.profiler.points import NIXL_TRANSFERS, Point, Request, make_plan, make_point
from splitplan.profiler.rates import Rates
from splitplan.profiler.timer import Effort

EFFORT = Effort(0.0, 0.001)


def transfer(num_bytes: int, descriptor_bytes: int) -> Point:
    shape = {"link": "nixl", "host": "dram", "how": f"descriptors-{descriptor_bytes}", "ranks": 2}
    return make_point("send", {**shape, "num_bytes": num_bytes})


class FakeAgent:
    """An agent that copies at `transfer`, or pretends to."""

    memory: dict[int, Any] = {}  # noqa: RUF012 (shared by both agents, as one process's memory is)
    descriptors: list[int] = []  # noqa: RUF012
    state = "DONE"
    copies = True

    def __init__(self, name: str) -> None:
        self.name = name

    def register_memory(self, buffer: Any) -> int:
        FakeAgent.memory[buffer.data_ptr()] = buffer
        return int(buffer.data_ptr())

    def deregister_memory(self, registered: int) -> None:
        del FakeAgent.memory[registered]

    def get_agent_metadata(self) -> bytes:
        return self.name.encode()

    def add_remote_agent(self, metadata: bytes) -> str:
        return metadata.decode()

    def get_xfer_descs(self, pieces: list[tuple[int, int, int]], kind: str) -> Any:
        assert kind == "DRAM"
        return pieces

    def initialize_xfer(self, operation: str, local: Any, remote: Any, name: str) -> Any:
        assert (operation, name) == ("READ", "splitplan-source")
        return local, remote

    def release_xfer_handle(self, handle: Any) -> None:
        pass

    def transfer(self, handle: Any) -> str:
        local, remote = handle
        FakeAgent.descriptors.append(len(local))
        if FakeAgent.copies:
            target, source = FakeAgent.memory[local[0][0]], FakeAgent.memory[remote[0][0]]
            for (to, size, _), (start, _, _) in zip(local, remote, strict=True):
                begin = start - source.data_ptr()
                target[to - target.data_ptr() :][:size] = source[begin : begin + size]
        return FakeAgent.state

    def check_xfer_state(self, handle: Any) -> str:
        return FakeAgent.state


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> NixlRunner:
    torch = pytest.importorskip("torch", reason="needs torch (extra gpu)")
    for name, value in (("memory", {}), ("descriptors", []), ("state", "DONE"), ("copies", True)):
        monkeypatch.setattr(FakeAgent, name, value)
    return NixlRunner(torch, "cpu", "cpu", SimpleNamespace(nixl_agent=FakeAgent))


def test_a_transfer_is_cut_into_descriptors_the_last_one_shorter(runner: NixlRunner) -> None:
    timing = runner.run(transfer(1000, 300), EFFORT).timing
    assert set(FakeAgent.descriptors) == {4}
    assert timing.median_s > 0


def test_buffers_grow_and_are_let_go_of(runner: NixlRunner) -> None:
    runner.run(transfer(100, 100), EFFORT)
    runner.run(transfer(5000, 100), EFFORT)
    runner.run(transfer(1000, 100), EFFORT)
    assert sorted(len(buffer) for buffer in FakeAgent.memory.values()) == [5000, 5000]
    runner.close()
    assert FakeAgent.memory == {}


def test_done_without_the_bytes_is_an_error(runner: NixlRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeAgent, "copies", False)
    with pytest.raises(ProfileError, match="before the bytes"):
        runner.run(transfer(1000, 300), EFFORT)


def test_a_failed_transfer_is_an_error(runner: NixlRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeAgent, "state", "ERR")
    with pytest.raises(ProfileError, match="ERR"):
        runner.run(transfer(1000, 300), EFFORT)


if is_installed():  # no dependency of ours, and not installed in CI: no skip either

    def test_nixl_itself_moves_the_bytes(capsys: pytest.CaptureFixture[str]) -> None:
        torch = pytest.importorskip("torch", reason="needs torch (extra gpu)")
        runner = NixlRunner(torch, "cpu", "cpu")
        assert runner.run(transfer(1 << 20, 1 << 16), EFFORT).timing.median_s > 0
        runner.close()
        assert capsys.readouterr().out == "", "it must not write where data goes"


@pytest.mark.parametrize("has_nixl", [True, False])
def test_transfers_are_planned_where_the_package_is(has_nixl: bool) -> None:
    request = Request((find_model("qwen3-0.6b"),), device_kind="cpu", has_nixl=has_nixl)
    planned = [point for point in make_plan(request, Rates({"bf16": 1e11}, 1e10)).points if "nixl" in point.key]
    assert len(planned) == (len(NIXL_TRANSFERS) if has_nixl else 0)
