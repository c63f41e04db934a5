"""Placement: what a plan must be before any engine or target sees it."""

from __future__ import annotations

from typing import Any

import pytest

from splitplan.catalogs.errors import LaunchError
from splitplan.launcher import preflight
from splitplan.launcher.cluster import place
from splitplan.launcher.engines.vllm import VllmEngine
from splitplan.launcher.render import LaunchOptions, model_source, render
from splitplan.planner.plan import Plan, Pool
from tests.launcher.plans import colocated_plan, combined_plan, mixed_plan, pipelined_plan, slots


def broken(plan: Plan, pool_index: int = 0, instance_index: int = 0, **instance_changes: Any) -> Plan:
    pools = list(plan.pools)
    instances = list(pools[pool_index].instances)
    instances[instance_index] = instances[instance_index].model_copy(update=instance_changes)
    pools[pool_index] = pools[pool_index].model_copy(update={"instances": tuple(instances)})
    return plan.model_copy(update={"pools": tuple(pools)})


def with_pool(plan: Plan, index: int, **changes: Any) -> Plan:
    pools: list[Pool] = list(plan.pools)
    pools[index] = pools[index].model_copy(update=changes)
    return plan.model_copy(update={"pools": tuple(pools)})


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (broken(mixed_plan(), gpus=slots(("h100-0", (0,)))), r"has 1 GPUs; expected 2 \(TP 2 × PP 1\)"),
        (
            broken(mixed_plan(), gpus=slots(("h100-0", (2, 3)))),
            "GPU 2 of h100-0 is planned for prefill-0 and prefill-1",
        ),
        (broken(mixed_plan(), gpus=slots(("h100-0", (7, 8)))), "GPU 8 of h100-0, which has 8"),
        (broken(mixed_plan(), gpus=slots(("h100-0", (7, 7)))), "lists a GPU twice"),
        (broken(mixed_plan(), name="prefill-1"), "two instances are named 'prefill-1'"),
        (broken(pipelined_plan(), gpus=slots(("a", range(10)), ("b", range(6)))), "unequal numbers of GPUs"),
        (
            broken(pipelined_plan(), gpus=slots(("a", range(8)), ("b", range(4)), ("a", range(8, 12)))),
            "ranks of a node must be consecutive",
        ),
        (mixed_plan().model_copy(update={"pools": mixed_plan().pools[:1]}), "no decode instance"),
        (mixed_plan().model_copy(update={"pools": ()}), "no instances"),
    ],
)
def test_a_plan_that_cannot_be_placed_is_refused(plan: Plan, message: str) -> None:
    with pytest.raises(LaunchError, match=message):
        place(plan, model_path="m/x")


def test_all_problems_come_at_once() -> None:
    plan = broken(broken(mixed_plan(), gpus=slots(("h100-0", (0,)))), 1, gpus=slots(("a100-0", (0, 1, 2, 9))))
    with pytest.raises(LaunchError) as caught:
        place(plan, model_path="m/x")
    assert len(caught.value.problems) == 2


def test_ipv6_addresses_are_bracketed_in_urls_only() -> None:
    plan = mixed_plan()
    hosts = tuple(host.model_copy(update={"address": f"fd00::{n}"}) for n, host in enumerate(plan.hosts, start=1))
    cluster = place(plan.model_copy(update={"hosts": hosts}), model_path="m/x")
    assert cluster.members[0].url == "http://[fd00::1]:8100"
    assert cluster.members[0].host.address == "fd00::1"


