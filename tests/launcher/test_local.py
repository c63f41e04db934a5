"""Clusters of mock engines on this machine: real processes, real sockets, a real probe, and what can go wrong."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from splitplan.catalogs.errors import LaunchError
from splitplan.launcher import lifecycle
from splitplan.launcher.bench import bench
from splitplan.launcher.lifecycle import destroy, logs, status
from splitplan.launcher.probe import make_prompts, probe
from splitplan.launcher.processes import is_alive, start_ticks, stop
from splitplan.launcher.render import LaunchOptions
from splitplan.launcher.state import ClusterState, load_state, log_folder, state_path
from splitplan.launcher.web import answers
from tests.launcher.conftest import Start, own_port
from tests.launcher.plans import combined_plan, small_plan


def alive(state: ClusterState) -> list[str]:
    return [each.name for each in state.processes if is_alive(each.pid, each.started_ticks)]


def kill(state: ClusterState, name: str) -> None:
    os.kill(next(each.pid for each in state.processes if each.name == name), signal.SIGKILL)


def test_a_cluster_serves_is_seen_and_is_taken_down(start: Start, plan_file: Path) -> None:
    """Every answer crossed from prefill to decode, agrees with a lone instance's, and was counted."""
    launched = start(small_plan(num_pairs=2))
    report = launched.report
    assert report
    assert report.passed
    assert report.num_agreeing == report.num_requests == 10
    assert report.transfers == 10
    words = len(make_prompts(1)[0].split())
    assert report.transferred_bytes == 10 * words * small_plan().kv_bytes_per_token
    assert report.same_rack == 10
    assert min(report.pairs.values()) >= 3
    state, found = status(plan_file)
    assert state.phase == "running"
    assert len(found) == 5
    assert all(each.is_ready for each in found)
    assert "listens on 127.0.0.1" in logs(plan_file, ["decode-1"])["decode-1"][0]
    destroy(plan_file)
    assert not alive(state)
    assert not answers(f"{state.endpoints[0]}/health")
    assert load_state(state_path(plan_file)) is None


def test_one_router_serves_both_kinds_in_the_planned_shares(start: Start) -> None:
    """About a quarter of the requests goes to the colocated instance."""
    launched = start(combined_plan(), with_probe=False)
    report = probe(launched.state, num_requests=16)
    assert report.passed
    assert 2 <= report.pairs[("colocated-0", "colocated-0")] <= 6
    assert report.transfers == 16 - report.pairs[("colocated-0", "colocated-0")]


def test_launching_again_starts_nothing_twice(start: Start) -> None:
    first = start(small_plan()).state
    second = start(small_plan()).state
    assert {each.pid for each in first.processes} == {each.pid for each in second.processes}
    assert first.endpoints == second.endpoints


def test_launching_again_replaces_only_what_died(start: Start) -> None:
    first = start(small_plan()).state
    kill(first, "decode-0")
    time.sleep(0.1)
    second = start(small_plan()).state
    pids = {each.name: each.pid for each in first.processes}
    changed = {each.name for each in second.processes if pids[each.name] != each.pid}
    assert changed == {"decode-0"}


def test_an_instance_that_dies_during_the_start_takes_the_rest_down(start: Start, plan_file: Path) -> None:
    """The error names it and shows its log; nothing is left running."""
    seen: list[ClusterState] = []
    faults = {"decode-0": {"exit_after_s": 0.2, "start_delay_s": 5.0}}
    with pytest.raises(
        LaunchError, match=r"decode-0 ended before it was ready\n.*\n +ends as its faults ask"
    ) as caught:
        start(
            small_plan(),
            faults=faults,
            progress=lambda _: seen.extend(filter(None, [load_state(state_path(plan_file))])),
        )
    assert "has been stopped (3 processes)" in str(caught.value)
    assert seen
    assert not alive(seen[-1])
    assert not state_path(plan_file).exists()


def test_keep_leaves_a_failed_start_for_inspection(start: Start, plan_file: Path) -> None:
    with pytest.raises(LaunchError, match="kept 3 processes"):
        start(small_plan(), faults={"decode-0": {"never_ready": True}}, keep=True, timeout_s=1.0)
    state, found = status(plan_file)
    assert state.phase == "failed"
    assert {each.process.name: each.is_ready for each in found}["decode-0"] is False
    assert set(alive(state)) == {"prefill-0", "decode-0", "router"}
    destroy(plan_file)
    assert not alive(state)


