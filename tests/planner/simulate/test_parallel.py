"""Jobs spread over processes and over a Ray cluster: the same answers, and errors that say what is wrong."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from splitplan.catalogs.errors import InputError, MissingExtraError, UnknownNameError, UsageError
from splitplan.planner.simulate import parallel as module
from splitplan.planner.simulate.parallel import parse_parallel, spread
from tests.conftest import Ran

HAS_JOBLIB = importlib.util.find_spec("joblib") is not None
HAS_RAY = importlib.util.find_spec("ray") is not None
needs_joblib = pytest.mark.skipif(not HAS_JOBLIB, reason="joblib is not installed (extra fast)")
needs_ray = pytest.mark.skipif(not HAS_RAY, reason="Ray is not installed (extra ray)")

ON_RAY = """
import sys
from splitplan.catalogs.errors import UnknownNameError
from splitplan.catalogs.gpus import find_gpu
from splitplan.planner.simulate import Case, sweep
from splitplan.planner.simulate.parallel import spread
from tests.planner.simulate.cases import mixed_requests, pair, realistic_step

cases = [
    Case(pair(realistic_step(seed)), mixed_requests(300, 5.0, seed), {"seed": seed, "form": "python"})
    for seed in range(5)
]
alone, spread_out = sweep(cases), sweep(cases, parallel=sys.argv[1])
for left, right in zip(alone, spread_out, strict=True):
    assert left.runs[0].e2e_s.tobytes() == right.runs[0].e2e_s.tobytes()
    assert left.runs[0].gap_counts.tobytes() == right.runs[0].gap_counts.tobytes()
print("same", len(spread_out))

import ray
ray.init(sys.argv[1], log_to_driver=False)
try:
    spread(find_gpu, ["h100", "h10000"], parallel=sys.argv[1])
except UnknownNameError as error:
    print("refused", error.problems[0].message)
assert ray.is_initialized()
ray.shutdown()
"""


def double(value: int) -> int:
    return 2 * value


def refuse(value: int) -> int:
    if value == 2:
        raise UnknownNameError("gpu", "h10", ["h100", "h200"])
    return value


WRONG = ("ray://head", "ray://head:10001:1", "ray://:10001", "http://head:10001", "four", "0", "-2", "", "2.5")


@pytest.mark.parametrize("text", WRONG)
def test_what_is_no_way_to_run_in_parallel_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--parallel"):
        parse_parallel(text)


def test_numbers_and_ray_addresses_are_read() -> None:
    assert [parse_parallel(text) for text in ("1", " 4 ", "-1")] == [1, 4, -1]
    assert parse_parallel("ray://[::1]:10001") == "ray://[::1]:10001"
    assert parse_parallel("ray") == "ray"


@needs_joblib
def test_results_come_in_order_and_are_told_in_order() -> None:
    told: list[int] = []
    assert spread(double, list(range(7)), parallel=2, done=told.append) == [0, 2, 4, 6, 8, 10, 12] == told
    assert spread(double, [3], done=told.append) == [6]


@needs_joblib
@pytest.mark.parametrize("processes", [1, 2])
def test_an_error_of_a_job_comes_back_as_it_is(processes: int) -> None:
    with pytest.raises(UnknownNameError, match="did you mean h100"):
        spread(refuse, [1, 2, 3], parallel=processes)


@needs_joblib
def test_without_ray_a_cluster_asks_for_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None if name == "ray" else object())
    with pytest.raises(MissingExtraError, match=r"splitplan\[ray\]"):
        spread(double, [1], parallel="ray://127.0.0.1:10001")


def test_a_cluster_that_is_not_there_is_found_out_soon() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, and nobody listens
        address = f"ray://127.0.0.1:{taken.getsockname()[1]}"
        start_s = time.monotonic()
        with pytest.raises(InputError, match="no Ray cluster takes work at") as caught:
            module._reach(address)
        assert time.monotonic() - start_s < 2 * module.ANSWER_WITHIN_S
    assert "ray start --head" in str(caught.value)


def test_the_command_says_what_is_wrong_with_parallel(planner: Callable[..., Ran]) -> None:
    asked = ("--model", "llama-3.1-8b", "--fleet", "all-h100", "--workload", "azure-conv", "--slo", "ttft=1s@p90")
    ran = planner("frontier", *asked, "--parallel", "ray://head")
    assert ran.code == 2
    assert "ray://host:10001" in ran.err
    assert ran.out == ""


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def environment() -> dict[str, str]:
    """With the checkout on the path, for those who run it in place."""
    root = Path(__file__).parents[3]
    paths = [str(root), str(root / ".typing"), os.environ.get("PYTHONPATH", "")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths), "RAY_USAGE_STATS_ENABLED": "0"}


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Generator[str, None, None]:
    """A Ray head of two cores on this machine, with its client port."""
    port, client = free_ports(2)
    folder = tmp_path_factory.mktemp("ray")
    session = tempfile.mkdtemp(prefix="ray-")  # Ray's sockets lie in it, and their names must be short
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--node-ip-address=127.0.0.1"]
    command += [f"--port={port}", f"--ray-client-server-port={client}", "--include-dashboard=false", "--num-cpus=2"]
    command += ["--object-store-memory=80000000", "--disable-usage-stats", f"--temp-dir={session}"]
    log = (folder / "log").open("w")
    started = subprocess.Popen(command, env=environment(), stdout=log, stderr=log, start_new_session=True)
    try:
        deadline_s = time.monotonic() + 120
        while True:
            try:
                socket.create_connection(("127.0.0.1", client), 1).close()
                break
            except OSError:
                assert started.poll() is None, (folder / "log").read_text()
                assert time.monotonic() < deadline_s, (folder / "log").read_text()
                time.sleep(0.5)
        yield f"ray://127.0.0.1:{client}"
    finally:
        started.terminate()  # it takes its processes down with it
        try:
            started.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(started.pid, signal.SIGKILL)
            started.wait()
        log.close()
        shutil.rmtree(session, ignore_errors=True)


@needs_ray
def test_a_ray_cluster_gives_the_bits_and_the_errors_of_this_process(head: str) -> None:
    """A sweep over a real head's client port; then, on a connection that is open already, a job that fails.

    The client has a process of its own: its threads and warnings stay out of the tests'.
    """
    command = [sys.executable, "-c", ON_RAY, head]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=300, check=False)
    assert (done.stdout, done.returncode) == ("same 5\nrefused unknown gpu 'h10000'\n", 0), done.stderr
