"""The repair loop's arithmetic: what is corrected, by how much, and which plan is chosen among alike ones."""

from __future__ import annotations

import numpy as np
import pytest

from splitplan.planner.inputs import load_inputs
from splitplan.planner.judge.corrections import Corrections
from splitplan.planner.judge.repair import Workshop
from splitplan.planner.judge.verify import Effort, Judge
from splitplan.planner.program.types import ProgramOptions
from splitplan.planner.question import Question
from splitplan.planner.study import prepare

EFFORT = Effort(screen_requests=400, verify_requests=600, num_seeds=1, max_attempts=6, max_probes=1, form="python")
QUESTION = Question("llama-3.1-8b", "all-h100", "fixed:1024/128", "ttft=1s@p90,tpot=60ms@p90", 100.0)


@pytest.fixture(scope="module")
def shop() -> Workshop:
    study = prepare(load_inputs(QUESTION))
    return Workshop(study.inputs, study.problem, Judge(study.inputs, EFFORT))


def test_corrections_multiply_the_work_of_their_column_only(shop: Workshop) -> None:
    corrections = Corrections()
    name = shop.problem.columns[0].name
    corrections.scale(name, 1.5)
    corrections.scale(name, 2.0)
    for before, after in zip(shop.problem.columns, corrections.apply(shop.problem.columns), strict=True):
        factor = 3.0 if before.name == name else 1.0
        np.testing.assert_allclose(after.work_s_per_request, factor * before.work_s_per_request)


def test_columns_judged_far_too_well_are_corrected_until_the_plan_passes(shop: Workshop) -> None:
    """Start with every column promising four times what it can: the loop still ends with a plan that passes."""
    shop.start = Corrections({column.name: 0.25 for column in shop.problem.columns})
    outcome = shop.best(ProgramOptions(mode="colocated", max_kinds=1))
    assert outcome.passed
    assert outcome.found is not None
    shop.start = Corrections()
    used = {item.column for item in outcome.found.solution.placed}
    assert all(outcome.corrections.factor[name] > 0.5 for name in used)


def test_a_plan_that_passed_serves_every_variant_that_allows_it(shop: Workshop) -> None:
    """A narrower variant may take what a wider one found, and never the other way round."""
    wide = shop.best(ProgramOptions(mode="auto", max_kinds=1))
    narrow = shop.best(ProgramOptions(mode="colocated", max_kinds=1))
    assert wide.score <= narrow.score
    assert narrow.found is not None
    assert {pool.role for pool in narrow.found.pools} == {"colocated"}
