"""Ray Serve: a configuration with the planned replicas and engine arguments, by our own list of keys."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from splitplan.catalogs.errors import LaunchError
from splitplan.launcher.render import LaunchOptions, render
from splitplan.launcher.targets.ray import accelerator
from splitplan.planner.plan import Plan
from tests.launcher.plans import HOSTILE, colocated_plan, combined_plan, mixed_plan, pipelined_plan

APPLICATION_KEYS = {"name", "route_prefix", "import_path", "args"}
MODEL_KEYS = {"model_loading_config", "accelerator_type", "deployment_config", "engine_kwargs"}


def applications(plan: Plan, **changes: Any) -> list[dict[str, Any]]:
    options = LaunchOptions(target="ray", **{"model_path": "m/x", "checkpoint_dtype": "bf16"} | changes)
    found: list[dict[str, Any]] = yaml.safe_load(render(plan, options)["serve.yaml"])["applications"]
    assert all(set(each) == APPLICATION_KEYS for each in found)
    return found


def test_prefill_and_decode_become_one_application() -> None:
    (found,) = applications(mixed_plan())
    assert found["import_path"] == "ray.serve.llm:build_pd_openai_app"
    prefill, decode = found["args"]["prefill_config"], found["args"]["decode_config"]
    assert set(prefill) == set(decode) == MODEL_KEYS
    assert (prefill["accelerator_type"], decode["accelerator_type"]) == ("H100", "A100-80G")
    assert decode["deployment_config"] == {"num_replicas": 3, "max_ongoing_requests": 96}
    arguments = decode["engine_kwargs"]
    assert arguments["tensor_parallel_size"] == 4
    assert arguments["max_num_seqs"] == 96
    assert arguments["enable_chunked_prefill"] is True
    assert arguments["kv_transfer_config"]["kv_role"] == "kv_consumer"
    assert not {"host", "port", "served_model_name"} & set(arguments)


def test_colocated_instances_stand_beside_under_a_path_of_their_own() -> None:
    both = applications(combined_plan())
    assert [each["route_prefix"] for each in both] == ["/", "/colocated"]
    (alone,) = applications(colocated_plan())
    assert alone["route_prefix"] == "/"
    assert set(alone["args"]["llm_configs"][0]) == MODEL_KEYS


def test_ranks_over_nodes_are_ray_s_to_place() -> None:
    arguments = applications(pipelined_plan())[0]["args"]["prefill_config"]["engine_kwargs"]
    assert arguments["pipeline_parallel_size"] == 2
    assert not {"nnodes", "node_rank", "master_addr", "master_port"} & set(arguments)


def test_names_stay_text() -> None:
    """A name that looks like a number or holds YAML is one string."""
    (found,) = applications(mixed_plan(), model_path=HOSTILE[2], served_name="1e3")
    assert found["args"]["decode_config"]["model_loading_config"] == {"model_id": "1e3", "model_source": HOSTILE[2]}


def test_a_gpu_that_ray_does_not_name_is_refused() -> None:
    with pytest.raises(LaunchError, match="no accelerator type for cpu"):
        accelerator("cpu")


def test_another_engine_is_refused() -> None:
    with pytest.raises(LaunchError, match="runs vLLM, not mock"):
        applications(mixed_plan(), engine="mock")
