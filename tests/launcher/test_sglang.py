"""SGLang: flags from the plan, and its real router in front of mock workers."""

from __future__ import annotations

import os
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from splitplan.catalogs.errors import LaunchError
from splitplan.launcher.cluster import Cluster
from splitplan.launcher.engines.sglang import SglangEngine
from splitplan.launcher.lifecycle import placed
from splitplan.launcher.probe import read_metrics
from splitplan.launcher.processes import last_lines
from splitplan.launcher.render import LaunchOptions, render
from splitplan.launcher.state import ClusterState
from splitplan.launcher.web import answers, post_json
from splitplan.planner.plan import Plan
from tests.launcher.conftest import EXTRAS, Start, lacking, own_port
from tests.launcher.plans import mixed_plan, small_plan
from tests.launcher.test_shell import command_of, option

ROUTER_PORT = own_port(21700)


def sglang(plan: Plan, **changes: object) -> Plan:
    pools = tuple(pool.model_copy(update={"attention_backend": "", **changes}) for pool in plan.pools)
    return plan.model_copy(update={"engine": "sglang", "engine_version": "0.5.23", "connector": "nixl", "pools": pools})


def test_the_plan_s_numbers_become_flags() -> None:
    files = render(sglang(mixed_plan(), block_tokens=64), LaunchOptions())
    words = command_of(files["hosts/h100-0.sh"], "prefill-1")
    expected = {
        "--tp-size": "2",
        "--page-size": "64",
        "--context-length": "16384",
        "--max-running-requests": "64",
        "--chunked-prefill-size": "8192",
        "--mem-fraction-static": "0.9",
        "--disaggregation-mode": "prefill",
        "--disaggregation-transfer-backend": "nixl",
    }
    assert {name: option(words, name) for name in expected} == expected


def test_each_prefill_instance_has_a_bootstrap_port_of_its_own_and_the_router_knows_it() -> None:
    files = render(sglang(mixed_plan(), block_tokens=64), LaunchOptions())
    own = {
        f"http://10.0.1.1:{option(words, '--port')}": option(words, "--disaggregation-bootstrap-port")
        for words in (command_of(files["hosts/h100-0.sh"], name) for name in ("prefill-0", "prefill-1"))
    }
    assert len(set(own.values())) == 2
    router = command_of(files["hosts/a100-0.sh"], "router")
    told = {router[i + 1]: router[i + 2] for i, word in enumerate(router) if word == "--prefill"}
    assert own.items() <= told.items()


def test_unequal_pages_are_refused_by_the_catalog_s_rule() -> None:
    plan = sglang(mixed_plan(), block_tokens=64)
    pools = (plan.pools[0], plan.pools[1].model_copy(update={"block_tokens": 1}))
    with pytest.raises(LaunchError, match="KV pages hold 64 tokens for prefill and 1 for decode"):
        render(plan.model_copy(update={"pools": pools}), LaunchOptions())


def workers_of(state: ClusterState, plan: Plan) -> Cluster:
    """The running mock workers as an SGLang cluster whose router stands on another port."""
    options = LaunchOptions(target="local", engine="mock")
    _, cluster = placed(plan, options, state)
    return replace(cluster, router=replace(cluster.router, port=ROUTER_PORT, metrics_port=ROUTER_PORT + 1))


def test_the_real_router_takes_our_command_and_asks_both_sides(start: Start, tmp_path: Path) -> None:
    """sglang-router with the arguments we render, in front of mock workers: both roles work for each request."""
    python = EXTRAS / "bin" / "python"
    if not os.access(python, os.X_OK):
        lacking("no sglang-router on this machine")
    plan = small_plan(num_pairs=2)
    state = start(plan, with_probe=False).state
    command = SglangEngine.create().router(workers_of(state, plan), workers_of(state, plan).router)
    log = tmp_path / "router.log"
    with log.open("w") as stream:
        router = subprocess.Popen([str(python), *command.argv[1:]], stdout=stream, stderr=stream)
    url = f"http://127.0.0.1:{ROUTER_PORT}"
    try:
        for _ in range(200):
            if answers(f"{url}/health") and answers(f"{url}/readiness"):
                break
            assert router.poll() is None, last_lines(log, 20)
            time.sleep(0.1)
        body = {"model": state.model, "prompt": "to be or not", "max_tokens": 4}
        for _ in range(8):
            document, _ = post_json(f"{url}/v1/completions", body, timeout_s=20)
            assert len(document["choices"][0]["text"].split()) == 4
        asked = {
            role: sum(read_metrics(each.url)["vllm:request_success_total"] for each in state.of_role(role))
            for role in ("prefill", "decode")
        }
        assert asked == {"prefill": 8, "decode": 8}
    finally:
        router.terminate()
        router.wait(10)
