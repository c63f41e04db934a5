"""Real Ray, made-up GPUs: raylets on this machine place a plan's bundles on the planned nodes, or are not asked to."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from splitplan.catalogs.errors import LaunchError
from splitplan.launcher import lifecycle
from splitplan.launcher.render import LaunchOptions
from splitplan.launcher.state import load_state, state_path
from splitplan.launcher.targets.ray_groups import RayTarget
from splitplan.planner.plan import Plan
from tests.heavy.conftest import HEAVY
from tests.launcher.plans import mixed_plan

LAB = {"h100-0": ["H100", 4], "h100-1": ["H100", 2], "a100-0": ["A100-80G", 8], "a100-1": ["A100-80G", 4]}
PYTHON = str(HEAVY / "bin" / "python")
START_S = 180


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A running lab's address."""
    if not Path(PYTHON).exists():
        pytest.skip("heavy tools are not installed; .ci/install-heavy does it")
    script = Path(__file__).with_name("ray_lab.py")
    lab = subprocess.Popen(
        [PYTHON, script, json.dumps(LAB)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert lab.stdin is not None
    assert lab.stdout is not None
    timer = threading.Timer(START_S, lab.kill)
    timer.start()
    try:
        found = lab.stdout.readline().strip()
        timer.cancel()
        assert found, "the lab did not start"
        yield found
    finally:
        lab.stdin.close()
        lab.wait(60)
        lab.stdout.close()


def options(address: str) -> LaunchOptions:
    return LaunchOptions(target="ray-groups", engine="mock", python=PYTHON, ray_address=address, base_port=24300)


def here(plan: Plan) -> Plan:
    """The plan with every host at this machine's address."""
    hosts = tuple(host.model_copy(update={"address": "127.0.0.1"}) for host in plan.hosts)
    return plan.model_copy(update={"hosts": hosts})


def free_gpus(address: str) -> dict[str, float]:
    nodes = RayTarget(PYTHON, address)._look_at_nodes()
    return {node.labels["splitplan.io/node"]: node.available.get("GPU", 0.0) for node in nodes if "GPU" in node.total}


def test_every_process_runs_on_its_planned_node_and_the_group_goes_with_them(address: str, plan_file: Path) -> None:
    """Three H100 and three A100 instances over four nodes: placed by label, probed, looked at, ended."""
    plan = here(mixed_plan())
    plan_file.write_text(plan.model_dump_json())
    before = free_gpus(address)
    launched = lifecycle.launch(plan, plan_file, options(address), timeout_s=180.0, progress=print)
    assert launched.report is not None
    print(launched.report.summary())
    assert launched.report.num_agreeing == launched.report.num_requests
    by_id = {node.id: node.labels.get("splitplan.io/node") for node in RayTarget(PYTHON, address)._look_at_nodes()}
    assert {each.name: by_id[each.job] for each in launched.state.processes} == {
        each.name: each.host for each in launched.state.processes
    }
    assert free_gpus(address) == {"h100-0": 0.0, "h100-1": 0.0, "a100-0": 0.0, "a100-1": 0.0}
    _, found = lifecycle.status(plan_file)
    assert all(each.is_ready for each in found)
    assert "listens on" in "\n".join(lifecycle.logs(plan_file, ["decode-1"])["decode-1"])
    lifecycle.destroy(plan_file)
    assert free_gpus(address) == before
    assert load_state(state_path(plan_file)) is None


def test_what_does_not_fit_is_refused_before_anything_is_placed(address: str, plan_file: Path) -> None:
    """Ray would leave an impossible group pending without a word: a node too small and one not there, by name."""
    data = here(mixed_plan()).model_dump(mode="json")
    prefill, decode = (pool["instances"] for pool in data["pools"])
    prefill[2]["gpus"] = [{"node": "h100-0", "index": index} for index in (4, 5)]
    for slot in decode[2]["gpus"]:
        slot["node"] = "a100-9"
    data["hosts"].append({"name": "a100-9", "rack": "r2", "address": "127.0.0.1", "num_gpus": 8})
    plan = Plan.model_validate_json(json.dumps(data))
    plan_file.write_text(plan.model_dump_json())
    with pytest.raises(LaunchError) as caught:
        lifecycle.launch(plan, plan_file, options(address), timeout_s=60.0)
    messages = [str(problem.message) for problem in caught.value.problems]
    print(*messages, sep="\n")
    assert "Ray's node 'h100-0' has 4 GPU; the plan takes 6" in messages
    assert "Ray has no node 'a100-9'" in messages
    assert load_state(state_path(plan_file)) is None
