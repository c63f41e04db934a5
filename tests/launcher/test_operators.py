"""Forms for operators and charts: valid by their published schemas, with the planned numbers, or refused."""

from __future__ import annotations

import copy
import json
import shlex
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest
import yaml

from splitplan.catalogs.errors import LaunchError
from splitplan.launcher.render import LaunchOptions, render
from splitplan.planner.plan import Plan
from tests.conftest import SHARED
from tests.launcher.plans import HOSTILE, colocated_plan, combined_plan, hostile_plan, mixed_plan, pipelined_plan

SCHEMAS = SHARED / "launch" / "crds"
"""Published CRDs, where there is a copy; elsewhere the lists of keys below stand in for them."""

CRDS = {
    "LeaderWorkerSet": ("lws/leaderworkerset.x-k8s.io_leaderworkersets.yaml", "v1"),
    "DisaggregatedSet": ("lws/disaggregatedset.x-k8s.io_disaggregatedsets.yaml", "v1"),
    "LLMInferenceService": ("kserve/serving.kserve.io_llminferenceservices.yaml", "v1alpha2"),
    "PodCliqueSet": ("grove/grove.io_podcliquesets.yaml", "v1alpha1"),
}

OWN_KEYS = {
    "LeaderWorkerSet": {"replicas", "leaderWorkerTemplate"},
    "DisaggregatedSet": {"slices", "placementPolicy", "roles"},
    "LLMInferenceService": {"model", "replicas", "parallelism", "template", "router", "prefill"},
    "PodCliqueSet": {"replicas", "template"},
    "DynamoGraphDeployment": {"backendFramework", "components", "experimental", "topologyConstraint"},
}
"""Keys of `spec`, written by us after each tool's reference."""

COMPONENT_KEYS = {"name", "type", "replicas", "podTemplate", "sharedMemorySize", "multinode"}


def options(target: str, **changes: Any) -> LaunchOptions:
    engine = "dynamo-vllm" if target == "dynamo" else ""
    values = {"model_path": "meta-llama/Llama-3.1-70B", "checkpoint_dtype": "bf16", "engine": engine} | changes
    return LaunchOptions(target=target, **values)


def documents(plan: Plan, target: str, **changes: Any) -> list[dict[str, Any]]:
    return [each for text in render(plan, options(target, **changes)).values() for each in yaml.safe_load_all(text)]


def document(plan: Plan, target: str, **changes: Any) -> dict[str, Any]:
    """The one object of the target's own kind."""
    kinds = {*CRDS, "DynamoGraphDeployment"}
    return next(each for each in documents(plan, target, **changes) if each.get("kind") in kinds)


def strict(schema: Any) -> Any:
    """An OpenAPI schema of a CRD as JSON schema in which an unknown key is an error, as in the server's strict mode."""
    if not isinstance(schema, dict):
        return schema
    schema = {
        key: strict(value) if key != "properties" else {n: strict(v) for n, v in value.items()}
        for key, value in schema.items()
    }
    if schema.get("x-kubernetes-int-or-string"):
        return {"anyOf": [{"type": "integer"}, {"type": "string"}]}
    if "properties" in schema and not schema.get("x-kubernetes-preserve-unknown-fields"):
        schema.setdefault("additionalProperties", False)
    return schema


