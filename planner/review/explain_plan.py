"""Explanations of a saved plan: its question is built again, corrections included, and asked with one thing changed."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from splitplan.catalogs.errors import InputError, NoPlanError, Problem, SplitplanError, UsageError, nearest_names
from splitplan.catalogs.gpus import find_gpu
from splitplan.planner.inputs import load_inputs
from splitplan.planner.judge.corrections import Corrections
from splitplan.planner.plan import Plan
from splitplan.planner.program.solve import solve_program
from splitplan.planner.program.types import Infeasible, ProgramInput
from splitplan.planner.question import question_of
from splitplan.planner.review.diff import where
from splitplan.planner.review.explain import UNITS, Explanation, Question, Variant, about, explain
from splitplan.planner.spec.slo import Target, format_slo
from splitplan.planner.study import prepare, rebuild

EXTRA_TTFT_S = 0.050
EXTRA_TPOT_S = 0.005
LINE_WIDTH = 118


@dataclass(frozen=True, slots=True)
class PlanExplanation:
    """What `planner explain` prints, and what stands behind it."""

    question: Question
    explanation: Explanation
    notes: tuple[str, ...]


def question_about(plan: Plan, *, with_targets: bool = True) -> Question:
    """The program that the plan answers, solved again, and its neighbours under looser targets.

    Raises InputError when model, fleet, workload or profiles have changed since, NoPlanError when the program has no
    answer any more.
    """
    study, problem = rebuild(plan)
    solution = solve_program(problem)
    if isinstance(solution, Infeasible):
        raise NoPlanError([Problem(reason.message, next_step=reason.next_step) for reason in solution.reasons])
    variants = tuple(_looser_targets(plan, problem)) if with_targets else ()
    return Question(problem, solution, variants, dict(study.columns.rejections.counts))


def explain_plan(plan: Plan, component: str | None = None) -> PlanExplanation | tuple[str, ...]:
    """The whole explanation, or the lines about one component. Raises UsageError for a name the plan does not know."""
    question = question_about(plan, with_targets=component is None)
    if component is not None:
        component = gpu_name(component)
        lines = (*_plan_lines(plan, component), *(f"program: {line}" for line in about(question, component)))
        if not lines:
            raise UsageError(_unknown(question, plan, component))
        return lines
    notes = []
    gap = plan.usd_per_hour - question.solution.usd_per_hour
    if abs(gap) > 1e-6:
        notes.append(
            f"the plan costs {plan.usd_per_hour:.2f} $/h, the program's own optimum "
            f"{question.solution.usd_per_hour:.2f}: simulation preferred another variant, and the figures below speak "
            "of the program's optimum"
        )
    return PlanExplanation(question, explain(question), tuple(notes))


def gpu_name(text: str) -> str:
    """The catalog's name of a GPU type, whichever of its names was given; any other text as it is."""
    try:
        return find_gpu(text).name
    except InputError:
        return text


def _looser_targets(plan: Plan, problem: ProgramInput) -> list[Variant]:
    """The same question with 50 ms more TTFT, and with 5 ms more TPOT."""
    question = question_of(plan)
    slo = load_inputs(question).slo
    corrections = Corrections(dict(plan.corrections))
    changes = [
        (f"{1000 * EXTRA_TTFT_S:.0f} ms more TTFT", replace(slo, ttft=_raised(slo.ttft, EXTRA_TTFT_S))),
        (f"{1000 * EXTRA_TPOT_S:.0f} ms more TPOT", replace(slo, tpot=_raised(slo.tpot, EXTRA_TPOT_S))),
    ]
    variants = []
    for name, changed in changes:
        if changed == slo:
            continue
        try:
            study = prepare(load_inputs(replace(question, slo=format_slo(changed))))
        except SplitplanError:  # looser targets of a plan that exists: nothing a user could mend
            continue
        columns = corrections.apply(study.problem.columns)
        variants.append(Variant(name, replace(study.problem, columns=columns, options=problem.options)))
    return variants


def _raised(target: Target | None, seconds: float) -> Target | None:
    return None if target is None else replace(target, seconds=target.seconds + seconds)


def _plan_lines(plan: Plan, component: str) -> list[str]:
    """What the plan itself says of a pool, instance, role, GPU type, rack or node."""
    lines = []
    for pool in plan.pools:
        whole = component in (pool.name, pool.role, pool.gpu, *pool.gpu_types)
        for instance in pool.instances:
            if not whole and component not in (instance.name, instance.rack, *(slot.node for slot in instance.gpus)):
                continue
            feeds = [f"{r.decode} ({r.path})" for r in plan.routes if r.prefill == instance.name]
            feeds += [f"{r.prefill} ({r.path})" for r in plan.routes if r.decode == instance.name]
            partners = f"; KV with {', '.join(feeds)}" if feeds else ""
            lines.append(
                f"{instance.name} of {pool.name} on {where(instance)}: {100 * instance.share:.0f} % of {pool.role}"
                f"{'' if pool.prompts.is_all else f' ({pool.prompts})'}, "
                f"{100 * pool.utilisation:.0f} % of its planned time{partners}"
            )
    return lines