def test_colocated_share_is_the_plan_s_else_by_gpus() -> None:
    assert place(combined_plan(), model_path="m/x").colocated_share == 0.25
    unsaid = combined_plan().model_copy(update={"colocated_share": None})
    assert place(unsaid, model_path="m/x").colocated_share == pytest.approx(4 / 10)
    assert place(colocated_plan(), model_path="m/x").colocated_share == 1.0
    assert place(mixed_plan(), model_path="m/x").colocated_share == 0.0


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (with_pool(mixed_plan(), 1, max_model_len=500_000), "does not fit its KV cache"),
        (with_pool(mixed_plan(), 1, max_num_batched_tokens=8), "a full decode batch would not fit one step"),
        (with_pool(mixed_plan(), 0, weight_dtype="int4"), "need a checkpoint stored in that dtype"),
        (with_pool(mixed_plan(), 0, expert_parallel=8), "spreads experts over all tensor-parallel ranks"),
        (with_pool(mixed_plan(), 0, attention_backend="--help"), "attention_backend is '--help'"),
        (with_pool(mixed_plan(), 0, kv_dtype="$(x)"), r"kv_dtype is '\$\(x\)'"),
        (mixed_plan(connector="CarrierPigeon"), "no connector 'CarrierPigeon'"),
    ],
)
def test_what_would_stop_the_engine_is_found_before_it_starts(plan: Plan, message: str) -> None:
    with pytest.raises(LaunchError, match=message):
        preflight.check(place(plan, model_path="m/x", checkpoint_dtype="bf16"), VllmEngine.create(), "shell")


def test_weights_of_a_quantised_checkpoint_are_not_planned_as_16_bit() -> None:
    """The engine would load 8-bit weights where the plan counted 16-bit ones."""
    with pytest.raises(LaunchError, match="stored in fp8"):
        preflight.check(place(mixed_plan(), model_path="m/x", checkpoint_dtype="fp8"), VllmEngine.create(), "shell")


def test_fp8_weights_of_a_16_bit_checkpoint_are_quantised_while_loading() -> None:
    plan = with_pool(with_pool(mixed_plan(), 0, weight_dtype="fp8"), 1, weight_dtype="fp8")
    online = render(plan, LaunchOptions(model_path="m/x", checkpoint_dtype="bf16"))["hosts/h100-0.sh"]
    stored = render(plan, LaunchOptions(model_path="m/x", checkpoint_dtype="fp8"))["hosts/h100-0.sh"]
    assert "--quantization fp8" in online
    assert "--quantization" not in stored


def test_a_catalog_name_becomes_the_repository_that_engines_load() -> None:
    assert model_source(mixed_plan(), LaunchOptions()) == ("meta-llama/Llama-3.1-70B", "bf16")


def test_a_model_nobody_knows_needs_a_path() -> None:
    plan = mixed_plan()
    unknown = plan.model_copy(update={"inputs": plan.inputs.model_copy(update={"model": "secret-model"})})
    with pytest.raises(LaunchError, match="--model-path"):
        model_source(unknown, LaunchOptions())
    assert model_source(unknown, LaunchOptions(model_path="/m")) == ("/m", "")


def test_a_pair_the_connector_forbids_is_refused_with_the_rule() -> None:
    """Unequal block sizes answer with wrong tokens on a healthy cluster: they never get that far."""
    with pytest.raises(LaunchError, match="KV blocks hold 16 tokens for prefill and 32 for decode"):
        render(with_pool(mixed_plan(), 1, block_tokens=32), LaunchOptions())


def test_a_pool_without_an_attention_backend_gets_one_that_both_sides_have() -> None:
    """H100 and B200 differ in their defaults; the common choice is pinned on both."""
    plan = with_pool(with_pool(mixed_plan(), 0, attention_backend=""), 1, attention_backend="", gpu="b200")
    files = render(plan, LaunchOptions())
    for name in ("hosts/h100-0.sh", "hosts/a100-0.sh"):
        assert "--attention-backend FLASH_ATTN" in files[name]


def test_a_model_that_no_catalog_knows_is_refused() -> None:
    plan = mixed_plan()
    unknown = plan.model_copy(update={"inputs": plan.inputs.model_copy(update={"model": "$(touch PWNED)"})})
    with pytest.raises(LaunchError, match="unknown model"):
        render(unknown, LaunchOptions(model_path="m/x"))
