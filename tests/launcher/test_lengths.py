"""Plans whose instances take prompts of some lengths only: our router sends by length, others get a door for each."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace as changed

import numpy as np
import pytest

from splitplan.catalogs.errors import LaunchError
from splitplan.launcher.bench import _front_door
from splitplan.launcher.loadtest import replay
from splitplan.launcher.render import LaunchOptions, make_cluster, make_engine, render
from splitplan.launcher.state import save_state, state_path
from splitplan.launcher.web import get
from splitplan.planner.plan import Plan
from splitplan.planner.spec.workload import Requests
from tests.launcher.conftest import Start
from tests.launcher.plans import combined_plan, mixed_plan, small_plan

EDGE = 100


def by_length(plan: Plan) -> Plan:
    """The first prefill instance takes short prompts, the others long ones; decode takes all."""
    first, *rest = plan.pools
    short = first.model_copy(update={"name": "short", "instances": first.instances[:1], "up_to_tokens": EDGE})
    long = first.model_copy(update={"name": "long", "instances": first.instances[1:], "above_tokens": EDGE})
    return plan.model_copy(update={"pools": (short, long, *rest)})


def requests(lengths: list[int]) -> Requests:
    count, zeros = len(lengths), np.zeros(len(lengths), dtype=np.int64)
    return Requests(np.arange(count) * 0.02, np.array(lengths), np.full(count, 3), zeros, zeros)


def served_by(url: str) -> dict[str, int]:
    """Requests by prefill instance, as the router counts them."""
    counts: dict[str, int] = {}
    for line in get(f"{url}/metrics", timeout_s=5).decode().splitlines():
        if line.startswith("splitplan_router_requests_total"):
            name, value = line.split('prefill="')[1].split('"')[0], int(line.rpartition(" ")[2])
            counts[name] = counts.get(name, 0) + value
    return counts


def test_the_mock_router_sends_by_length(start: Start) -> None:
    """Short prompts to the one prefill instance, long ones to the other; an edge belongs to the shorter ones."""
    launched = start(by_length(small_plan(num_pairs=2)))
    url = launched.state.endpoints[0]
    before = served_by(url)
    found = replay(url, launched.state.model, requests([EDGE, 5, EDGE + 1, 400, 30, 60, 90]))
    assert not [each.error for each in found if each.error]
    after = served_by(url)
    assert after["prefill-0"] - before["prefill-0"] == 5
    assert after["prefill-1"] - before["prefill-1"] == 2


@pytest.mark.parametrize(("target", "engine"), [("shell", "vllm"), ("shell", "sglang"), ("kubernetes", "vllm")])
def test_each_range_has_a_router_over_its_own_instances(target: str, engine: str) -> None:
    """Two front doors: one to the short-prompt instance, one to the others; both to all decode instances."""
    plan = by_length(mixed_plan())
    options = LaunchOptions(target=target, engine=engine)
    adapter = make_engine(plan, options)
    cluster = make_cluster(plan, options, adapter)
    assert [str(place.prompts) for place in cluster.routers] == ["prompts up to 100", "prompts over 100"]
    urls = {member.name: member.url for member in cluster.members}
    for place, wanted in zip(cluster.routers, (["prefill-0"], ["prefill-1", "prefill-2"]), strict=True):
        argv = adapter.router(cluster, place).argv
        assert [name for name in urls if name.startswith("prefill") and urls[name] in argv] == wanted
        assert all(urls[f"decode-{number}"] in argv for number in range(3))
    files = render(plan, options)
    if target == "shell":
        assert f"Endpoint for prompts up to {EDGE} tokens: {cluster.routers[0].url}" in files["README.md"]
        assert "clients, or a gateway of yours" in files["README.md"]
        assert json.loads(files["cluster.json"])["prompts"] == [[0, EDGE], [EDGE, 0]]
    else:
        assert f"{cluster.name}-router-1" in files["router.yaml"]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (LaunchOptions(target="kserve"), "kserve has one front door"),
        (LaunchOptions(target="shell", engine="dynamo-vllm", shared_folder="/x"), "router of dynamo-vllm does not"),
    ],
)
def test_who_cannot_tell_lengths_apart_says_so(options: LaunchOptions, reason: str) -> None:
    """Nothing is written that would serve every prompt anywhere."""
    with pytest.raises(LaunchError, match=reason):
        render(by_length(mixed_plan()), options)


def test_one_range_on_both_kinds_of_instances_is_refused() -> None:
    """A stock router is in front of prefill and decode, or of colocated instances."""
    plan = combined_plan()
    pools = tuple(pool.model_copy(update={"up_to_tokens": 0, "above_tokens": 0}) for pool in plan.pools)
    extra = pools[0].model_copy(
        update={
            "name": "long",
            "above_tokens": EDGE,
            "instances": (mixed_plan().pools[0].instances[1],),
        }
    )
    short = pools[0].model_copy(update={"up_to_tokens": EDGE})
    with pytest.raises(LaunchError, match="one router of vllm serves one kind"):
        render(plan.model_copy(update={"pools": (short, extra, *pools[1:])}), LaunchOptions(target="shell"))


def test_a_load_test_uses_the_door_of_each_prompt(start: Start, plan_file: object) -> None:
    """The launched state says which endpoint takes which prompts."""
    launched = start(small_plan(num_pairs=2))
    state = changed(
        launched.state,
        endpoints=("http://127.0.0.1:1", "http://127.0.0.1:2"),
        extra={**launched.state.extra, "prompts": [[0, EDGE], [EDGE, 0]]},
    )
    original = launched.state
    save_state(state, state_path(plan_file))  # type: ignore[arg-type]
    try:
        with _front_door(str(plan_file)) as door:
            chosen: Callable[[int], str] = door
            assert [chosen(tokens)[-1] for tokens in (1, EDGE, EDGE + 1)] == ["1", "1", "2"]
    finally:
        save_state(original, state_path(plan_file))  # type: ignore[arg-type]