def test_a_node_that_never_becomes_ready_is_given_up(start: Start, plan_file: Path) -> None:
    with pytest.raises(LaunchError, match="prefill-0 is not ready after 1 s"):
        start(small_plan(), faults={"prefill-0": {"never_ready": True}}, timeout_s=1.0)
    assert not state_path(plan_file).exists()


def test_an_instance_that_answers_wrongly_is_caught(start: Start) -> None:
    """It is healthy and lists its model; only the probe can tell."""
    with pytest.raises(LaunchError, match="decode-1 alone answers otherwise"):
        start(small_plan(num_pairs=2), faults={"decode-1": {"wrong_answers": True}})


def test_unequal_block_sizes_are_caught_by_the_probe(start: Start) -> None:
    """The fault of the field: HTTP 200 and wrong tokens."""
    plan = small_plan()
    pools = (plan.pools[0], plan.pools[1].model_copy(update={"block_tokens": 32}))
    with pytest.raises(LaunchError, match="8 of 8 answers differ from what prefill-0 alone answers"):
        start(plan.model_copy(update={"pools": pools}))


def test_one_wrong_pair_among_many_is_found_by_name(start: Start) -> None:
    """Most answers are right, and each instance alone is; only KV into decode-2 is read in blocks of another size."""
    plan = small_plan(num_pairs=3)
    decode = plan.pools[1]
    split = [
        decode.model_copy(update={"name": f"decode {block}", "block_tokens": block, "instances": instances})
        for block, instances in ((16, decode.instances[:2]), (32, decode.instances[2:]))
    ]
    with pytest.raises(LaunchError, match="KV from prefill-2 arrives wrong at decode-2") as caught:
        start(plan.model_copy(update={"pools": (plan.pools[0], *split)}))
    assert "answers differ" not in str(caught.value)


@pytest.mark.parametrize(
    ("ignored", "message"),
    [
        ("prefill", r"prefill instances handled 0 requests[\s\S]*no KV was transferred"),
        ("decode", "decode instances handled 0 requests"),
    ],
)
def test_a_router_that_forgets_a_role_is_caught(start: Start, ignored: str, message: str) -> None:
    """All answers are right, from the wrong instances."""
    with pytest.raises(LaunchError, match=message):
        start(small_plan(), faults={"router": {"ignore": ignored}})


def test_a_taken_port_is_said_before_anything_starts(start: Start, plan_file: Path) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        port = held.getsockname()[1]
        with pytest.raises(LaunchError, match=f"port {port} of this machine is taken"):
            start(small_plan(), options=LaunchOptions(target="local", engine="mock", base_port=port))
    assert not state_path(plan_file).exists()


