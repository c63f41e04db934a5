"""Kubernetes, live: kubectl against an API server of the tests, mock engines as pods. The whole way, and refusals."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from splitplan.catalogs.errors import LaunchError
from splitplan.launcher import lifecycle
from splitplan.launcher.bench import bench
from splitplan.launcher.changes import replace_running
from splitplan.launcher.render import LaunchOptions, make_cluster, make_engine
from splitplan.launcher.state import ClusterState, load_state, require_state, state_path
from splitplan.launcher.targets import kube, kubectl, kubernetes
from splitplan.launcher.targets.pods import KubernetesOptions
from splitplan.planner.plan import Plan
from tests.launcher.conftest import EXTRAS, Start, lacking
from tests.launcher.fake_kubernetes import FakeKubernetes, serving
from tests.launcher.plans import small_plan

OPTIONS = LaunchOptions(
    target="kubernetes",
    engine="vllm",
    model_path="meta-llama/Llama-3.1-70B",
    checkpoint_dtype="bf16",
    kubernetes=KubernetesOptions(rdma_resource=""),
)


@pytest.fixture(autouse=True)
def with_kubectl(monkeypatch: pytest.MonkeyPatch) -> None:
    if not shutil.which("kubectl"):
        if not (EXTRAS / "bin" / "kubectl").exists():
            lacking("kubectl is not installed")
        monkeypatch.setenv("PATH", f"{EXTRAS / 'bin'}{os.pathsep}{os.environ['PATH']}")


@pytest.fixture
def cluster(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeKubernetes]:
    """An API server whose pods are the mock engines of the same plan."""
    plan = small_plan()
    mocks = start(plan, with_probe=False).state
    changed = small_plan(num_gpus=3)  # of another name, on the same mocks
    pods = {**backends(plan, mocks), **backends(changed, mocks)}
    with serving(pods, {"h100-sxm-0": 8, "a100-sxm-80-0": 8}, tmp_path) as (fake, kubeconfig):
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
        monkeypatch.setenv("KUBECACHEDIR", str(tmp_path / "cache"))
        yield fake


def backends(plan: Plan, mocks: ClusterState) -> dict[str, str]:
    """Pods and router of a plan, played by mock processes."""
    placed, groups = kubernetes.in_pods(make_cluster(plan, OPTIONS, make_engine(plan, OPTIONS)))
    urls = {process.instance: process.url for process in mocks.processes if process.instance}
    members = [member for group in groups for member in group.members]
    pods = {member.host.address.partition(".")[0]: urls[member.instance.name] for member in members}
    return {**pods, placed.router.host.name: mocks.endpoints[0]}


@pytest.fixture
def plan_path(tmp_path: Path) -> Path:
    path = tmp_path / "on-kubernetes.json"
    path.write_text(small_plan().model_dump_json())
    return path


def launch(path: Path, options: LaunchOptions = OPTIONS, **arguments: Any) -> lifecycle.Launched:
    plan = Plan.model_validate_json(path.read_text())
    return lifecycle.launch(plan, path, options, **{"timeout_s": 20.0, **arguments})


def test_a_plan_is_applied_proven_looked_at_loaded_and_deleted(cluster: FakeKubernetes, plan_path: Path) -> None:
    """apply → wait → probe → status → logs → bench → destroy, all through kubectl."""
    launched = launch(plan_path)
    assert launched.report is not None
    assert launched.report.num_agreeing == launched.report.num_requests
    assert launched.report.transfers
    assert launched.state.endpoints[0].endswith(".serving.svc:8000")
    assert len(cluster.kept("statefulsets")) == 2
    assert len(cluster.kept("pods")) == 3

    state, found = lifecycle.status(plan_path)
    assert [each.is_ready for each in found] == [True, True, True]
    assert {each.process.url for each in found} == {each.url for each in state.processes}
    logs = lifecycle.logs(plan_path, ["decode-0"])
    assert logs["decode-0"] == [f"log of {next(p.job for p in state.processes if p.name == 'decode-0')}"]
    report = bench(str(plan_path), duration_s=1.0)
    assert report.num_failed == 0
    assert report.measured_ms["ttft"]["p50"] > 0

    lifecycle.destroy(plan_path)
    assert not [each for kind in ("pods", "statefulsets", "deployments", "services") for each in cluster.kept(kind)]
    assert load_state(state_path(plan_path)) is None


def test_the_server_s_dry_run_comes_first_and_its_refusal_keeps_everything_away(
    cluster: FakeKubernetes, plan_path: Path
) -> None:
    """An admission error is told in people's terms, with the way out, and nothing is left."""
    quota = "exceeded quota: gpus, requested: requests.nvidia.com/gpu=1, used: 8, limited: 8"
    cluster.admission = lambda found: quota if found["kind"] == "StatefulSet" else ""
    with pytest.raises(LaunchError, match="exceeded quota: gpus") as caught:
        launch(plan_path)
    assert all("Kubernetes refuses" in str(problem.message) for problem in caught.value.problems)
    assert all("resourcequota" in problem.next_step for problem in caught.value.problems)
    assert len(caught.value.problems) == 2  # both StatefulSets, in one go
    assert not cluster.kept("statefulsets")
    assert not cluster.kept("services")
    assert load_state(state_path(plan_path)) is None


