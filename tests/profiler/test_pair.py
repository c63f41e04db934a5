"""The link between two nodes: two processes find each other, and both read the same."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys

import pytest

from splitplan.catalogs.errors import InputError
from splitplan.profiler.pair import PairPlace, find_place, reading_of


def test_latency_is_of_the_smallest_and_bandwidth_of_the_largest_message() -> None:
    """A link of 10 GB/s and 20 us, exactly."""
    sizes = [1 << 12, 1 << 20, 1 << 28]
    reading = reading_of(sizes, [20e-6 + size / 10e9 for size in sizes])
    assert reading.latency_s == pytest.approx(20e-6, rel=0.03)
    assert reading.bytes_per_s == pytest.approx(10e9)


@pytest.mark.parametrize(
    ("rank", "address", "environment", "place"),
    [
        (1, "h1:1234", {}, PairPlace(1, "h1:1234")),
        (None, "h1:1234", {"SLURM_PROCID": "1"}, PairPlace(1, "h1:1234")),
        (None, "", {"RANK": "0", "MASTER_ADDR": "h1", "MASTER_PORT": "7"}, PairPlace(0, "h1:7")),
        (None, "", {"SLURM_PROCID": "0", "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.1"}, PairPlace(0, "10.0.0.1:29400")),
        (0, "h1", {"SLURM_PROCID": "1"}, PairPlace(0, "h1:29400")),  # what is given goes before what is found
    ],
)
def test_rank_and_address_come_from_options_srun_or_torchrun(
    rank: int | None, address: str, environment: dict[str, str], place: PairPlace
) -> None:
    assert find_place(rank, address, environment) == place


@pytest.mark.parametrize(("rank", "address"), [(None, "h:1"), (2, "h:1"), (0, ""), (0, "h:x"), (0, ":5")])
def test_a_place_that_is_none_is_an_input_error(rank: int | None, address: str) -> None:
    with pytest.raises(InputError):
        find_place(rank, address, {})


def test_everything_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(InputError) as caught:
        find_place(None, "", {})
    assert [problem.key for problem in caught.value.problems] == ["--rank", "--at"]


def test_two_processes_on_this_host_measure_the_way_between_them() -> None:
    pytest.importorskip("torch", reason="needs torch (extra gpu)")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(os.path.abspath(place) for place in sys.path)}
    environment["GLOO_SOCKET_IFNAME"] = "lo"
    code = (
        "import sys, json, dataclasses\n"
        "from splitplan.profiler.pair import PairPlace, measure_pair\n"
        "place = PairPlace(int(sys.argv[1]), sys.argv[2])\n"
        "reading = measure_pair(place, 'gloo', sizes_bytes=(4096, 1 << 22), repeat_s=0.01)\n"
        "print(json.dumps(dataclasses.asdict(reading)))\n"
    )
    command = [sys.executable, "-c", code]
    pair = [
        subprocess.Popen([*command, str(rank), f"127.0.0.1:{port}"], stdout=subprocess.PIPE, text=True, env=environment)
        for rank in (0, 1)
    ]
    readings = [json.loads(process.communicate(timeout=90)[0]) for process in pair]
    assert readings[0] == readings[1]
    assert min(readings[0]["seconds"]) > 0
    assert readings[0]["sizes_bytes"] == [4096, 1 << 22]
