"""Kubernetes manifests: valid by the published schemas, on the planned nodes, with the planned numbers."""

from __future__ import annotations

from typing import Any

import kubernetes_validate
import pytest
import yaml

from splitplan.catalogs.errors import LaunchError, UsageError
from splitplan.launcher.naming import dns_label, unique_labels
from splitplan.launcher.render import LaunchOptions, render
from splitplan.launcher.targets.pods import KubernetesOptions, literal
from splitplan.planner.plan import Plan
from tests.launcher.plans import HOSTILE, colocated_plan, combined_plan, hostile_plan, mixed_plan, pipelined_plan

OPTIONS = LaunchOptions(target="kubernetes", model_path="meta-llama/Llama-3.1-70B", checkpoint_dtype="bf16")
SCHEMA_VERSION = "1.30"
OWN_KINDS = {"Kustomization"}


def objects(plan: Plan, options: LaunchOptions = OPTIONS) -> list[dict[str, Any]]:
    return [each for text in render(plan, options).values() for each in yaml.safe_load_all(text)]


def of_kind(found: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [each for each in found if each["kind"] == kind]


def container(workload: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = workload["spec"]["template"]["spec"]["containers"][0]
    return found


@pytest.mark.parametrize(
    ("make", "namespace"),
    [(mixed_plan, "serving"), (colocated_plan, ""), (combined_plan, ""), (pipelined_plan, ""), (hostile_plan, "")],
)
def test_every_object_is_valid_by_the_published_schema(make: Any, namespace: str) -> None:
    """Strict: an unknown key is an error."""
    options = LaunchOptions(
        target="kubernetes",
        model_path="$(touch PWNED)" if make is hostile_plan else "m/x",
        checkpoint_dtype="bf16",
        kubernetes=KubernetesOptions(namespace=namespace, model_claim="weights"),
    )
    found = objects(make(), options)
    assert len(found) > 4
    for each in found:
        if each["kind"] not in OWN_KINDS:
            kubernetes_validate.validate(each, SCHEMA_VERSION, strict=True)


def test_kustomization_lists_every_other_file() -> None:
    files = render(mixed_plan(), OPTIONS)
    base = yaml.safe_load(files["kustomization.yaml"])
    assert set(base) == {"apiVersion", "kind", "resources"}
    assert set(base["resources"]) == set(files) - {"kustomization.yaml"}


def test_pods_are_pinned_to_the_product_and_the_planned_node() -> None:
    sets = of_kind(objects(mixed_plan()), "StatefulSet")
    where = {
        (s["spec"]["template"]["spec"]["nodeSelector"]["kubernetes.io/hostname"], s["spec"]["replicas"]) for s in sets
    }
    assert where == {("h100-0", 2), ("h100-1", 1), ("a100-0", 2), ("a100-1", 1)}
    products = {s["spec"]["template"]["spec"]["nodeSelector"].get("nvidia.com/gpu.product") for s in sets}
    assert products == {"NVIDIA-H100-80GB-HBM3", "NVIDIA-A100-SXM4-80GB"}


def test_labels_of_the_fleet_s_nodes_win_over_the_catalog() -> None:
    plan = mixed_plan()
    labels = {"nvidia.com/gpu.product": "NVIDIA-H100-XYZ", "kubernetes.io/hostname": "ip-10-0-1-1"}
    hosts = (plan.hosts[0].model_copy(update={"labels": labels}), *plan.hosts[1:])
    sets = of_kind(objects(plan.model_copy(update={"hosts": hosts})), "StatefulSet")
    assert labels in [s["spec"]["template"]["spec"]["nodeSelector"] for s in sets]


def test_pods_ask_for_the_planned_gpus_shared_memory_and_rdma() -> None:
    for each in of_kind(objects(mixed_plan()), "StatefulSet"):
        tensor_parallel = {"prefill": "2", "decode": "4"}[each["metadata"]["labels"]["splitplan.io/role"]]
        limits = container(each)["resources"]["limits"]
        assert limits == {"nvidia.com/gpu": tensor_parallel, "rdma/ib": "1"}
        shm = each["spec"]["template"]["spec"]["volumes"][0]
        assert shm["emptyDir"]["medium"] == "Memory"
        assert {"startupProbe", "readinessProbe", "livenessProbe"} <= set(container(each))


def test_the_router_reaches_every_pod_by_the_name_of_its_service() -> None:
    """A URL is pod.service, where the service exists, selects the pod, and the StatefulSet has that many replicas."""
    found = objects(mixed_plan())
    router = container(of_kind(found, "Deployment")[0])["command"]
    urls = [router[i + 1] for i, word in enumerate(router) if word in ("--prefill", "--decode")]
    services = {s["metadata"]["name"]: s["spec"]["selector"] for s in of_kind(found, "Service")}
    expected = set()
    for each in of_kind(found, "StatefulSet"):
        name = each["metadata"]["name"]
        assert each["spec"]["serviceName"] == name
        pod_labels = each["spec"]["template"]["metadata"]["labels"]
        assert services[name].items() <= pod_labels.items()
        expected |= {f"http://{name}-{number}.{name}:8000" for number in range(each["spec"]["replicas"])}
    assert set(urls) == expected
    assert len(urls) == 6


def test_ranks_of_one_instance_are_pinned_apart_and_know_their_leader() -> None:
    found = objects(pipelined_plan())
    ranks = [s for s in of_kind(found, "StatefulSet") if "--node-rank" in container(s)["command"]]
    assert len(ranks) == 2
    leader = next(s for s in ranks if "--headless" not in container(s)["command"])
    name = leader["metadata"]["name"]
    for each in ranks:
        command = container(each)["command"]
        assert command[command.index("--master-addr") + 1] == f"{name}-0.{name}"
    worker = next(s for s in ranks if s is not leader)
    assert "readinessProbe" not in container(worker)
    services = of_kind(found, "Service")
    assert all(s["spec"]["publishNotReadyAddresses"] for s in services if s["spec"].get("clusterIP") == "None")


def test_side_channels_bind_the_pod_s_own_address() -> None:
    env = {each["name"]: each for each in container(of_kind(objects(mixed_plan()), "StatefulSet")[0])["env"]}
    assert env["VLLM_NIXL_SIDE_CHANNEL_HOST"]["valueFrom"] == {"fieldRef": {"fieldPath": "status.podIP"}}


def test_secrets_are_references_and_containers_run_without_root() -> None:
    found = objects(mixed_plan())
    for each in [*of_kind(found, "StatefulSet"), *of_kind(found, "Deployment")]:
        spec = each["spec"]["template"]["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["automountServiceAccountToken"] is False
        assert container(each)["securityContext"]["allowPrivilegeEscalation"] is False
        token = [item for item in container(each)["env"] if item["name"] == "HF_TOKEN"]
        assert all("value" not in item and "secretKeyRef" in item["valueFrom"] for item in token)
    assert not of_kind(found, "Secret")


def test_root_is_possible_only_when_asked() -> None:
    options = LaunchOptions(
        target="kubernetes", model_path="m/x", checkpoint_dtype="bf16", kubernetes=KubernetesOptions(run_as_root=True)
    )
    sets = of_kind(objects(mixed_plan(), options), "StatefulSet")
    assert all("runAsNonRoot" not in s["spec"]["template"]["spec"]["securityContext"] for s in sets)


def test_disruptions_take_one_instance_of_a_role_at_a_time() -> None:
    found = objects(mixed_plan())
    for role in ("prefill", "decode"):
        budget = next(b for b in of_kind(found, "PodDisruptionBudget") if b["metadata"]["name"].endswith(role))
        assert budget["spec"]["maxUnavailable"] == 1
        selector = budget["spec"]["selector"]["matchLabels"]
        pods = [s["spec"]["template"]["metadata"]["labels"] for s in of_kind(found, "StatefulSet")]
        chosen = [labels for labels in pods if selector.items() <= labels.items()]
        assert len(chosen) == 2
        assert {labels["splitplan.io/role"] for labels in chosen} == {role}


@pytest.mark.parametrize("image", ["vllm/vllm-openai", "vllm/vllm-openai:latest", "a b:1", "x:$(y)", ""])
def test_images_without_a_pin_are_refused(image: str) -> None:
    options = LaunchOptions(target="kubernetes", model_path="m/x", checkpoint_dtype="bf16", router_image=image or "x")
    with pytest.raises(LaunchError, match="not pinned"):
        render(mixed_plan(), options)


def gang_options(gang: str) -> LaunchOptions:
    options = KubernetesOptions(gang=gang)
    return LaunchOptions(target="kubernetes", model_path="m/x", checkpoint_dtype="bf16", kubernetes=options)


def test_volcano_holds_all_engine_pods_back_until_all_fit() -> None:
    found = objects(mixed_plan(), gang_options("volcano"))
    (group,) = of_kind(found, "PodGroup")
    assert set(group) == {"apiVersion", "kind", "metadata", "spec"}
    assert group["spec"] == {"minMember": 6}
    for each in of_kind(found, "StatefulSet"):
        template = each["spec"]["template"]
        assert template["spec"]["schedulerName"] == "volcano"
        assert template["metadata"]["annotations"]["scheduling.k8s.io/group-name"] == group["metadata"]["name"]
        kubernetes_validate.validate(each, SCHEMA_VERSION, strict=True)
    router = of_kind(found, "Deployment")[0]
    assert "schedulerName" not in router["spec"]["template"]["spec"]


def test_kueue_queues_every_set_under_the_queue_asked_for() -> None:
    sets = of_kind(objects(mixed_plan(), gang_options("kueue:gpus")), "StatefulSet")
    assert {each["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] for each in sets} == {"gpus"}


@pytest.mark.parametrize("gang", ["volcan", "kueue", "kueue:", "kueue:a b", "volcano:x"])
def test_an_unknown_gang_is_wrong_usage(gang: str) -> None:
    with pytest.raises(UsageError, match="unknown gang"):
        render(mixed_plan(), gang_options(gang))


def test_images_by_digest_are_taken() -> None:
    image = f"registry.example.com:5000/vllm@sha256:{'a' * 64}"
    options = LaunchOptions(target="kubernetes", model_path="m/x", checkpoint_dtype="bf16", image=image)
    assert all(container(s)["image"] == image for s in of_kind(objects(mixed_plan(), options), "StatefulSet"))


def test_hostile_names_give_valid_distinct_names_and_expand_nothing() -> None:
    """Kubernetes replaces $(NAME) in commands by variables, among them secrets: every $ is written twice."""
    options = LaunchOptions(target="kubernetes", model_path="$(HF_TOKEN)", checkpoint_dtype="bf16")
    found = objects(hostile_plan(), options)
    names = [(each["kind"], each["metadata"]["name"]) for each in found if "metadata" in each]
    assert len(names) == len(set(names))
    assert all(dns_label(name) == name for _, name in names)
    sets = of_kind(found, "StatefulSet")
    assert len(sets) == 2 * len(HOSTILE)
    assert all(len(s["metadata"]["name"]) <= 52 for s in sets)
    for each in sets:
        assert "$$(HF_TOKEN)" in container(each)["command"]
        assert "$(HF_TOKEN)" not in container(each)["command"]


def test_a_dollar_sign_is_doubled() -> None:
    assert literal("$(A) $B $$") == "$$(A) $$B $$$$"


def test_names_that_clean_to_the_same_label_stay_distinct() -> None:
    labels = unique_labels(["rack 1", "rack-1", "rack_1", "RACK 1"])
    assert len(set(labels.values())) == 4
    assert labels["rack-1"] == "rack-1"
    assert labels == unique_labels(["rack 1", "rack-1", "rack_1", "RACK 1"])


def test_rendering_twice_gives_the_same_bytes() -> None:
    assert render(mixed_plan(), OPTIONS) == render(mixed_plan(), OPTIONS)


def test_a_gateway_splits_between_the_two_kinds_of_router_as_planned() -> None:
    """vllm-router serves one kind; a quarter of the requests are planned for the colocated instance."""
    options = LaunchOptions(
        target="kubernetes",
        model_path="m/x",
        checkpoint_dtype="bf16",
        name="x",
        kubernetes=KubernetesOptions(gateway="infra/front"),
    )
    (route,) = of_kind(objects(combined_plan(), options), "HTTPRoute")
    assert set(route) == {"apiVersion", "kind", "metadata", "spec"}
    assert route["spec"]["parentRefs"] == [{"name": "front", "namespace": "infra"}]
    backends = {each["name"]: each["weight"] for each in route["spec"]["rules"][0]["backendRefs"]}
    assert backends == {"x-router": 750, "x-router-colocated": 250}
    services = {each["metadata"]["name"] for each in of_kind(objects(combined_plan(), options), "Service")}
    assert set(backends) <= services
    (alone,) = of_kind(objects(mixed_plan(), options), "HTTPRoute")
    assert [each["weight"] for each in alone["spec"]["rules"][0]["backendRefs"]] == [1000]


@pytest.mark.parametrize("name", ["", "Front", "a/b/c", "$(x)", "/x"])
def test_what_is_no_gateway_is_wrong_usage(name: str) -> None:
    options = LaunchOptions(
        target="kubernetes", model_path="m/x", checkpoint_dtype="bf16", kubernetes=KubernetesOptions(gateway=name)
    )
    if not name:
        assert not of_kind(objects(mixed_plan(), options), "HTTPRoute")
        return
    with pytest.raises(UsageError, match="names no gateway"):
        render(mixed_plan(), options)
