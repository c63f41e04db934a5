"""Prompt KV in host memory: beside the connector between prefill and decode, never in its place."""

from __future__ import annotations

import json

import pytest

from splitplan.catalogs.errors import LaunchError, UsageError
from splitplan.launcher.render import LaunchOptions, make_cluster, make_engine, render
from splitplan.planner.plan import Plan
from tests.launcher.plans import colocated_plan, mixed_plan


def configs(plan: Plan, host_cache: str) -> dict[str, dict[str, object]]:
    """--kv-transfer-config by role."""
    options = LaunchOptions(model_path="m/x", checkpoint_dtype="bf16", host_cache=host_cache)
    engine = make_engine(plan, options)
    cluster = make_cluster(plan, options, engine)
    found = {}
    for member in cluster.members:
        command = engine.member(cluster, member)
        assert command is not None
        words = command.argv
        if "--kv-transfer-config" in words:
            found[member.pool.role] = json.loads(words[words.index("--kv-transfer-config") + 1])
    return found


def test_a_prefill_instance_keeps_its_connector_and_gets_a_tier_beside_it() -> None:
    found = configs(mixed_plan(), "lmcache:64")
    assert found["prefill"]["kv_connector"] == "MultiConnector"
    nixl, tier = found["prefill"]["kv_connector_extra_config"]["connectors"]  # type: ignore[index]
    assert (nixl["kv_connector"], nixl["kv_role"]) == ("NixlConnector", "kv_producer")
    assert tier["kv_connector"] == "LMCacheConnectorV1"
    assert tier["kv_connector_extra_config"]["lmcache.max_local_cpu_size"] == 64
    assert found["decode"] == configs(mixed_plan(), "")["decode"]


def test_a_colocated_instance_has_the_tier_alone() -> None:
    assert configs(colocated_plan(), "") == {}
    found = configs(colocated_plan(), "native:8")["colocated"]
    assert found["kv_connector"] == "OffloadingConnector"
    assert found["kv_connector_extra_config"] == {"cpu_bytes_to_use": 8 * 2**30}


def test_both_sides_agree_on_hybrid_kv() -> None:
    """A tier switches it off, and NIXL's handshake compares it."""
    options = LaunchOptions(model_path="m/x", checkpoint_dtype="bf16", host_cache="native:8")
    scripts = [text for name, text in render(mixed_plan(), options).items() if name.endswith(".sh")]
    assert all("--disable-hybrid-kv-cache-manager" in text for text in scripts)


def test_blocks_that_do_not_fill_a_chunk_are_refused() -> None:
    plan = mixed_plan()
    pools = tuple(pool.model_copy(update={"block_tokens": 48}) for pool in plan.pools)
    with pytest.raises(LaunchError, match="no multiple of the block size 48"):
        render(
            plan.model_copy(update={"pools": pools}),
            LaunchOptions(model_path="m/x", checkpoint_dtype="bf16", host_cache="lmcache:64"),
        )


@pytest.mark.parametrize("text", ["64", "lmcache", "lmcache:0", "lmcache:-1", "redis:64", "native:64GiB"])
def test_an_unknown_tier_is_wrong_usage(text: str) -> None:
    with pytest.raises(UsageError, match="unknown host cache"):
        render(mixed_plan(), LaunchOptions(model_path="m/x", checkpoint_dtype="bf16", host_cache=text))