def _unknown(question: Question, plan: Plan, component: str) -> Problem:
    known = {
        *(pool.name for pool in plan.pools),
        *(instance.name for pool in plan.pools for instance in pool.instances),
        *(placed.rack for placed in question.solution.placed),
        *(placed.column for placed in question.solution.placed),
        *question.problem.fleet.num_gpus,
    }
    near = nearest_names(component, sorted(known))
    hint = f"did you mean {' or '.join(near)}?" if near else f"one of: {', '.join(sorted(known))}"
    return Problem(f"the plan knows nothing of '{component}'", next_step=hint)


def as_json(result: PlanExplanation) -> dict[str, Any]:
    """The explanation as plain data."""
    runner, explanation = result.explanation.runner_up, result.explanation
    return {
        "binding": list(explanation.binding),
        "worth": [{"change": w.change, "gain": w.gain, "unit": w.unit} for w in explanation.worth],
        "runner_up": None
        if runner is None
        else {
            "without": runner.without,
            "value": runner.value,
            "more": runner.more,
            "gpus": dict(runner.gpus),
            "wins_when": list(runner.wins_when),
        },
        "unused": [
            {
                "gpu": u.gpu,
                "reason": u.reason,
                "usd_per_gpu_hour": u.price_usd_per_gpu_hour,
                "enters_at_usd_per_gpu_hour": u.enters_at_usd_per_gpu_hour,
            }
            for u in explanation.unused
        ],
        "notes": list(result.notes),
    }


def as_text(result: PlanExplanation, *, everything: bool = False) -> list[str]:
    """The explanation as lines for people; changes worth nothing are summed up unless `everything` is wanted."""
    explanation, unit = result.explanation, UNITS[result.question.solution.objective]
    lines = [*(f"Note      {note}" for note in result.notes)]
    lines += _block("Binds", explanation.binding)
    telling = [w for w in explanation.worth if w.gain > 1e-6]
    silent = [w.change for w in explanation.worth if w.gain <= 1e-6]
    lines += _block("Worth", [str(w) for w in telling] or ["nothing asked about would make the plan cheaper"])
    if silent:
        named = silent if everything else summed_up(silent, [w.change for w in telling])
        more = "" if len(named) == len(silent) else " (each by itself: --all)"
        lines += _block("", [f"worth nothing now: {', '.join(named)}{more}"])
    runner = explanation.runner_up
    if runner is not None:
        gpus = ", ".join(f"{count} {gpu}" for gpu, count in runner.gpus.items())
        lines += _block(
            "Runner-up", [f"without {runner.without}: {runner.value:.4g} ({runner.more:+.3g} {unit}), {gpus}"]
        )
        lines += _block("", [f"wins with {text}" for text in runner.wins_when])
    for entry in explanation.unused:
        enters = entry.enters_at_usd_per_gpu_hour
        level = f"; used at {enters:.3g} $/GPU/h or less (now {entry.price_usd_per_gpu_hour:.3g})" if enters else ""
        if enters is None and "worse" in entry.reason:
            level = "; at no price of its own would it be used"
        lines += _block("Unused" if entry is explanation.unused[0] else "", [f"{entry.gpu}: {entry.reason}{level}"])
    return lines


def summed_up(silent: Sequence[str], telling: Sequence[str]) -> list[str]:
    """Changes of one sort under one name: "one more node of any type"; "any other" where some are worth something."""
    found: dict[str, None] = {}
    for change in silent:
        sort = next((sort for sort in SORTS if sort[0].match(change)), None)
        if sort is None:
            found[change] = None
        else:
            others = any(sort[0].match(other) for other in telling)
            found[sort[1].format("any other" if others else "any")] = None
    return list(found)


SORTS = (
    (re.compile(r"one more \S+ node "), "one more node of {} type or rack"),
    (re.compile(r"1 kW more in rack "), "1 kW more in {} rack"),
)


def _block(head: str, texts: tuple[str, ...] | list[str]) -> list[str]:
    """Texts under one heading, wrapped and indented."""
    lines = []
    for number, text in enumerate(texts):
        first = f"{head if number == 0 else '':9} "
        lines += textwrap.wrap(text, LINE_WIDTH, initial_indent=first, subsequent_indent=" " * len(first))
    return lines
