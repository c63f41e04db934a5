"""A plan with length buckets from question to replay: Mooncake's long prompts and short ones on different instances."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from splitplan.planner.classes import program_classes, runs, whole_mix
from splitplan.planner.columns.options import ColumnOptions
from splitplan.planner.inputs import load_inputs
from splitplan.planner.judge.verify import Effort
from splitplan.planner.plan import Plan, load_plan, save_plan
from splitplan.planner.question import Question, question_of
from splitplan.planner.review.diff import diff_plans
from splitplan.planner.review.explain_plan import explain_plan
from splitplan.planner.review.replan import Wanted, column_of, replan
from splitplan.planner.review.replay import longest_taken, replay
from splitplan.planner.show.report import length_lines
from splitplan.planner.simulate.compiled import has_numba
from splitplan.planner.solve import solve
from splitplan.planner.spec.slo import parse_slo
from splitplan.planner.spec.workload import RequestClass
from splitplan.planner.study import prepare

EDGE = 16_000
QUICK = Effort(screen_requests=2_000, verify_requests=6_000, num_seeds=2, max_attempts=10, max_probes=2, form="numba")
QUESTION = Question(
    *("llama-3.1-8b", "a100-l40s", "mooncake-conversation", "ttft=5s@p95,tpot=50ms@p95", 4.0),
    columns=ColumnOptions(connector="nixl-push"),
    length_buckets=str(EDGE),
)
needs_numba = pytest.mark.skipif(
    not has_numba() and os.environ.get("SPLITPLAN_TEST_REQUIRE") != "all", reason="numba is not installed (extra fast)"
)


@pytest.fixture(scope="module")
def plan() -> Plan:
    return solve(QUESTION, effort=QUICK)


@needs_numba
def test_apart_is_cheaper_than_together_and_passes(plan: Plan) -> None:
    """Long prompts to pipelines of L40S, short ones to single ones, for less money than any plan without buckets."""
    together = next(row for row in plan.alternatives if "all lengths together" in row.label)
    assert together.verification is not None
    assert together.verification.passed
    assert plan.usd_per_hour < 0.95 * together.usd_per_hour
    without = solve(replace(QUESTION, length_buckets=""), effort=QUICK)
    assert without.usd_per_hour == min(row.usd_per_hour for row in plan.alternatives if row.pools)
    assert plan.length_edges == (EDGE,)
    assert {pool.prompts.up_to for pool in plan.pools} == {EDGE, 0}
    assert f"length buckets at {EDGE:,} input tokens" in plan.notes[0]


@needs_numba
def test_targets_hold_for_all_requests_together(plan: Plan) -> None:
    """The class keeps its percentiles; of its buckets the long one may miss more, and the report says by how much."""
    verdict = plan.verification
    assert verdict is not None
    assert verdict.passed
    assert verdict.attainment.low >= 0.95
    short, long = verdict.lengths["prompts up to 16,000"], verdict.lengths["prompts over 16,000"]
    assert short.attainment.value > verdict.attainment.value > long.attainment.value
    lines = length_lines(plan)
    assert [line.partition(":")[0] for line in lines] == ["prompts up to 16,000", "prompts over 16,000"]
    assert all("met all" in line for line in lines)


@needs_numba
def test_the_saved_plan_is_replayed_by_length(plan: Plan, tmp_path: Path) -> None:
    """Read back, it is the same plan, and its replay routes by length again."""
    path = tmp_path / "plan.yaml"
    save_plan(plan, path)
    again = load_plan(path)
    assert again == plan
    assert question_of(again).length_buckets == str(EDGE)
    verdict = replay(again, num_requests=6_000, num_seeds=1)
    assert set(verdict.lengths) == {"prompts up to 16,000", "prompts over 16,000"}
    limits = longest_taken(again, np.array([EDGE, EDGE + 1]))
    assert limits[0] < limits[1]


@needs_numba
def test_same_bytes_from_run_to_run(plan: Plan, tmp_path: Path) -> None:
    """Solved again without cached columns."""
    paths = tmp_path / "one.yaml", tmp_path / "two.yaml"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPLITPLAN_CACHE", str(tmp_path / "cache"))
        for each, path in zip((plan, solve(QUESTION, effort=QUICK)), paths, strict=True):
            save_plan(each, path)
    assert paths[0].read_bytes() == paths[1].read_bytes()


@needs_numba
def test_explain_and_replan_know_the_buckets(plan: Plan) -> None:
    """A pool is explained with its prompts; for the same load nothing moves; pools are found again by their prompts."""
    long = next(pool for pool in plan.pools if pool.role == "prefill" and pool.above_tokens)
    lines = explain_plan(plan, "prefill")
    assert isinstance(lines, tuple)
    assert any("prompts over 16,000" in line for line in lines)
    study = prepare(load_inputs(QUESTION))
    column = column_of(long, plan, study.problem.columns)
    assert column is not None
    assert (column.above_tokens, column.up_to_tokens) == (EDGE, 0)
    assert replan(plan, Wanted(), effort=QUICK).moves == ()


@needs_numba
def test_diff_tells_of_prompts_that_moved(plan: Plan) -> None:
    """The same instance on the same GPUs, for other prompts."""
    pools = tuple(pool.model_copy(update={"above_tokens": 0, "up_to_tokens": 0}) for pool in plan.pools)
    other = plan.model_copy(update={"pools": pools, "length_edges": ()})
    lines = [str(change) for change in diff_plans(plan, other)]
    assert f"~ length buckets: {EDGE} → none" in lines
    assert any("prompts over 16,000 → all prompts" in line for line in lines)


def test_runs_split_what_may_miss_by_work() -> None:
    """Rates add up; so do, over neighbouring buckets, the requests that may miss."""
    inputs = load_inputs(replace(QUESTION, length_buckets="auto"))
    parts = runs(inputs, whole_mix(inputs))
    whole, single = parts[0], parts[-3:]
    assert sum(run.demand.rate_req_per_s for run in single) == pytest.approx(whole.demand.rate_req_per_s)
    missed = sum(run.share * run.mix.ttft_miss_share for run in single)
    assert missed == pytest.approx(whole.mix.ttft_miss_share, rel=1e-6)
    for run in parts:
        assert len(run.mix.gap) >= 1000
        assert np.all(run.prompts.holds(run.mix.input_tokens.astype(np.int64)))
        assert float(run.mix.gap.mean()) == pytest.approx(1.0)
    longest = [run.mix.max_model_len for run in single]
    assert longest == sorted(longest)
    assert longest[0] < longest[-1]


def test_classes_of_one_length_may_miss_as_their_own_targets_say() -> None:
    """A class whose prompts are all of one bucket keeps its own percentile there, however much work it is."""
    inputs = load_inputs(QUESTION)
    loose = parse_slo("ttft=30s@p80,tpot=50ms@p95")
    workload = replace(
        inputs.workload,
        classes=(RequestClass("short"), RequestClass("long", loose)),
        class_index=(inputs.workload.input_tokens > EDGE).astype(np.int64),
    )
    inputs = replace(inputs, workload=workload)
    _, short, long = runs(inputs, whole_mix(inputs))
    assert short.mix.ttft_miss_share == pytest.approx(0.05)
    assert long.mix.ttft_miss_share == pytest.approx(0.2)
    assert long.mix.tpot_miss_share == pytest.approx(0.05)
    assert [item.name for item in program_classes(inputs, short.mix)] == [
        "short, prompts up to 16,000",
        "long, prompts over 16,000",
    ]


def test_program_classes_keep_rate_and_tokens() -> None:
    """Buckets of a class add up to it, and a workload without buckets keeps its own classes."""
    inputs = load_inputs(QUESTION)
    mix = whole_mix(inputs)
    buckets = program_classes(inputs, mix)
    whole = program_classes(replace(inputs, length_edges=()), mix)
    assert [item.name for item in whole] == [item.name for item in inputs.workload.classes]
    assert [item.name for item in buckets] == ["prompts up to 16,000", "prompts over 16,000"]
    assert sum(item.share for item in buckets) == pytest.approx(1.0)
    assert sum(item.share * item.new_tokens for item in buckets) == pytest.approx(whole[0].new_tokens, rel=0.05)