def test_nodes_that_are_not_there_or_too_small_are_named_before_anything_is_applied(
    cluster: FakeKubernetes, plan_path: Path
) -> None:
    del cluster.objects["v1", "nodes", "", "h100-sxm-0"]
    cluster.objects["v1", "nodes", "", "a100-sxm-80-0"]["status"]["allocatable"] = {}
    with pytest.raises(LaunchError) as caught:
        launch(plan_path)
    text = " ".join(str(problem.message) for problem in caught.value.problems)
    assert "the cluster has no node 'h100-sxm-0'" in text
    assert "'a100-sxm-80-0' has 0 nvidia.com/gpu, the plan takes 1" in text
    assert not cluster.kept("services")


def test_a_pod_that_cannot_start_ends_the_launch_with_its_reason_and_is_rolled_back(
    cluster: FakeKubernetes, plan_path: Path
) -> None:
    waiting = {"reason": "ImagePullBackOff", "message": "no such image"}
    broken = {"phase": "Pending", "containerStatuses": [{"state": {"waiting": waiting}}]}
    cluster.pod_status = lambda name: broken if "decode" in name else {"phase": "Running"}
    with pytest.raises(LaunchError, match="ImagePullBackOff: no such image") as caught:
        launch(plan_path)
    assert "decode-0 ended before it was ready" in str(caught.value)
    assert not cluster.kept("pods")


def test_a_pod_that_finds_no_node_is_late_with_the_scheduler_s_words(
    cluster: FakeKubernetes, plan_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = "0/2 nodes are available: 2 Insufficient nvidia.com/gpu."
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": words}
    cluster.pod_status = lambda name: {"phase": "Pending", "conditions": [condition]}
    cluster.backends.clear()
    with pytest.raises(LaunchError, match="2 Insufficient nvidia"):
        launch(plan_path, timeout_s=2.0)


def test_dry_run_renders_without_asking_the_cluster(cluster: FakeKubernetes, plan_path: Path) -> None:
    from splitplan.launcher.render import render

    render(Plan.model_validate_json(plan_path.read_text()), OPTIONS)
    assert cluster.asked == []


def test_the_proxy_lets_only_the_plan_s_own_pods_through(cluster: FakeKubernetes, plan_path: Path) -> None:
    """Whoever shares this machine must not get the user's rights through it."""
    from urllib.error import HTTPError

    from splitplan.launcher.web import get

    launch(plan_path, with_probe=False)
    with lifecycle.reached(plan_path) as live:
        base = live.endpoints[0].partition("/api/")[0]
        for path in (
            "/api/v1/nodes",
            "/api/v1/namespaces/serving/pods",
            "/api/v1/namespaces/serving/services/http:x:1/proxy/",
        ):
            with pytest.raises(HTTPError, match="403"):
                get(base + path, timeout_s=5)
    lifecycle.destroy(plan_path)


def test_a_changed_plan_stands_beside_the_old_one_until_that_has_nothing_left_to_do(
    cluster: FakeKubernetes, plan_path: Path
) -> None:
    """The endpoint cannot move: clients are told the new one, and only then the old pods go."""
    old = launch(plan_path, with_probe=False).state
    changed = small_plan(num_gpus=3)
    plan_path.write_text(changed.model_dump_json())
    said: list[str] = []
    new = replace_running(changed, plan_path, OPTIONS, timeout_s=20.0, progress=said.append).state
    assert new.endpoints != old.endpoints
    assert f"the new cluster serves at {new.endpoints[0]}: point clients there, not at {old.endpoints[0]}" in said
    labels = {pod["metadata"]["labels"]["app.kubernetes.io/instance"] for pod in cluster.kept("pods")}
    assert labels == {new.name}
    lifecycle.destroy(plan_path)


def test_a_changed_plan_under_the_same_name_is_refused(cluster: FakeKubernetes, plan_path: Path) -> None:
    name = launch(plan_path, with_probe=False).state.name
    with pytest.raises(LaunchError, match=f"{name} runs already under this name"):
        replace_running(small_plan(num_gpus=3), plan_path, replace(OPTIONS, name=name))
    lifecycle.destroy(plan_path)


def test_launching_again_changes_nothing(cluster: FakeKubernetes, plan_path: Path) -> None:
    launch(plan_path, with_probe=False)
    before = require_state(plan_path)
    launch(plan_path, with_probe=False)
    assert require_state(plan_path) == before
    lifecycle.destroy(plan_path)


def test_a_server_that_is_not_there_is_one_message(
    plan_path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with serving({}, {}, tmp_path) as (_, kubeconfig):
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    with pytest.raises(LaunchError) as caught:
        launch(plan_path)
    assert "kubectl cluster-info" in caught.value.problems[-1].next_step


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        ('Error from server (NotFound): namespaces "x" not found', "kubectl create namespace x"),
        ('error: no matches for kind "PodGroup" in version "scheduling.volcano.sh/v1beta1"', "has no PodGroup"),
        ('admission webhook "gpu.policy" denied the request: no', "(gpu.policy)"),
        ("error: You must be logged in to the server (Unauthorized)", "log in"),
    ],
)
def test_what_kubectl_says_comes_with_a_way_out(line: str, advice: str) -> None:
    assert advice in kubectl.complaints(line)[0].next_step


def test_options_reach_kubectl_as_whole_words() -> None:
    """A context or namespace can be no option of its own."""
    target = kube.KubernetesTarget(replace(OPTIONS.kubernetes, context="--server=evil", namespace="-n"))
    assert target.kubectl._start() == ["kubectl", "--context=--server=evil", "--namespace=-n"]