def test_without_a_base_port_a_free_range_is_found(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    real, first = lifecycle.taken, lifecycle.FIRST_PORT
    monkeypatch.setattr(lifecycle, "taken", lambda ports: [1] if min(ports) < first + 500 else real(ports))
    launched = start(small_plan(), with_probe=False)
    assert int(launched.state.endpoints[0].rpartition(":")[2]) >= first + 500


def test_another_plan_in_the_same_file_is_not_mixed_in(start: Start) -> None:
    start(small_plan(), with_probe=False)
    with pytest.raises(LaunchError, match="another plan is running from this file"):
        start(small_plan(num_pairs=2))


def test_an_engine_that_is_not_installed_is_said(plan_file: Path) -> None:
    plan_file.write_text(small_plan().model_dump_json())
    options = LaunchOptions(target="local", model_path="m/x", checkpoint_dtype="bf16")
    with pytest.raises(LaunchError, match="vllm is not installed on this machine"):
        lifecycle.launch(small_plan(), plan_file, options)


def test_a_full_disk_of_logs_does_not_stop_an_engine(start: Start, plan_file: Path) -> None:
    """/dev/full: every write fails as on a full disk."""
    log_folder(plan_file).mkdir()
    (log_folder(plan_file) / "decode-0.log").symlink_to("/dev/full")
    launched = start(small_plan(), faults={"decode-0": {"log_bytes_per_request": 10_000}})
    assert launched.report
    assert launched.report.passed


def test_an_instance_killed_under_load_costs_its_own_requests_only(start: Start, plan_file: Path) -> None:
    """The router leaves it out; the other pair serves on."""
    state = start(small_plan(num_pairs=2), with_probe=False).state
    threading.Timer(1.5, kill, (state, "decode-1")).start()
    report = bench(str(plan_file), workload="fixed:256/32", rate_req_per_s=20, duration_s=4, slo="ttft=1s@p90")
    assert report.num_failed <= 5
    assert report.num_requests == 80
    destroy(plan_file)
    assert not alive(state)


def test_destroy_ends_what_ignores_the_polite_signal(
    start: Start, plan_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = start(small_plan(), faults={"prefill-0": {"ignore_sigterm": True}}, with_probe=False).state
    monkeypatch.setattr(
        lifecycle.LocalTarget,
        "stop",
        lambda self, which, _: stop([(each.pid, each.started_ticks) for each in which], grace_s=0.3),
    )
    destroy(plan_file)
    assert not alive(state)


def test_destroying_a_half_dead_cluster_works(start: Start, plan_file: Path) -> None:
    state = start(small_plan(), with_probe=False).state
    kill(state, "router")
    kill(state, "prefill-0")
    destroy(plan_file)
    assert not alive(state)


def test_a_recycled_pid_is_never_killed(start: Start, plan_file: Path) -> None:
    """A state file whose pid now belongs to somebody else (here: us) stops nothing."""
    start(small_plan(), with_probe=False)
    destroy(plan_file)
    ours = os.getpid()
    stop([(ours, (start_ticks(ours) or 0) - 1)])
    assert start_ticks(ours)


SCRIPT = """
import sys
from splitplan.launcher.lifecycle import launch
from splitplan.launcher.render import LaunchOptions
from splitplan.planner.plan import load_plan
faults = {"decode-0": {"never_ready": True}}
options = LaunchOptions(target="local", engine="mock", faults=faults, base_port=int(sys.argv[2]))
launch(load_plan(sys.argv[1]), sys.argv[1], options, progress=lambda text: print(text, flush=True))
"""


def launching(plan_file: Path) -> subprocess.Popen[str]:
    """A launch in another process that waits for an instance which never becomes ready."""
    plan_file.write_text(small_plan().model_dump_json())
    command = [sys.executable, "-c", SCRIPT, str(plan_file), str(own_port(23000))]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout
    while "prefill-0 ready" not in (line := process.stdout.readline()):
        assert line
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_start_leaves_nothing_running(plan_file: Path, number: signal.Signals) -> None:
    process = launching(plan_file)
    state = load_state(state_path(plan_file))
    assert state
    assert len(alive(state)) == 3
    process.send_signal(number)
    process.send_signal(number)  # an impatient user
    _, errors = process.communicate(timeout=20)
    assert process.returncode != 0
    assert "interrupted" in errors
    assert not alive(state)
    assert not state_path(plan_file).exists()


def test_what_a_killed_launcher_left_can_be_destroyed(plan_file: Path) -> None:
    """kill -9 gives no time for cleaning up; the state file knows all the same."""
    process = launching(plan_file)
    process.kill()
    process.communicate(timeout=20)
    state = load_state(state_path(plan_file))
    assert state
    assert len(alive(state)) == 3
    destroy(plan_file)
    assert not alive(state)


def test_two_launches_of_one_plan_do_not_meet(plan_file: Path, start: Start) -> None:
    process = launching(plan_file)
    try:
        with pytest.raises(LaunchError, match="another launch of this plan is under way"):
            start(small_plan())
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=20)
    assert not state_path(plan_file).exists()


def test_a_torn_state_file_is_explained(plan_file: Path) -> None:
    plan_file.write_text(small_plan().model_dump_json())
    state_path(plan_file).write_text('{"kind": "LaunchState", "ver')
    with pytest.raises(LaunchError, match="is not a launch state"):
        destroy(plan_file)


def test_nothing_launched_is_said_with_the_next_step(plan_file: Path) -> None:
    with pytest.raises(LaunchError, match=r"nothing was launched from this plan\n  next: planner launch"):
        status(plan_file)
