"""explain, diff, replan, compare and frontier on a real, small question."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from splitplan.catalogs.errors import DocumentError, UsageError
from splitplan.planner.judge.verify import Effort
from splitplan.planner.plan import Plan, load_plan, save_plan
from splitplan.planner.program.reduce import parse_filter
from splitplan.planner.question import Question
from splitplan.planner.review.diff import diff_plans
from splitplan.planner.review.explain_plan import PlanExplanation, as_json, as_text, explain_plan, summed_up
from splitplan.planner.review.replan import Wanted, move_lines, replan
from splitplan.planner.review.sweep import axis_values, compare, frontier, plot_lines, table_lines
from splitplan.planner.solve import solve

QUICK = Effort(screen_requests=300, verify_requests=600, num_seeds=1, max_attempts=6, max_probes=1, form="python")
QUESTION = Question("llama-3.1-8b", "all-h100", "fixed:1024/128", "ttft=1s@p90,tpot=60ms@p90", 30.0)


@pytest.fixture(scope="module")
def plan() -> Plan:
    return solve(QUESTION, effort=QUICK)


def test_a_saved_plan_explains_itself(plan: Plan) -> None:
    """Binding limits, and what one thing more would save, looser targets included."""
    result = explain_plan(plan)
    assert isinstance(result, PlanExplanation)
    assert {"50 ms more TTFT", "5 ms more TPOT", "10 % less load"} <= {w.change for w in result.explanation.worth}
    text = "\n".join(as_text(result))
    assert text.startswith(("Note", "Binds"))
    json.dumps(as_json(result))


def test_one_component_is_explained_or_refused_with_the_nearest_name(plan: Plan) -> None:
    """An instance has lines of its own; a misspelt one is a usage error that offers the right name."""
    name = plan.pools[0].instances[0].name
    assert explain_plan(plan, name)
    with pytest.raises(UsageError, match=f"did you mean .*{name[:-2]}"):
        explain_plan(plan, name[:-1] + "99")


def test_what_is_worth_nothing_is_summed_up() -> None:
    """One name for all nodes, one for all rack power; what is worth something is not among them; the rest by name."""
    nodes = [f"one more {gpu} node (8 GPUs) in rack r{r}" for r, gpu in enumerate(("h100-sxm", "l40s"))]
    silent = [*nodes, "1 kW more in rack r0", "1 kW more in rack r1", "10 % more spine"]
    assert summed_up(silent, []) == ["one more node of any type or rack", "1 kW more in any rack", "10 % more spine"]
    assert summed_up(silent[1:], nodes[:1])[0] == "one more node of any other type or rack"


def test_a_gpu_type_is_known_by_all_its_names(plan: Plan) -> None:
    """`planner explain plan.yaml h100` is about the H100, and so is `--pin h100`."""
    assert explain_plan(plan, "h100") == explain_plan(plan, "h100-sxm")
    assert parse_filter("prefill=h100") == parse_filter("prefill=h100-sxm")


def test_a_plan_does_not_differ_from_itself(plan: Plan) -> None:
    """No line at all; and a changed count, cost and rate each get one."""
    assert diff_plans(plan, plan) == ()
    smaller = plan.pools[0].model_copy(update={"instances": plan.pools[0].instances[1:]})
    other = plan.model_copy(
        update={
            "pools": (smaller, *plan.pools[1:]),
            "usd_per_hour": plan.usd_per_hour - 1,
            "inputs": plan.inputs.model_copy(update={"rate_req_per_s": 29.0}),
        }
    )
    lines = [str(change) for change in diff_plans(plan, other)]
    assert "~ rate: 30 req/s → 29 req/s" in lines
    assert any(line.startswith(f"− {plan.pools[0].name} on ") for line in lines)
    assert any("$/h (-1)" in line for line in lines)


def test_replan_keeps_what_runs_and_orders_the_moves(plan: Plan) -> None:
    """For the same load nothing moves; for four times as much everything that runs stays, and others start."""
    same = replan(plan, Wanted(), effort=QUICK)
    assert same.moves == ()
    assert [c for c in diff_plans(plan, same.plan) if c.sign != "~"] == []
    grown = replan(plan, Wanted(rate_req_per_s=120.0, move_usd=50.0, hours=1.0), effort=QUICK)
    assert {move.action for move in grown.moves} == {"start"}
    assert not any("content has changed" in str(change) for change in diff_plans(plan, grown.plan))
    assert all(move.safe for move in grown.moves)
    assert len(move_lines(grown)) == len(grown.moves)


def test_frontier_gets_cheaper_with_looser_targets() -> None:
    """Looser TTFT never costs more; an impossible one is a point without a plan, drawn as x."""
    points = frontier(QUESTION, "ttft", [0.0001, 0.2, 1.0], effort=QUICK)
    assert points[0].plan is None
    assert points[0].reason
    costs = [point.plan.usd_per_hour for point in points if point.plan]
    assert costs == sorted(costs, reverse=True)
    plot = "\n".join(plot_lines(points, "ttft in s"))
    assert plot.count("●") == len(costs)
    assert "x" in plot
    assert axis_values(1.0, 100.0, 3) == (1.0, 10.0, 100.0)
    with pytest.raises(UsageError, match="no range"):
        axis_values(5.0, 1.0, 3)


def test_compare_needs_two_questions_and_tells_them_apart() -> None:
    """Two fleets are two lines with their costs; one fleet and one SLO are nothing to compare."""
    points = compare(QUESTION, ["all-h100", "h100-a100"], [QUESTION.slo], effort=QUICK)
    assert [point.label for point in points] == ["all-h100", "h100-a100"]
    assert len(table_lines(points)) == 3
    with pytest.raises(UsageError, match="nothing to compare"):
        compare(QUESTION, ["all-h100"], [QUESTION.slo], effort=QUICK)


def test_commands_print_json(plan: Plan, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`explain --json` and `diff --json` put one object with kind and schema version on stdout."""
    from splitplan.planner.cli.diff import diff
    from splitplan.planner.cli.explain import explain

    path = tmp_path / "plan.yaml"
    save_plan(plan, path)
    for kind, run in (("Explanation", lambda: explain(path, json=True)), ("PlanDiff", lambda: diff(path, path, True))):
        run()
        document = json.loads(capsys.readouterr().out)
        assert (document["kind"], document["schema_version"]) == (kind, 1)


def test_another_kind_of_file_gets_one_line(tmp_path: Path) -> None:
    """Not a list of every key that a plan has and the file lacks."""
    path = tmp_path / "schedule.yaml"
    path.write_text("kind: Schedule\nversion: 1\nperiods: []\nnum_hours: 24\n")
    with pytest.raises(DocumentError) as caught:
        load_plan(path)
    assert [problem.key for problem in caught.value.problems] == ["kind"]


def test_a_diff_tells_what_was_asked_and_run_otherwise(plan: Plan) -> None:
    """An option, and a command that changes on the same GPUs: both have a line that says from what to what."""
    pool = plan.pools[0]
    chunk = pool.max_num_batched_tokens
    pools = (pool.model_copy(update={"max_num_batched_tokens": 2 * chunk}), *plan.pools[1:])
    inputs = plan.inputs.model_copy(update={"options": {**plan.inputs.options, "confidence": "80"}})
    lines = [str(change) for change in diff_plans(plan, plan.model_copy(update={"pools": pools, "inputs": inputs}))]
    assert "~ confidence: default → 80" in lines
    assert any(line.startswith("−") and f"(max num batched tokens {chunk})" in line for line in lines)
    assert any(line.startswith("+") and f"(max num batched tokens {2 * chunk})" in line for line in lines)
