"""Pipelines that mix GPU types, all the way: chosen where they win, simulated, explained, planned again, replayed."""

from __future__ import annotations

import numpy as np
import pytest
from rich.console import Console

from splitplan.planner.inputs import load_inputs
from splitplan.planner.judge.verify import Effort
from splitplan.planner.plan import Plan, load_plan, save_plan
from splitplan.planner.program.types import ProgramOptions
from splitplan.planner.question import Question, question_of
from splitplan.planner.review.diff import diff_plans
from splitplan.planner.review.explain_plan import explain_plan
from splitplan.planner.review.replan import Wanted, replan
from splitplan.planner.review.replay import plan_deployment
from splitplan.planner.show.drawing import draw_racks
from splitplan.planner.show.report import pool_text
from splitplan.planner.solve import solve
from splitplan.planner.study import prepare

EFFORT = Effort(screen_requests=300, verify_requests=500, num_seeds=1, max_attempts=6, max_probes=1, form="python")
GENERATIONS = """
kind: Fleet
version: 1
name: generations
racks:
  - name: r1
    nodes:
      - {name: "h100-[1-2]", gpu: h100-sxm, gpus: 8, nics: {link: ib-ndr, count: 8}}
      - {name: "a100-[1-2]", gpu: a100-sxm-80, gpus: 8, nics: {link: ib-hdr, count: 8}}
"""


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    """405B in 16 bit, which needs two nodes, at a TPOT that two A100 nodes miss."""
    fleet = tmp_path_factory.mktemp("fleet") / "generations.yaml"
    fleet.write_text(GENERATIONS)
    question = Question(
        "llama-3.1-405b",
        str(fleet),
        "fixed:1024/200",
        "ttft=5s@p90,tpot=95ms@p90",
        rate_req_per_s=0.5,
        program=ProgramOptions(mode="colocated", max_kinds=1),
    )
    return solve(question, effort=EFFORT)


def test_a_pipeline_of_both_types_beats_each_type_alone(plan: Plan) -> None:
    """An A100 and an H100 node meet the targets in the simulator at less than two H100 nodes cost; two A100 miss."""
    (pool,) = plan.pools
    assert [stage.gpu for stage in pool.stages] == ["a100-sxm-80", "h100-sxm"]
    assert plan.verification is not None
    assert plan.verification.passed
    alternatives = {item.label: item for item in plan.alternatives}
    h100, a100 = alternatives["only h100-sxm"], alternatives["only a100-sxm-80"]
    assert h100.verification is not None
    assert h100.verification.passed
    assert plan.usd_per_hour == pytest.approx(8 * 3.99 + 8 * 1.79)
    assert plan.usd_per_hour < h100.usd_per_hour
    assert not a100.pools or (a100.verification is not None and not a100.verification.passed)


def test_its_gpus_are_named_stage_after_stage(plan: Plan) -> None:
    """Sixteen GPUs of two nodes of one rack, the A100 stage first, and every report says so."""
    (pool,) = plan.pools
    nodes = [slot.node for slot in pool.instances[0].gpus]
    assert nodes == [nodes[0]] * 8 + [nodes[8]] * 8
    assert nodes[0].startswith("a100")
    assert nodes[8].startswith("h100")
    layers = "+".join(str(stage.layers) for stage in pool.stages)
    assert pool_text(pool).startswith(f"1× a100-sxm-80+h100-sxm TP8 PP2 of {layers} layers")
    console = Console(width=100, record=True, file=None)
    with console.capture() as drawn:
        console.print(draw_racks(plan))
    assert f"{nodes[8]}  h100-sxm" in drawn.get()
    assert any("a100-sxm-80: op tables" in line for line in plan.basis)
    assert any("h100-sxm: op tables" in line for line in plan.basis)


def test_a_saved_plan_is_replayed_with_the_stages_it_was_planned_with(plan: Plan, tmp_path: object) -> None:
    """Step models built anew from the file are those of the column, stage by stage."""
    path = f"{tmp_path}/plan.yaml"
    save_plan(plan, path)
    again = load_plan(path)
    inputs = load_inputs(question_of(again))
    step = plan_deployment(again, inputs).instances[0].step
    layers = [stage.layers for stage in again.pools[0].stages]
    column = next(c for c in prepare(inputs).columns.columns if [s.layers for s in c.stages] == layers)
    assert len(step.stages) == 2
    for one, other in zip(step.stages, column.step.stages, strict=True):
        np.testing.assert_array_equal(one.token_s, other.token_s)
        np.testing.assert_array_equal(one.decode_attention_s, other.decode_attention_s)
    assert step.handoff_s == column.step.handoff_s


def test_both_types_count_as_used_and_have_a_runner_up(plan: Plan) -> None:
    """Explaining it counts the GPUs of both stages, and names what would come second."""
    explained = explain_plan(plan)
    assert not isinstance(explained, tuple)
    assert explained.explanation.unused == ()
    runner = explained.explanation.runner_up
    assert runner is not None
    assert runner.without == "colocated on a100-sxm-80+h100-sxm"
    assert dict(runner.gpus) == {"h100-sxm": 16}
    assert any("a100" in line for line in explain_plan(plan, "a100-sxm-80"))


def test_a_running_pipeline_is_kept_when_planned_again(plan: Plan) -> None:
    """A little more load: the same instance on the same GPUs, and no move."""
    found = replan(plan, Wanted(rate_req_per_s=0.55), effort=EFFORT)
    assert found.moves == ()
    assert [change.sign for change in diff_plans(plan, found.plan) if change.sign != "~"] == []
