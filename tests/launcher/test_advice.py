"""What a launch says without stopping, and options that may differ by GPU type."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from splitplan.catalogs.errors import LaunchError, UsageError
from splitplan.launcher.advice import advice
from splitplan.launcher.cluster import per_gpu
from splitplan.launcher.render import LaunchOptions, render
from splitplan.launcher.targets.pods import KubernetesOptions
from splitplan.launcher.targets.slurm import SlurmOptions
from splitplan.planner.plan import Plan
from splitplan.planner.spec.workload import load_workload
from tests.launcher.plans import HOSTILE, mixed_plan, pipelined_plan


def options(target: str, **changes: object) -> LaunchOptions:
    values = {"model_path": "m/x", "checkpoint_dtype": "bf16"} | changes
    return LaunchOptions(target=target, **values)  # type: ignore[arg-type]


def with_inputs(**changes: object) -> Plan:
    plan = mixed_plan()
    current = load_workload(plan.inputs.workload, rate_req_per_s=plan.inputs.rate_req_per_s).content_hash
    return plan.model_copy(update={"inputs": plan.inputs.model_copy(update={"workload_hash": current, **changes})})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("gpus: {h100: 8, a100: 8}", "are made up"),
        ("racks: [{name: r1, nodes: [{name: n1, gpu: h100, gpus: 8}]}]", ""),
    ],
)
def test_nodes_that_a_quick_fleet_made_up_are_said_to_be(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "fleet.yaml").write_text(f"kind: Fleet\nversion: 1\nname: mine\n{text}\n")
    found = advice(with_inputs(fleet="fleet.yaml"), tmp_path / "plan.yaml", options("slurm"))
    assert [says in sentence for sentence in found] == ([True] if says else [])


def test_an_example_fleet_is_said_to_be_one_except_for_mocks() -> None:
    (sentence,) = advice(with_inputs(), "plan.yaml", options("shell"))
    assert "example of ours" in sentence
    assert advice(with_inputs(), "plan.yaml", options("shell", engine="mock")) == []
    assert advice(with_inputs(), "plan.yaml", options("local")) == []


def test_a_workload_that_changed_is_said_not_refused() -> None:
    (sentence,) = advice(with_inputs(workload_hash="0" * 64), "plan.yaml", options("local"))
    assert "not the one the plan was verified for" in sentence


def test_pods_without_a_volume_of_weights_are_told_about_it() -> None:
    without = advice(with_inputs(), "plan.yaml", options("kubernetes"))
    assert any("each of 6 pods downloads the weights" in sentence for sentence in without)
    claimed = options("kubernetes", model_path="/models/x", kubernetes=KubernetesOptions(model_claim="weights"))
    assert not any("downloads" in sentence for sentence in advice(with_inputs(), "plan.yaml", claimed))


def test_kv_pushed_from_stages_is_said_to_be_untried() -> None:
    plan = pipelined_plan()
    assert any("NixlPushConnector" in line for line in advice(plan, "plan.yaml", options("shell")))
    assert not any("NixlPush" in line for line in advice(plan, "plan.yaml", options("local", engine="mock")))
    assert not any("NixlPush" in line for line in advice(mixed_plan(), "plan.yaml", options("shell")))


def test_an_option_may_name_a_value_for_each_gpu_type() -> None:
    assert per_gpu("mlx5_0:1,mlx5_1:1", "l40s") == "mlx5_0:1,mlx5_1:1"
    assert per_gpu("h100-sxm=mlx5_0:1,mlx5_1:1;l40s=eth0", "h100-sxm") == "mlx5_0:1,mlx5_1:1"
    assert per_gpu("h100-sxm=mlx5_0:1", "l40s") == ""


def test_each_side_of_a_mixed_fabric_gets_its_own_nics_and_rdma_resource() -> None:
    kubernetes = KubernetesOptions(rdma_resource="h100-sxm=rdma/ib;a100-sxm-80=rdma/roce")
    chosen = options("kubernetes", ucx_net_devices="h100-sxm=mlx5_0:1;a100-sxm-80=bond0", kubernetes=kubernetes)
    files = render(mixed_plan(), chosen)
    for name, nic, resource in (("prefill.yaml", "mlx5_0:1", "rdma/ib"), ("decode.yaml", "bond0", "rdma/roce")):
        sets = [each for each in yaml.safe_load_all(files[name]) if each["kind"] == "StatefulSet"]
        for each in sets:
            container = each["spec"]["template"]["spec"]["containers"][0]
            assert container["resources"]["limits"][resource] == "1"
            assert {"name": "UCX_NET_DEVICES", "value": nic} in container["env"]


@pytest.mark.parametrize("host", HOSTILE[:3])
def test_a_router_host_that_is_no_address_is_refused(host: str) -> None:
    with pytest.raises(LaunchError, match="is no address"):
        render(mixed_plan(), options("shell", router_host=host))


@pytest.mark.parametrize("text", ["bogus", "1h", "1-", "1:2:3:4", "-1", "1-00:00:00:00", "١"])
def test_a_time_limit_that_slurm_cannot_read_is_wrong_usage(text: str) -> None:
    with pytest.raises(UsageError, match="is no time limit"):
        render(mixed_plan(), options("slurm", slurm=SlurmOptions(time_limit=text)))


@pytest.mark.parametrize("text", ["30", "30:00", "1:30:00", "7-00", "7-00:00:00", "UNLIMITED"])
def test_time_limits_of_slurm_are_taken(text: str) -> None:
    assert f"--time={text}" in render(mixed_plan(), options("slurm", slurm=SlurmOptions(time_limit=text)))["job.sbatch"]
