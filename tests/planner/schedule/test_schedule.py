"""A day planned as a whole: plans that passed, moves that lead from each to the next, and what it saves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from splitplan.catalogs.errors import InputError, NoPlanError
from splitplan.planner.judge.verify import Effort
from splitplan.planner.plan import Plan, save_plan
from splitplan.planner.program.types import ProgramOptions
from splitplan.planner.question import Question
from splitplan.planner.review.replay import replay
from splitplan.planner.schedule.document import document_of, load_schedule, plan_names, save_schedule
from splitplan.planner.schedule.joint import Switching
from splitplan.planner.schedule.report import cost_lines
from splitplan.planner.schedule.solve import Asked, Schedule, solve_schedule

EFFORT = Effort(screen_requests=300, verify_requests=500, num_seeds=1, max_attempts=6, max_probes=1, form="python")
QUESTION = Question(
    "llama-3.1-8b", "a100-l40s", "fixed:1024/128", "ttft=1s@p90,tpot=60ms@p90", program=ProgramOptions(max_kinds=1)
)
ASKED = Asked(QUESTION, (5.0, 5.0, 40.0, 80.0, 75.0, 40.0), 3)


@pytest.fixture(scope="module")
def day() -> Schedule:
    return solve_schedule(ASKED, effort=EFFORT)


def slots(plan: Plan) -> set[tuple[tuple[str, int], ...]]:
    return {tuple((s.node, s.index) for s in item.gpus) for pool in plan.pools for item in pool.instances}


def test_every_hour_has_a_plan_that_passed_at_its_load(day: Schedule) -> None:
    """Each hour is in one period; its plan was verified at no less than the hour's rate."""
    seen = []
    for period, state in zip(day.periods, day.state_of, strict=True):
        plan = day.plans[state]
        assert plan.verification is not None
        assert plan.verification.passed
        for hour in range(period.first_hour, period.first_hour + period.num_hours):
            seen.append(hour % 6)
            assert plan.verification.rate_req_per_s >= ASKED.hourly_req_per_s[hour % 6]
    assert sorted(seen) == list(range(6))


def test_moves_lead_around_the_day_and_cost_what_is_said(day: Schedule) -> None:
    """Carrying out the moves of every switch turns each plan's instances into the next one's; dollars add up."""
    rent = sum(p.num_hours * day.plans[s].usd_per_hour for p, s in zip(day.periods, day.state_of, strict=True))
    for switch in day.switches:
        running = slots(day.plans[switch.before])
        for move in switch.moves:
            if move.action == "start":
                assert not {slot for held in running for slot in held} & set(move.unit.slots)
                running.add(move.unit.slots)
            else:
                running.remove(move.unit.slots)
        assert running == slots(day.plans[switch.after])
        assert all(move.safe for move in switch.moves)
    assert day.usd == pytest.approx(rent + sum(switch.usd for switch in day.switches), abs=1e-5)
    assert len(day.switches) >= 2


def test_the_day_beats_one_plan_and_keeps_to_its_bound(day: Schedule) -> None:
    """Dearer by no more than the gap than any schedule; cheaper than one plan for all hours; both are told."""
    assert day.bound_usd <= day.usd < day.all_day_usd
    assert day.all_day_usd == pytest.approx(6 * day.all_day.usd_per_hour)
    assert day.gap_percent < 10
    assert f"{day.usd:.2f} $ per 6 hours" in "\n".join(cost_lines(day))


def test_a_plan_of_the_day_stands_on_its_own(day: Schedule) -> None:
    """Its own question, its own load: replayed as any other plan, it passes."""
    for plan in day.plans:
        assert replay(plan, num_requests=500, num_seeds=1).passed


def test_the_same_day_gives_the_same_bytes(day: Schedule, tmp_path: Path) -> None:
    again = solve_schedule(ASKED, effort=EFFORT)
    for name, one, two in zip(plan_names(day), day.plans, again.plans, strict=True):
        save_plan(one, tmp_path / f"{name}-1.yaml")
        save_plan(two, tmp_path / f"{name}-2.yaml")
        assert (tmp_path / f"{name}-1.yaml").read_bytes() == (tmp_path / f"{name}-2.yaml").read_bytes()
    for number, found in enumerate((day, again)):
        save_schedule(document_of(found, ASKED.switching), tmp_path / f"schedule-{number}.yaml")
    assert (tmp_path / "schedule-0.yaml").read_bytes() == (tmp_path / "schedule-1.yaml").read_bytes()
    assert load_schedule(tmp_path / "schedule-0.yaml") == document_of(day, ASKED.switching)


def test_where_moves_are_dear_one_plan_stays(day: Schedule) -> None:
    """At 1,000 $ a move nothing is switched, and the schedule is the plan for all hours."""
    dear = solve_schedule(replace(ASKED, switching=Switching(move_usd=1000.0)), effort=EFFORT)
    assert dear.switches == ()
    assert dear.usd == pytest.approx(day.all_day_usd)


def test_what_cannot_be_planned_is_said() -> None:
    """A workload with one rate, and an hour that no fleet can serve."""
    with pytest.raises(InputError, match="one rate for all hours"):
        solve_schedule(Asked(replace(QUESTION, rate_req_per_s=5.0)), effort=EFFORT)
    with pytest.raises(NoPlanError, match="no plan serves the 9000 req/s of hours 1"):
        solve_schedule(Asked(QUESTION, (5.0, 9000.0)), effort=replace(EFFORT, max_attempts=1))


def test_the_command_refuses_what_makes_no_sense(planner: Callable[..., object], tmp_path: Path) -> None:
    asked = ["schedule", "--model", "llama-3.1-8b", "--fleet", "a100-l40s", "--workload", "azure-conv", "--slo"]
    asked.append("ttft=1s@p95")
    ran = planner(*asked, "--hourly", "1,two")
    assert (ran.code, "cannot read --hourly" in ran.err) == (2, True)  # type: ignore[attr-defined]
    ran = planner(*asked, "--hourly", "1,-2")
    assert (ran.code, "is -2 requests per second" in ran.err) == (1, True)  # type: ignore[attr-defined]
    (tmp_path / "file").touch()
    ran = planner(*asked, "--hourly", "1,2", "-o", str(tmp_path / "file"))
    assert (ran.code, "is a file" in ran.err) == (1, True)  # type: ignore[attr-defined]