def check(found: dict[str, Any]) -> None:
    kind = found["kind"]
    assert set(found) == {"apiVersion", "kind", "metadata", "spec"}
    assert set(found["spec"]) <= OWN_KEYS[kind]
    if kind in CRDS and SCHEMAS.exists():
        path, version = CRDS[kind]
        crd = yaml.load((SCHEMAS / path).read_text(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        schema = next(each["schema"]["openAPIV3Schema"] for each in crd["spec"]["versions"] if each["name"] == version)
        assert found["apiVersion"].endswith(f"/{version}")
        body = strict({key: value for key, value in schema["properties"].items() if key == "spec"}["spec"])
        jsonschema.Draft7Validator(body).validate(found["spec"])


TARGETS = ("lws", "disaggregatedset", "dynamo", "kserve", "grove")


@pytest.mark.parametrize("target", TARGETS)
def test_the_mixed_plan_renders_by_the_published_schema(target: str) -> None:
    """H100 prefill and A100 decode: every form can hold two GPU types."""
    for found in documents(mixed_plan(), target):
        if found.get("kind") in OWN_KEYS:
            check(found)
    assert render(mixed_plan(), options(target)) == render(mixed_plan(), options(target))


def test_the_strict_schema_catches_a_misspelt_key() -> None:
    """The check itself: one wrong key inside a pod fails it."""
    if not SCHEMAS.exists():
        pytest.skip("needs the published CRDs of the reference data")
    found = copy.deepcopy(document(mixed_plan(), "lws"))
    found["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]["nodeSelectors"] = {}
    with pytest.raises(jsonschema.ValidationError, match="nodeSelectors"):
        check(found)


def test_llmd_values_follow_the_chart_s_schema() -> None:
    values = yaml.safe_load(render(mixed_plan(), options("llm-d"))["values.yaml"])
    assert values["prefill"]["replicas"] == 3
    assert values["decode"]["parallelism"] == {"tensor": 4}
    assert values["decode"]["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}
    assert set(values["decode"]) == {"create", "replicas", "parallelism", "nodeSelector", "containers"}
    if (SCHEMAS / "llm-d-modelservice").exists():
        schema = json.loads((SCHEMAS / "llm-d-modelservice" / "values.schema.json").read_text())
        jsonschema.Draft7Validator(schema).validate(values)


def test_each_leader_worker_set_has_the_planned_instances_on_the_planned_nodes() -> None:
    found = [each for each in documents(mixed_plan(), "lws") if each["kind"] == "LeaderWorkerSet"]
    assert [each["spec"]["replicas"] for each in found] == [3, 3]
    for each, nodes in zip(found, (["h100-0", "h100-1"], ["a100-0", "a100-1"]), strict=True):
        pod = each["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]
        terms = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        assert terms[0]["matchExpressions"][0]["values"] == nodes


def test_an_instance_over_nodes_is_one_group_with_the_group_s_own_variables() -> None:
    """The only $(…) that Kubernetes may expand are the two that the group sets."""
    found = next(each for each in documents(pipelined_plan(), "lws") if "prefill" in each["metadata"]["name"])
    check(found)
    template = found["spec"]["leaderWorkerTemplate"]
    assert template["size"] == 2
    assert found["metadata"]["annotations"] == {
        "leaderworkerset.sigs.k8s.io/exclusive-topology": "topology.kubernetes.io/rack"
    }
    leader, worker = (
        template[name]["spec"]["containers"][0]["command"] for name in ("leaderTemplate", "workerTemplate")
    )
    assert leader[leader.index("--node-rank") + 1] == "0"
    assert worker[worker.index("--node-rank") + 1] == "$(LWS_WORKER_INDEX)"
    assert worker[worker.index("--master-addr") + 1] == "$(LWS_LEADER_ADDRESS)"
    assert "--headless" in worker


def alike_racks() -> Plan:
    """Two racks with one prefill and one decode instance each."""
    plan = mixed_plan()
    keep = ({"prefill-0", "prefill-2"}, {"decode-0", "decode-2"})
    pools = [
        pool.model_copy(update={"instances": tuple(each for each in pool.instances if each.name in names)})
        for pool, names in zip(plan.pools, keep, strict=True)
    ]
    routes = tuple(route for route in plan.routes if route.prefill in keep[0])
    return plan.model_copy(update={"pools": tuple(pools), "routes": routes})


def test_alike_racks_become_slices_that_stay_in_their_racks() -> None:
    found = document(alike_racks(), "disaggregatedset")["spec"]
    assert found["slices"] == 2
    assert found["placementPolicy"] == {"type": "ExclusiveSlice", "topology": "topology.kubernetes.io/rack"}
    assert [role["spec"]["replicas"] for role in found["roles"]] == [1, 1]


def test_unlike_racks_stay_one_slice() -> None:
    found = document(mixed_plan(), "disaggregatedset")["spec"]
    assert found["slices"] == 1
    assert found["placementPolicy"] == {"type": "None"}


def test_a_disaggregated_set_s_router_finds_pods_by_label_and_may_look_at_them() -> None:
    found = documents(mixed_plan(), "disaggregatedset")
    router = next(each for each in found if each["kind"] == "Deployment")["spec"]["template"]["spec"]
    command = router["containers"][0]["command"]
    assert "--service-discovery" in command
    assert not [word for word in command if word.startswith("http://")]
    role = next(each for each in found if each["kind"] == "Role")
    assert role["rules"] == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}]
    assert router["serviceAccountName"] == role["metadata"]["name"]


def test_a_dynamo_graph_keeps_pairs_in_racks_where_the_plan_does() -> None:
    found = document(mixed_plan(), "dynamo")["spec"]
    assert found["experimental"]["kvTransferPolicy"]["enforcement"] == "required"
    components = {each["name"]: each for each in found["components"]}
    assert all(set(each) <= COMPONENT_KEYS for each in components.values())
    assert sorted(each["type"] for each in components.values()) == ["decode", "frontend", "prefill"]
    crossing = [route.model_copy(update={"path": "cross-rack"}) for route in mixed_plan().routes]
    assert "experimental" not in document(mixed_plan().model_copy(update={"routes": tuple(crossing)}), "dynamo")["spec"]


def test_a_dynamo_component_over_nodes_leaves_ranks_to_the_operator() -> None:
    found = document(pipelined_plan(), "dynamo")["spec"]["components"][1]
    assert found["multinode"] == {"nodeCount": 2}
    arguments = found["podTemplate"]["spec"]["containers"][0]["args"]
    assert "--node-rank" not in arguments
    assert arguments[arguments.index("--pipeline-parallel-size") + 1] == "2"


def test_kserve_passes_the_plan_s_limits_to_the_engine() -> None:
    found = document(mixed_plan(), "kserve")["spec"]
    env = {each["name"]: each for each in found["template"]["containers"][0]["env"]}
    words = shlex.split(env["VLLM_ADDITIONAL_ARGS"]["value"])
    assert words[words.index("--max-num-seqs") + 1] == "96"
    assert json.loads(words[words.index("--kv-transfer-config") + 1])["kv_role"] == "kv_consumer"
    assert "--port" not in words
    assert found["prefill"]["parallelism"] == {"tensor": 2}
    colocated = document(colocated_plan(), "kserve")
    check(colocated)
    assert "prefill" not in colocated["spec"]


def two_prefill_pools() -> Plan:
    plan = mixed_plan()
    first = plan.pools[0]
    split = [
        first.model_copy(update={"name": f"{first.name} {part}", "instances": instances})
        for part, instances in (("a", first.instances[:1]), ("b", first.instances[1:]))
    ]
    return plan.model_copy(update={"pools": (*split, plan.pools[1])})


@pytest.mark.parametrize(
    ("make", "target", "reason"),
    [
        (two_prefill_pools, "kserve", "holds one kind of prefill instance; this plan has 2"),
        (two_prefill_pools, "llm-d", "holds one kind of prefill instance; this plan has 2"),
        (combined_plan, "kserve", "serves either colocated or disaggregated"),
        (combined_plan, "disaggregatedset", "holds prefill and decode; this plan has colocated"),
        (pipelined_plan, "llm-d", "no pipeline parallelism"),
        (pipelined_plan, "kserve", "spreads data parallel ranks over nodes"),
        (pipelined_plan, "grove", "over several nodes are not rendered"),
    ],
)
def test_what_a_form_cannot_say_is_refused_with_the_reason(make: Callable[[], Plan], target: str, reason: str) -> None:
    with pytest.raises(LaunchError, match=reason):
        render(make(), options(target))


def test_several_kinds_of_prefill_render_where_a_form_can_hold_them() -> None:
    for target in ("lws", "disaggregatedset", "dynamo", "grove"):
        check(document(two_prefill_pools(), target))


@pytest.mark.parametrize("target", ["kubernetes", "lws", "grove"])
def test_plain_pods_do_not_hold_dynamo_s_workers_or_mocks(target: str) -> None:
    with pytest.raises(LaunchError, match="nothing to find each other by"):
        render(mixed_plan(), options(target, engine="dynamo-vllm"))
    with pytest.raises(LaunchError, match="mock has no container image"):
        render(mixed_plan(), options(target, engine="mock"))


def test_a_wrong_engine_for_an_operator_is_refused() -> None:
    with pytest.raises(LaunchError, match="runs Dynamo's workers, not vllm"):
        render(mixed_plan(), options("dynamo", engine="vllm"))
    with pytest.raises(LaunchError, match="runs vLLM, not sglang"):
        render(mixed_plan(), options("kserve", engine="sglang"))


@pytest.mark.parametrize("target", ["lws", "disaggregatedset", "dynamo", "grove", "kserve", "llm-d"])
def test_hostile_names_expand_nothing(target: str) -> None:
    """No `$(` of a name survives where Kubernetes would replace it by a variable, and object names are labels."""
    text = "".join(render(hostile_plan(), options(target, model_path=HOSTILE[0], served_name="$(HF_TOKEN)")).values())
    names = [each["metadata"]["name"] for each in yaml.safe_load_all(text) if each and "metadata" in each]
    assert all(name.replace("-", "").isalnum() and name.isascii() for name in names)

    def commands(value: Any) -> list[str]:
        if isinstance(value, dict):
            found = [
                text for key in ("command", "args") for text in value.get(key, []) if isinstance(value.get(key), list)
            ]
            found += [value["value"]] if isinstance(value.get("value"), str) else []
            return found + [text for each in value.values() for text in commands(each)]
        return [text for each in value for text in commands(each)] if isinstance(value, list) else []

    for each in yaml.safe_load_all(text):
        for word in commands(each):
            assert "$(" not in word.replace("$$", "")


def test_tensorrt_llm_over_nodes_is_the_operator_s_to_start() -> None:
    """Two nodes an instance: a `multinode` component for Dynamo's operator, which runs mpirun; elsewhere refused."""
    found = document(pipelined_plan(), "dynamo", engine="dynamo-trtllm")
    parts = {each["name"]: each for each in found["spec"]["components"]}
    prefill = next(each for name, each in parts.items() if "prefill" in name)
    assert prefill["multinode"] == {"nodeCount": 2}
    container = prefill["podTemplate"]["spec"]["containers"][0]
    assert container["command"] == ["python3", "-m", "dynamo.trtllm"]
    assert "--pipeline-parallel-size" in container["args"]
    with pytest.raises(LaunchError, match="needs an MPI launcher, which slurm has not") as caught:
        documents(pipelined_plan(), "slurm", engine="dynamo-trtllm")
    assert "--target dynamo" in caught.value.problems[0].next_step
