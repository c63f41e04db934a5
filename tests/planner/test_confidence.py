"""Planning with step times at a quantile of their prediction error."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from splitplan.catalogs.errors import InputError
from splitplan.planner.calibrate.score import Value
from splitplan.planner.columns.options import ColumnOptions
from splitplan.planner.columns.service import decode_step_s, prompts
from splitplan.planner.inputs import load_inputs
from splitplan.planner.judge.verify import Effort
from splitplan.planner.latency.overhead import EngineOverhead
from splitplan.planner.plan import Plan
from splitplan.planner.question import Question, question_of
from splitplan.planner.review.replay import replay
from splitplan.planner.solve import solve
from splitplan.planner.study import rebuild
from tests.planner.simulate.cases import realistic_step

QUICK = Effort(screen_requests=600, verify_requests=1500, num_seeds=1, max_attempts=8, max_probes=1, form="python")
QUESTION = Question("llama-3.1-8b", "all-h100", "fixed:1024/128", "ttft=1s@p90,tpot=20ms@p90", 60.0)


def confident(percent: float) -> Question:
    return replace(QUESTION, columns=ColumnOptions(confidence=percent))


@pytest.fixture(scope="module")
def plans() -> tuple[Plan, Plan]:
    return solve(QUESTION, effort=QUICK), solve(confident(95.0), effort=QUICK)


def test_factor_is_one_at_the_best_guess_and_the_spread_at_95_percent() -> None:
    """The wider of the two spreads that speak of steps; TTFT's is not one of them."""
    overhead = EngineOverhead(tpot_spread=1.2, throughput_spread=1.3, ttft_spread=9.0)
    assert overhead.step_factor(50.0) == 1.0
    assert overhead.step_factor(95.0) == pytest.approx(1.3)
    factors = [overhead.step_factor(percent) for percent in (50, 60, 80, 90, 99)]
    assert factors == sorted(factors)


@pytest.mark.parametrize("share", [0.5, 0.8, 0.9, 0.95])
def test_factor_is_the_quantile_that_accuracy_reports_use(share: float) -> None:
    """One law of errors for scores and for plans."""
    value = Value("mean", measured=1.0, predicted=10.0, low=10.0 / 1.4, high=14.0)
    overhead = EngineOverhead(tpot_spread=1.4, throughput_spread=1.0)
    assert overhead.step_factor(100 * share) == pytest.approx(value.quantile(share) / 10.0)


def test_scaled_steps_take_that_much_longer() -> None:
    """Decode steps and prompts alike; a factor of one is the very same model."""
    step = realistic_step(3)
    slow = step.scaled(1.25)
    assert step.scaled(1.0) is step
    assert decode_step_s(slow, 16.0, 700.0) == pytest.approx(1.25 * decode_step_s(step, 16.0, 700.0))
    new, past = np.array([100.0, 1500.0]), np.array([0.0, 200.0])
    took = [prompts(model, 512, new, past).service().latency_s for model in (step, slow)]
    assert took[1] == pytest.approx(1.25 * took[0])


@pytest.mark.parametrize("percent", [49.9, 99.5, float("nan")])
def test_a_confidence_out_of_bounds_is_refused(percent: float) -> None:
    """Below the best guess there is nothing to plan with."""
    with pytest.raises(InputError, match="confidence"):
        load_inputs(confident(percent))


def test_the_plan_records_it_and_its_program_is_built_with_it(plans: tuple[Plan, Plan]) -> None:
    """In the inputs, in the basis, and whenever the question is asked again."""
    guess, careful = plans
    assert guess.inputs.options.get("confidence") is None
    assert careful.inputs.options["confidence"] == "95.0"
    assert question_of(careful).columns.confidence == 95.0
    assert any("which 95 % stay below" in line for line in careful.basis)
    assert not any("stay below" in line for line in guess.basis)
    names = [{column.name: column for column in rebuild(plan)[0].columns.columns} for plan in plans]
    shared = sorted(set(names[0]) & set(names[1]))
    assert shared
    assert all(names[1][name].step.gap_s > names[0][name].step.gap_s for name in shared)


def test_a_careful_plan_costs_no_less_and_survives_slower_steps(plans: tuple[Plan, Plan]) -> None:
    """With every step as slow as 95 % of measured ones at most, it still meets its targets."""
    guess, careful = plans
    assert careful.usd_per_hour >= guess.usd_per_hour
    factor = load_inputs(confident(95.0)).step_factors["h100-sxm"]
    shares = [
        replay(plan, confidence=50.0, step_scale=factor, num_requests=1500, num_seeds=1).attainment.value
        for plan in plans
    ]
    assert shares[1] >= shares[0]
    assert shares[1] >= 0.9
    own = replay(careful, num_requests=1500, num_seeds=1).attainment.value
    assert own == pytest.approx(shares[1])
