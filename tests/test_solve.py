"""The main job end to end: what a plan must be, whatever the question."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from splitplan.catalogs.errors import InputError, NoPlanError
from splitplan.planner.judge.verify import Effort
from splitplan.planner.plan import Plan, load_plan, save_plan
from splitplan.planner.program.types import ProgramOptions
from splitplan.planner.question import Question, options_as_text, question_of
from splitplan.planner.review.replay import replay
from splitplan.planner.solve import solve
from splitplan.planner.spec.fleet import load_fleet
from splitplan.planner.spec.slo import parse_slo
from splitplan.planner.study import rebuild

EFFORT = Effort(
    screen_requests=1_000,
    verify_requests=1_500,
    num_seeds=2,
    max_attempts=8,
    max_probes=2,
    rate_probes=3,
    form="python",
)
MIXED = Question("llama-3.1-8b", "a100-l40s", "azure-conv", "ttft=2s@p95,tpot=50ms@p95", 40.0)


@pytest.fixture(scope="module")
def plan() -> Plan:
    return solve(MIXED, effort=EFFORT)


def test_the_plan_passed_its_own_simulation(plan: Plan) -> None:
    """What is printed as feasible has passed, at the unfavourable end of every interval."""
    verdict = plan.verification
    assert verdict is not None
    assert verdict.passed
    assert not verdict.misses
    assert verdict.ttft_ms["p95"].high <= 2000
    assert verdict.tpot_ms["p95"].high <= 50
    assert verdict.attainment.low >= 0.95


def test_no_gpu_is_used_twice_and_none_is_invented(plan: Plan) -> None:
    """Every slot is a GPU of the fleet, of the pool's type, and belongs to one instance; TP stays in one node."""
    nodes = {node.name: node for node in load_fleet("a100-l40s").nodes}
    used = Counter((slot.node, slot.index) for pool in plan.pools for item in pool.instances for slot in item.gpus)
    assert max(used.values()) == 1
    assert sum(used.values()) == plan.num_gpus
    for pool in plan.pools:
        for item in pool.instances:
            assert len(item.gpus) == pool.gpus_per_instance
            for slot in item.gpus:
                assert nodes[slot.node].gpu == pool.gpu
                assert 0 <= slot.index < nodes[slot.node].num_gpus
            for stage in range(pool.pipeline_parallel):
                ranks = item.gpus[stage * pool.tensor_parallel : (stage + 1) * pool.tensor_parallel]
                assert len({slot.node for slot in ranks}) == 1


def test_cost_is_the_sum_of_its_gpus(plan: Plan) -> None:
    prices = load_fleet("a100-l40s").usd_per_gpu_hour
    total = sum(len(pool.instances) * pool.gpus_per_instance * prices[pool.gpu] for pool in plan.pools)
    assert plan.usd_per_hour == pytest.approx(total)


def test_no_alternative_that_passed_is_cheaper(plan: Plan) -> None:
    """The losers are shown at their best, and the chosen one beats or equals each of them."""
    labels = ", ".join(item.label for item in plan.alternatives)
    for label in ("best colocated", "best disaggregated", "only a100-sxm-80", "only l40s"):
        assert label in labels
    for item in plan.alternatives:
        if item.verification is not None and item.verification.passed:
            assert item.usd_per_hour >= plan.usd_per_hour - 1e-9


def test_shares_and_routes_add_up(plan: Plan) -> None:
    """Shares of a role sum to one, and so do the routes; every decode instance is fed."""
    for role in {pool.role for pool in plan.pools}:
        total = sum(item.share for pool in plan.pools if pool.role == role for item in pool.instances)
        assert total == pytest.approx(1.0)
    if plan.routes:
        assert sum(route.share for route in plan.routes) == pytest.approx(1.0)
        fed = {route.decode for route in plan.routes}
        assert fed == {item.name for pool in plan.pools if pool.role == "decode" for item in pool.instances}


def test_the_same_question_gives_the_same_bytes(plan: Plan, tmp_path: Path) -> None:
    save_plan(plan, tmp_path / "one.yaml")
    save_plan(solve(MIXED, effort=EFFORT), tmp_path / "two.yaml")
    assert (tmp_path / "one.yaml").read_bytes() == (tmp_path / "two.yaml").read_bytes()


def test_a_saved_plan_comes_back_whole(plan: Plan, tmp_path: Path) -> None:
    save_plan(plan, tmp_path / "plan.yaml")
    assert load_plan(tmp_path / "plan.yaml") == plan


def test_a_saved_plan_can_be_asked_again(plan: Plan) -> None:
    """The question survives as text, and the program rebuilt from it is the one the plan answers."""
    assert replace(question_of(plan), slo=MIXED.slo) == MIXED
    assert parse_slo(plan.inputs.slo).ttft == parse_slo(MIXED.slo).ttft
    study, problem = rebuild(plan)
    assert problem.options == MIXED.program
    corrected = {column.name: column for column in problem.columns}
    for column in study.problem.columns:
        factor = plan.corrections.get(column.name, 1.0)
        np.testing.assert_allclose(corrected[column.name].work_s_per_request, factor * column.work_s_per_request)


def test_replay_at_twice_the_rate_is_worse(plan: Plan) -> None:
    """The same instances at their own rate pass again; at twice the rate fewer requests meet the targets."""
    own = replay(plan, num_requests=1_500, num_seeds=1)
    twice = replay(plan, rate_req_per_s=80.0, num_requests=1_500, num_seeds=1)
    assert own.attainment.value > 0.95
    assert twice.attainment.value < own.attainment.value
    assert not twice.passed


def test_a_changed_input_is_refused(plan: Plan) -> None:
    """A plan made from another fleet than the one of that name today is not replayed as if nothing had happened."""
    inputs = plan.inputs.model_copy(update={"fleet_hash": "0" * 64})
    with pytest.raises(InputError, match="changed since the plan was made: fleet"):
        replay(plan.model_copy(update={"inputs": inputs}))


def test_options_survive_as_text() -> None:
    """Every kind of option value comes back as it was."""
    program = ProgramOptions(objective="power", pin=("decode=l40s",), budget_usd_per_hour=50.0, only_gpu="l40s")
    question = Question("m", "f", "w", "s", 1.0, program=program, price_kind="spot", profiles=("a.npz", "b.npz"))
    assert options_as_text(question)["only_gpu"] == "l40s"
    assert options_as_text(Question("m", "f", "w", "s", program=ProgramOptions())) == {}


def test_more_rate_than_the_fleet_serves_is_said_with_a_share() -> None:
    """No plan is an answer with a reason: how much of the load would fit."""
    with pytest.raises(NoPlanError) as caught:
        solve(replace(MIXED, rate_req_per_s=4000.0), effort=EFFORT)
    assert "of 4e+03 req/s" in str(caught.value) or "of 4000 req/s" in str(caught.value)


def test_goodput_serves_more_than_asked_on_the_whole_fleet() -> None:
    """Objective goodput scales the rate up to what passes, and the verification is at that rate."""
    asked = Question(
        "llama-3.1-8b",
        "a100-l40s",
        "azure-conv",
        "ttft=2s@p95,tpot=50ms@p95",
        40.0,
        ProgramOptions(objective="goodput"),
    )
    found = solve(asked, effort=EFFORT)
    assert found.verification is not None
    assert found.verification.passed
    assert found.verification.rate_req_per_s > 80.0
    assert found.proof.bound >= found.proof.value
