"""Changes of a running cluster while requests stream through it: none is dropped."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from splitplan.catalogs.errors import LaunchError, UsageError
from splitplan.launcher.changes import replace_running, scale
from splitplan.launcher.lifecycle import destroy, launch
from splitplan.launcher.loadtest import Served, replay
from splitplan.launcher.processes import is_alive
from splitplan.launcher.render import LaunchOptions
from splitplan.launcher.state import ClusterState, load_state, state_path
from splitplan.planner.spec.workload import Requests
from tests.launcher.conftest import Start
from tests.launcher.plans import mixed_plan, route, small_plan

OPTIONS = LaunchOptions(target="local", engine="mock")


def alive(state: ClusterState) -> set[str]:
    return {each.name for each in state.processes if is_alive(each.pid, each.started_ticks)}


def under_load(state: ClusterState, change: Callable[[], object], seconds: float = 3.5) -> list[Served]:
    """Requests that each stream for about 0.3 s, 15 a second, before, during and after the change."""
    arrivals = np.arange(0, seconds, 1 / 15)
    full = np.full(len(arrivals), 0, dtype=np.int64)
    requests = Requests(arrivals, full + 64, full + 100, full, full)
    found: list[Served] = []
    load = threading.Thread(target=lambda: found.extend(replay(state.endpoints[0], state.model, requests)))
    load.start()
    threading.Event().wait(0.8)
    try:
        change()
    finally:
        load.join()
    return found


def test_a_changed_plan_takes_over_without_dropping_a_stream(start: Start, plan_file: Path) -> None:
    """The endpoint stays, the old instances go, every request is answered whole."""
    old = start(small_plan(), with_probe=False).state
    changed = small_plan(num_pairs=2)
    plan_file.write_text(changed.model_dump_json())
    served = under_load(old, lambda: replace_running(changed, plan_file, OPTIONS, timeout_s=20.0))
    assert [each.error for each in served if each.error] == []
    assert {each.output_tokens for each in served} == {100}
    assert not alive(old)
    new = load_state(state_path(plan_file))
    assert new
    assert new.endpoints == old.endpoints
    assert alive(new) == {"prefill-0", "prefill-1", "decode-0", "decode-1", "router"}
    again = launch(changed, plan_file, OPTIONS, timeout_s=20.0).state
    assert {each.pid for each in again.processes} == {each.pid for each in new.processes}
    destroy(plan_file)
    assert not alive(new)


def test_a_change_that_fails_leaves_the_old_cluster_serving(start: Start, plan_file: Path) -> None:
    old = start(small_plan(), with_probe=False).state
    broken = LaunchOptions(target="local", engine="mock", faults={"decode-1": {"never_ready": True}})
    changed = small_plan(num_pairs=2)
    with pytest.raises(LaunchError, match="decode-1 is not ready"):
        replace_running(changed, plan_file, broken, timeout_s=1.0)
    assert alive(old) == {"prefill-0", "decode-0", "router"}
    kept = load_state(state_path(plan_file))
    assert kept == old


def test_scaling_down_and_up_drops_nothing(start: Start, plan_file: Path) -> None:
    routes = [
        route("prefill-0", "decode-0", 0.5),
        route("prefill-1", "decode-0", 0.25),
        route("prefill-1", "decode-1", 0.25),
    ]
    plan = small_plan(num_pairs=2).model_copy(update={"routes": tuple(routes)})
    state = start(plan, with_probe=False).state

    def change() -> None:
        fewer = scale(plan, plan_file, {"prefill": 1, "decode": 1}, OPTIONS, timeout_s=20.0)
        assert {each.instance for each in fewer.processes if each.instance} == {"prefill-0", "decode-0"}
        pids = {each.name: each.pid for each in state.processes}
        assert all(pids[each.name] == each.pid for each in fewer.processes if each.instance)
        scale(plan, plan_file, {"decode": 2, "prefill": 2}, OPTIONS, timeout_s=20.0)

    served = under_load(state, change, seconds=4.5)
    assert [each.error for each in served if each.error] == []
    now = load_state(state_path(plan_file))
    assert now
    assert now.endpoints == state.endpoints
    assert alive(now) == {"prefill-0", "prefill-1", "decode-0", "decode-1", "router"}


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ({"decode": 0}, "nothing would serve any more"),
        ({"decode": 3}, "has 1 instances; expected 0 to 1"),
        ({"weather": 1}, "no role or pool 'weather'"),
    ],
)
def test_impossible_counts_change_nothing(start: Start, plan_file: Path, counts: dict[str, int], message: str) -> None:
    state = start(small_plan(), with_probe=False).state
    with pytest.raises(UsageError, match=message):
        scale(small_plan(), plan_file, counts, OPTIONS)
    assert len(alive(state)) == 3


def test_other_targets_are_not_changed_while_they_run(plan_file: Path) -> None:
    plan_file.write_text(mixed_plan().model_dump_json())
    from splitplan.launcher.state import save_state

    state = ClusterState("x", "slurm", "vllm@0.32.0", "h", "m", (), "running", ())
    save_state(state, state_path(plan_file))
    with pytest.raises(LaunchError, match="a cluster on slurm is not changed while it runs"):
        scale(mixed_plan(), plan_file, {"decode": 1}, OPTIONS)
