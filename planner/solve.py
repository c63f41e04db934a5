"""The whole way from a question to a verified plan: load, build columns, solve, simulate, repair, compare, emit."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from splitplan.catalogs.errors import NoPlanError, OutOfTimeError, Problem
from splitplan.planner.emit import LENGTHS_TOGETHER, Variant, emit_plan
from splitplan.planner.inputs import SolveInputs, load_inputs
from splitplan.planner.judge.repair import Outcome, Workshop
from splitplan.planner.judge.verify import Effort, Judge, default_effort
from splitplan.planner.patience import patience
from splitplan.planner.plan import Plan
from splitplan.planner.program.types import ProgramInput, ProgramOptions, Reason
from splitplan.planner.program.ways_out import ways_out
from splitplan.planner.question import Question
from splitplan.planner.simulate.compiled import is_cached
from splitplan.planner.study import Study, prepare

SAME_PERCENT = 1.0
"""Plans this close in cost are alike: step times are not predicted that well, and fewer GPUs are easier to run."""

SEARCH_SHARE = 0.85
"""Of a time limit, for finding plans; the rest is for the proof."""

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Answer:
    """A plan with what it was made from, for reports."""

    plan: Plan
    inputs: SolveInputs


def answer(
    question: Question,
    *,
    effort: Effort | None = None,
    progress: Progress | None = None,
    time_limit_s: float | None = None,
) -> Answer:
    """Find, verify and compare. With a `time_limit_s` it ends by then, with the best plan that passed so far.

    Raises InputError for bad input, NoPlanError when no plan meets the targets, OutOfTimeError when none was found in
    time.
    """
    with patience(time_limit_s):
        search_s = None if time_limit_s is None else SEARCH_SHARE * time_limit_s
        return answer_from(load_inputs(question), effort=effort, progress=progress, search_s=search_s)


def answer_from(
    inputs: SolveInputs,
    *,
    effort: Effort | None = None,
    progress: Progress | None = None,
    search_s: float | None = None,
) -> Answer:
    """`answer` to a question whose inputs are loaded; the search for plans ends after `search_s`."""
    say = progress or (lambda _text: None)
    start_s = time.perf_counter()
    study = prepare(inputs)
    say(f"{len(study.columns.columns)} of {study.columns.considered} columns stand ({_since(start_s)})")
    effort = effort or default_effort()
    if effort.form == "numba" and not is_cached():
        say("compiling the simulator for this machine, once (about half a minute) …")
    shop = Workshop(study.inputs, study.problem, Judge(study.inputs, effort))
    with patience(search_s):
        variants = _variants(study, shop, say)
    plan = emit_plan(study, shop, _chosen(study, variants), variants)
    say(f"solved and verified in {_since(start_s)}")
    return Answer(plan, study.inputs)


def solve(question: Question, *, effort: Effort | None = None) -> Plan:
    """The plan that answers a question: `answer` without the inputs."""
    return answer(question, effort=effort).plan


def _variants(study: Study, shop: Workshop, say: Progress) -> list[Variant]:
    """What competes, in the order in which corrections are learned; the open question comes last.

    Where prompt lengths are told apart, all the others answer the question as it is without: so does the best of them.
    """
    plain = shop if study.together is None else Workshop(shop.inputs, study.together, shop.judge)
    base = plain.problem.options
    gpus = list(study.inputs.fleet.num_gpus)
    asked = []
    if base.mode == "auto":
        asked.append(("best colocated", replace(base, mode="colocated")))
        asked.append(("best disaggregated", replace(base, mode="disagg")))
    if len(gpus) > 1:
        asked += [(f"only {gpu}", replace(base, only_gpu=gpu)) for gpu in gpus]
    asked.append(("" if plain is shop else LENGTHS_TOGETHER, base))
    found = [_run(plain, label, options, say) for label, options in asked]
    return found if plain is shop else [*found, _run(shop, "", shop.problem.options, say)]


def _run(shop: Workshop, label: str, options: ProgramOptions, say: Progress) -> Variant:
    start_s = time.perf_counter()
    outcome = shop.best(options)
    result = outcome.in_words() if outcome.passed else "no plan"
    result += ", cut short by the time limit" if outcome.out_of_time else ""
    say(f"{label or 'all together'}: {result} ({_since(start_s)})")
    return Variant(label, options, outcome)


def _chosen(study: Study, variants: list[Variant]) -> Outcome:
    """The best that passed, whichever variant found it; of those within SAME_PERCENT, the one with fewest GPUs, and of
    these the one that tells the fewest prompt lengths apart."""
    passed = [variant.outcome for variant in variants if variant.outcome.passed]
    if passed:
        best = min(outcome.score for outcome in passed)
        close = [outcome for outcome in passed if outcome.score <= best + abs(best) * SAME_PERCENT / 100]
        return min(close, key=lambda outcome: (_gpus(outcome), outcome.num_prompt_ranges, round(outcome.score, 6)))
    if any(variant.outcome.out_of_time for variant in variants):
        seen = f"{sum(not variant.outcome.out_of_time for variant in variants)} of {len(variants)} searches ended"
        message = f"no plan was found and verified within the time limit; {seen}"
        raise OutOfTimeError(Problem(message, next_step="raise --time-limit, or ask for less"))
    last = variants[-1].outcome
    reasons = [Problem(reason) for reason in last.reasons]
    if last.verdict is not None:
        reasons += [Problem(f"the last plan tried misses: {miss}") for miss in last.verdict.misses]
    head = Problem(
        f"no plan serves {study.inputs.workload.rate_req_per_s:g} req/s of {study.inputs.workload.name} "
        f"on fleet {study.inputs.fleet.name} within the targets",
        next_step="relax a target, lower the rate, or add GPUs",
    )
    if last.blocked is not None:
        reasons += [Problem(reason.message, next_step=reason.next_step) for reason in _ways_out(last.blocked)]
    raise NoPlanError([head, *reasons])


def _ways_out(blocked: ProgramInput) -> tuple[Reason, ...]:
    try:
        return ways_out(blocked)
    except OutOfTimeError:
        return ()


def _gpus(outcome: Outcome) -> int:
    return outcome.found.solution.num_gpus if outcome.found else 0


def _since(start_s: float) -> str:
    return f"{time.perf_counter() - start_s:.2f} s"
