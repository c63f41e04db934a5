"""Pipelines whose stages stand on different GPU types: started where a form can say so, refused where it cannot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from splitplan.catalogs.errors import DocumentError, LaunchError
from splitplan.launcher.render import LaunchOptions, render
from splitplan.planner.plan import Plan, PoolStage, load_plan, plan_hash, save_plan
from tests.launcher.plans import colocated_plan, mixed_pipeline_plan, slots

MODEL = {"model_path": "meta-llama/Llama-3.1-405B", "checkpoint_dtype": "bf16"}


def rendered(target: str, plan: Plan | None = None, **changes: Any) -> dict[str, str]:
    return render(plan or mixed_pipeline_plan(), LaunchOptions(target=target, **(MODEL | changes)))


@pytest.mark.parametrize("target", ["ssh", "shell", "slurm", "ray-groups"])
def test_every_rank_is_told_the_layers_of_all_stages(target: str) -> None:
    """vLLM reads its layers from the environment: each of the four processes gets the same list."""
    text = "\n".join(rendered(target).values())
    assert text.count("VLLM_PP_LAYER_PARTITION") == 4
    assert "38,88" in text


def test_sglang_has_a_variable_of_its_own() -> None:
    text = "\n".join(rendered("ssh", engine="sglang").values())
    assert text.count("SGLANG_PP_LAYER_PARTITION=38,88") == 4


def test_slurm_asks_every_node_for_its_own_type() -> None:
    """One component for each node, with the GPU type of the stage that stands there."""
    lines = rendered("slurm")["job.sbatch"].splitlines()
    asked = [line for line in lines if "--nodelist" in line]
    for n in range(2):
        assert any(f"--nodelist=a100-{n}" in line and "--gres=gpu:a100:8" in line for line in asked)
        assert any(f"--nodelist=h100-{n}" in line and "--gres=gpu:h100:8" in line for line in asked)


def test_cluster_file_names_the_type_of_every_rank() -> None:
    found = json.loads(rendered("ssh")["cluster.json"])["instances"]
    assert [each["gpu"] for each in found] == ["a100-sxm-80", "h100-sxm"] * 2


def test_kubernetes_selects_the_product_of_every_stage() -> None:
    """A StatefulSet per rank, on its own node and product, with the same layers."""
    objects = list(yaml.safe_load_all(rendered("kubernetes")["colocated.yaml"]))
    pods = [each["spec"]["template"]["spec"] for each in objects if each["kind"] == "StatefulSet"]
    for pod in pods:
        selector = pod["nodeSelector"]
        product = "A100" if selector["kubernetes.io/hostname"].startswith("a100") else "H100"
        assert product in selector["nvidia.com/gpu.product"]
        env = {each["name"]: each.get("value") for each in pod["containers"][0]["env"]}
        assert env["VLLM_PP_LAYER_PARTITION"] == "38,88"
    assert len(pods) == 4


def test_a_leader_worker_set_has_a_template_for_each_type() -> None:
    """Leaders on A100 nodes, workers on H100 nodes, two groups."""
    texts = rendered("lws")
    sets = [d for text in texts.values() for d in yaml.safe_load_all(text) if d["kind"] == "LeaderWorkerSet"]
    template = sets[0]["spec"]["leaderWorkerTemplate"]
    assert (sets[0]["spec"]["replicas"], template["size"]) == (2, 2)
    for side, type_, nodes in (("leaderTemplate", "A100", "a100"), ("workerTemplate", "H100", "h100")):
        pod = template[side]["spec"]
        assert type_ in pod["nodeSelector"]["nvidia.com/gpu.product"]
        terms = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        assert terms[0]["matchExpressions"][0]["values"] == [f"{nodes}-0", f"{nodes}-1"]
    worker = template["workerTemplate"]["spec"]["containers"][0]["command"]
    assert worker[worker.index("--node-rank") + 1] == "$(LWS_WORKER_INDEX)"


@pytest.mark.parametrize(
    ("target", "engine"),
    [("ray", ""), ("dynamo", "dynamo-vllm"), ("kserve", ""), ("llm-d", ""), ("grove", "")],
)
def test_forms_with_one_kind_of_host_refuse(target: str, engine: str) -> None:
    """One error that says what the form lacks and which target has it."""
    with pytest.raises(LaunchError) as caught:
        rendered(target, engine=engine)
    assert any("--target" in problem.next_step for problem in caught.value.problems)


def test_an_engine_that_cuts_layers_alike_is_refused_in_preflight() -> None:
    """The rule by which the solver prunes."""
    plan = mixed_pipeline_plan(engine="dynamo-trtllm", engine_version="1.6.1")
    with pytest.raises(LaunchError, match="cuts layers alike"):
        rendered("ssh", plan)


def test_layers_that_are_not_the_models_are_refused_in_preflight() -> None:
    """A hand-edited plan with a layer too few would answer with a model that is not the one asked for."""
    plan = mixed_pipeline_plan()
    stages = (plan.pools[0].stages[0], plan.pools[0].stages[1].model_copy(update={"layers": 87}))
    pool = plan.pools[0].model_copy(update={"stages": stages})
    with pytest.raises(LaunchError, match="38, 87 layers are not 126 layers"):
        rendered("ssh", plan.model_copy(update={"pools": (pool,)}))


def test_plans_without_mixed_pipelines_are_written_as_before(tmp_path: Path) -> None:
    """No word of stages in the file, and a mixed plan comes back whole."""
    save_plan(colocated_plan(), tmp_path / "plain.yaml")
    assert "stages" not in (tmp_path / "plain.yaml").read_text()
    save_plan(mixed_pipeline_plan(), tmp_path / "mixed.yaml")
    again = load_plan(tmp_path / "mixed.yaml")
    assert again == mixed_pipeline_plan()
    assert plan_hash(again) == plan_hash(mixed_pipeline_plan())


def test_stages_have_to_fit_the_pool(tmp_path: Path) -> None:
    """One stage of two: the file is refused with its place."""
    save_plan(mixed_pipeline_plan(), tmp_path / "plan.yaml")
    text = (tmp_path / "plan.yaml").read_text()
    (tmp_path / "plan.yaml").write_text(text.replace("  - gpu: h100-sxm\n    layers: 88\n", ""))
    with pytest.raises(DocumentError, match="stages are 1 on a100-sxm-80"):
        load_plan(tmp_path / "plan.yaml")


def test_a_leader_worker_set_refuses_workers_of_two_types() -> None:
    """Two A100 stages before an H100 stage: one worker template cannot ask for both."""
    both = mixed_pipeline_plan()
    first = both.pools[0].instances[0]
    gpus = (*slots(("a100-2", range(8))), *first.gpus)
    stages = (PoolStage(gpu="a100-sxm-80", layers=20), PoolStage(gpu="a100-sxm-80", layers=18), both.pools[0].stages[1])
    changed = {"stages": stages, "pipeline_parallel": 3, "instances": (first.model_copy(update={"gpus": gpus}),)}
    plan = both.model_copy(update={"pools": (both.pools[0].model_copy(update=changed),)})
    with pytest.raises(LaunchError, match="one template for its workers"):
        rendered("lws", plan)
    assert "VLLM_PP_LAYER_PARTITION=20,18,88" in rendered("slurm", plan)["job.sbatch"]
