"""A plan that has to survive failures is simulated in each of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from splitplan.planner.inputs import load_inputs
from splitplan.planner.judge.repair import Outcome, Workshop
from splitplan.planner.judge.verify import Effort, Judge
from splitplan.planner.program.types import ProgramOptions
from splitplan.planner.question import Question
from splitplan.planner.study import prepare

EFFORT = Effort(screen_requests=1_200, verify_requests=1_500, num_seeds=1, max_attempts=12, max_probes=1, form="python")
WISHES = ProgramOptions(max_kinds=1, mode="colocated", survive="node", max_share_per_rack=0.5)
QUESTION = Question("llama-3.1-8b", "a100-l40s", "azure-conv", "ttft=2s@p95,tpot=50ms@p95", 12.0, WISHES)


@pytest.fixture(scope="module")
def shop() -> Workshop:
    study = prepare(load_inputs(QUESTION))
    return Workshop(study.inputs, study.problem, Judge(study.inputs, EFFORT))


@pytest.fixture(scope="module")
def outcome(shop: Workshop) -> Outcome:
    return shop.best(WISHES)


def test_what_is_left_after_any_node_serves_the_load(shop: Workshop, outcome: Outcome) -> None:
    """Taken from the plan by hand, not from the program's states: the instances of each node in turn are removed, and a
    router sends to the others by what each can do."""
    found = outcome.found
    assert found is not None
    assert outcome.passed
    work = {column.name: float(column.work_s_per_request.max()) for column in shop.problem.columns}
    speed = {item.name: 1 / work[name] for name, items in found.assignment.instances.items() for item in items}
    nodes = {item.name: {slot.node for slot in item.gpus} for pool in found.pools for item in pool.instances}
    for gone in sorted(set().union(*nodes.values())):
        left = tuple(
            replace(each, share=speed[each.name]) for each in found.deployment.instances if gone not in nodes[each.name]
        )
        verdict, _ = shop.judge.screen(replace(found.deployment, instances=left, routes={}))
        assert verdict.attainment.value >= 0.93, gone


def test_capacity_alone_would_have_been_cheaper_and_wrong(shop: Workshop, outcome: Outcome) -> None:
    """The plan of the same search without failures, its columns corrected by the whole plan only, costs less."""
    found = outcome.found
    assert found is not None
    plain = shop.best(replace(WISHES, survive=""))
    assert plain.passed
    assert plain.score < outcome.score
    assert any(state.gone for state in found.solution.states)
