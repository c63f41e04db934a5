"""Ray placement groups without Ray: bundles, selectors, what does not fit. Real raylets place them in tests/heavy."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from splitplan.catalogs.errors import LaunchError
from splitplan.launcher.render import LaunchOptions, make_cluster, make_engine, render
from splitplan.launcher.targets.ray_groups import (
    ACCELERATOR_LABEL,
    NODE_ID_LABEL,
    NODE_LABEL,
    Bundle,
    RayNode,
    RayTarget,
    bundles_of,
    find_node,
    placement,
    resource_problems,
)
from tests.launcher.plans import mixed_plan

OPTIONS = LaunchOptions(target="ray-groups", model_path="m/x", checkpoint_dtype="bf16")


def bundles() -> list[Bundle]:
    engine = make_engine(mixed_plan(), OPTIONS)
    return bundles_of(make_cluster(mixed_plan(), OPTIONS, engine), engine)


def node(name: str, gpus: float, accelerator: str = "", *, free: float | None = None) -> RayNode:
    labels = {NODE_LABEL: name, **({ACCELERATOR_LABEL: accelerator} if accelerator else {})}
    total = {"GPU": gpus, "CPU": 8.0}
    return RayNode(
        f"id-{name}", "10.0.0.9", "somewhere", labels, total, total if free is None else {**total, "GPU": free}
    )


def nodes() -> list[RayNode]:
    """Just what the plan takes."""
    return [
        node("h100-0", 4, "H100"),
        node("h100-1", 2, "H100"),
        node("a100-0", 8, "A100-80G"),
        node("a100-1", 4, "A100-80G"),
    ]


def test_what_fits_exactly_fits() -> None:
    assert resource_problems(bundles(), nodes()) == []


def test_all_that_does_not_fit_is_said_at_once() -> None:
    """Too few, taken, of another type, not there."""
    there = nodes()
    there[0] = node("h100-0", 2, "H100")
    there[1] = node("h100-1", 2, "H100", free=1)
    there[2] = node("a100-0", 8, "L40S")
    found = [str(problem.message) for problem in resource_problems(bundles(), there[:3])]
    assert "Ray's node 'h100-0' has 2 GPU; the plan takes 4" in found
    assert "Ray's node 'h100-1' has 2 GPU, 1 of them taken; the plan takes 2" in found
    assert "Ray says that 'a100-0' has L40S; the plan takes A100-80G there" in found
    assert "Ray has no node 'a100-1'" in found
    assert len(found) == 4


def test_a_node_is_found_by_label_or_by_an_address_of_its_own() -> None:
    plain = RayNode("1", "10.0.1.1", "host-a", {}, {}, {})
    assert find_node("host-a", "", [plain]) is plain
    assert find_node("other", "10.0.1.1", [plain]) is plain
    assert find_node("other", "10.0.1.1", [plain, replace(plain, id="2")]) is None  # two raylets at one address
    labelled = node("other", 1)
    assert find_node("other", "10.0.1.1", [plain, labelled]) is labelled


def test_bundles_carry_the_node_and_the_gpu_type_and_leave_the_indices_to_ray() -> None:
    request = placement("x", bundles(), nodes())
    assert len(request["bundles"]) == len(request["selectors"]) == 7
    assert request["selectors"][0] == {NODE_LABEL: "h100-0", ACCELERATOR_LABEL: "H100"}
    assert request["bundles"][0] == {"GPU": 2.0}
    assert {"CPU": 1.0} in request["bundles"]
    assert not any("CUDA_VISIBLE_DEVICES" in process["env"] for process in request["processes"])
    unlabelled = [replace(each, labels={}, hostname=each.labels[NODE_LABEL]) for each in nodes()]
    assert placement("x", bundles(), unlabelled)["selectors"][0] == {NODE_ID_LABEL: "id-h100-0"}


def test_the_dry_run_shows_what_ray_would_be_asked() -> None:
    found = json.loads(render(mixed_plan(), OPTIONS)["placement.json"])
    assert {each["splitplan.io/node"] for each in found["selectors"]} == {"h100-0", "h100-1", "a100-0", "a100-1"}


def test_a_python_without_ray_is_one_message() -> None:
    import sys

    engine = make_engine(mixed_plan(), OPTIONS)
    cluster = make_cluster(mixed_plan(), OPTIONS, engine)
    with pytest.raises(LaunchError, match="/nonexistent/python is not there"):
        RayTarget("/nonexistent/python").preflight(cluster, engine)
    with pytest.raises(LaunchError) as caught:
        RayTarget(sys.executable).preflight(cluster, engine)
    assert "ray" in str(caught.value).casefold()
