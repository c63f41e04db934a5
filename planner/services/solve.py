"""The whole way from a Services file to one verified plan per service, and what planning together saves."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from splitplan.catalogs.errors import NoPlanError, Problem
from splitplan.planner.emit import Variant, emit_plan
from splitplan.planner.judge.corrections import Corrections
from splitplan.planner.judge.repair import Outcome, Workshop
from splitplan.planner.judge.verify import Effort, Judge, default_effort
from splitplan.planner.plan import Plan, Proof, Verification
from splitplan.planner.program.solve import growth_limits, solve_program
from splitplan.planner.program.types import Infeasible, Mode, ProgramInput, ProgramOptions
from splitplan.planner.services.problem import Member, joint_problem, member_of
from splitplan.planner.services.read import Shared, read_services
from splitplan.planner.services.repair import JointOutcome, JointWorkshop, learned_by_all
from splitplan.planner.services.ways import Answer, Way, best_order, best_rack_split, by_racks, one_after_the_other
from splitplan.planner.show.report import pools_text
from splitplan.planner.solve import SAME_PERCENT
from splitplan.planner.study import prepare

TOGETHER = "planned together"
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Split:
    """One way to split the fleet, at its best: what it costs and what each service gets."""

    label: str
    plans: Mapping[str, tuple[str, int, float]]  # by service: (pools in words, GPUs, dollars per hour)
    verdicts: Mapping[str, Verification]
    num_gpus: int
    usd_per_hour: float
    watts: float
    reason: str = ""  # why there is none

    @property
    def passed(self) -> bool:
        """Every service met its targets."""
        return bool(self.plans) and all(verdict.passed for verdict in self.verdicts.values())


@dataclass(frozen=True, slots=True)
class Services:
    """The answer: a plan for every service, the proof of the whole, and the ways that lost."""

    plans: Mapping[str, Plan]
    fleet: str
    chosen: Split
    others: tuple[Split, ...]
    proof: Proof
    limits: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def num_gpus(self) -> int:
        """GPUs of all plans."""
        return sum(plan.num_gpus for plan in self.plans.values())

    @property
    def usd_per_hour(self) -> float:
        """Dollars per hour of the whole."""
        return self.chosen.usd_per_hour


def solve_services(
    path: str | Path, shared: Shared, *, effort: Effort | None = None, progress: Progress | None = None
) -> Services:
    """The best split of a fleet among the services of a file, each verified by simulation beside the others.

    Raises InputError for bad input and NoPlanError when no split serves all of them within their targets.
    """
    say = progress or (lambda _text: None)
    start_s = time.perf_counter()
    members = []
    for service in read_services(path, shared):
        try:
            members.append(member_of(service.name, prepare(service.inputs)))
            for text in service.inputs.slo.notes:
                say(f"{service.name}: {text}")
        except NoPlanError as error:
            head = error.problems[0]
            raise NoPlanError(
                [replace(head, message=f"service {service.name}: {head.message}"), *error.problems[1:]]
            ) from None
    say(f"{sum(len(member.columns) for member in members)} columns stand ({time.perf_counter() - start_s:.2f} s)")
    shop = JointWorkshop(tuple(members), shared.program, effort or default_effort())
    outcomes = _all_ways(shop, say)
    chosen = _chosen(outcomes, shop)
    answer = _emitted(shop, chosen, outcomes)
    say(f"solved and verified in {time.perf_counter() - start_s:.2f} s")
    return answer


def _all_ways(shop: JointWorkshop, say: Progress) -> list[JointOutcome]:
    """Together first (with less choice, then all of it), then what people do by hand."""
    modes: list[Mode] = ["auto"]
    if all(member.study.problem.options.mode == "auto" for member in shop.members):
        modes = ["colocated", "disagg", "auto"]
    outcomes = [_run(shop, TOGETHER if mode == "auto" else f"{mode} only", _together(mode), say) for mode in modes]
    if len(shop.members) < 2 or shop.options.objective == "goodput" or shop.options.survive:
        return outcomes
    problem = joint_problem(shop.members, shop.options, outcomes[-1].learned)
    if problem.options.granularity != "node":
        return outcomes
    names = tuple(member.name for member in shop.members)
    orders = list(dict.fromkeys([names, *best_order(problem)[:1]]))
    outcomes += [
        _run(shop, f"one after the other: {', '.join(order)}", one_after_the_other(order), say) for order in orders
    ]
    owners = best_rack_split(problem)
    if owners:
        outcomes.append(_run(shop, _split_label(owners, names), by_racks(owners), say))
    return outcomes


def _split_label(owners: Mapping[str, str], names: Sequence[str]) -> str:
    parts = [f"{name} {' '.join(rack for rack, owner in owners.items() if owner == name) or 'none'}" for name in names]
    return f"by whole racks: {', '.join(parts)}"


def _together(mode: Mode) -> Way:
    def way(problem: ProgramInput) -> Answer:
        return solve_program(replace(problem, options=replace(problem.options, mode=mode)))

    return way


def _run(shop: JointWorkshop, label: str, way: Way, say: Progress) -> JointOutcome:
    start_s = time.perf_counter()
    outcome = shop.search(label, way)
    result = f"{outcome.trial.solution.usd_per_hour:.2f} $/h" if outcome.trial and outcome.passed else "no plan"
    say(f"{label}: {result} ({time.perf_counter() - start_s:.2f} s)")
    return outcome


def _chosen(outcomes: Sequence[JointOutcome], shop: JointWorkshop) -> JointOutcome:
    """The best that passed, whichever way found it; of those within SAME_PERCENT, the one with fewest GPUs."""
    passed = [outcome for outcome in (*outcomes, *shop.passed) if outcome.passed]
    if passed:
        best = min(outcome.score for outcome in passed)
        close = [outcome for outcome in passed if outcome.score <= best + abs(best) * SAME_PERCENT / 100]
        return min(close, key=lambda outcome: (_gpus(outcome), round(outcome.score, 6)))
    together = next(outcome for outcome in outcomes if outcome.label == TOGETHER)
    reasons = [Problem(reason) for reason in together.reasons]
    for name, verdict in together.verdicts.items():
        reasons += [Problem(f"{name}: the last plan tried misses: {miss}") for miss in verdict.misses]
    fleet = shop.members[0].study.inputs.fleet.name
    names = ", ".join(member.name for member in shop.members)
    head = Problem(
        f"no split of fleet {fleet} serves {names} within their targets",
        next_step="relax a target, lower a rate, or add GPUs",
    )
    raise NoPlanError([head, *reasons])


def _gpus(outcome: JointOutcome) -> int:
    return outcome.trial.solution.num_gpus if outcome.trial else 0


def _emitted(shop: JointWorkshop, chosen: JointOutcome, outcomes: Sequence[JointOutcome]) -> Services:
    """Plans, proof and comparison of the chosen split."""
    trial = chosen.trial
    assert trial is not None, "only what passed is emitted"
    learned = learned_by_all(outcomes, chosen)
    plans = {member.name: _plan(shop, member, chosen) for member in shop.members}
    proof, notes = _proof(shop, chosen, learned)
    splits = [_split(outcome) for outcome in outcomes if outcome.label != TOGETHER]
    limits = tuple(dict.fromkeys(f"{name}: {text}" for name, plan in plans.items() for text in plan.limits))
    return Services(
        plans=plans,
        fleet=shop.members[0].study.inputs.fleet.name,
        chosen=replace(_split(chosen), label=TOGETHER),
        others=tuple(splits),
        proof=proof,
        limits=limits,
        notes=notes,
    )


def _plan(shop: JointWorkshop, member: Member, chosen: JointOutcome) -> Plan:
    """The plan of one service, complete in itself: what the others hold is among its inputs."""
    assert chosen.trial is not None
    inputs, found = chosen.trial.inputs[member.name], chosen.trial.candidates[member.name]
    options = replace(member.study.problem.options, **_own_limits(inputs.question.program))
    problem = replace(member.study.problem, options=options, fleet=inputs.fleet, held=inputs.question.held)
    own = Workshop(inputs, problem, Judge(inputs, shop.effort))
    headroom, binding = growth_limits(own.corrected(options, chosen.learned[member.name]), found.solution)
    found = replace(found, solution=replace(found.solution, headroom=headroom, binding=binding))
    outcome = Outcome(found, chosen.verdicts[member.name], corrections=chosen.learned[member.name])
    study = replace(member.study, inputs=inputs, problem=problem)
    plan = emit_plan(study, own, outcome, [Variant("", problem.options, outcome)])
    return plan.model_copy(update={"notes": (*plan.notes, *_beside_note(shop, member, chosen))})


def _beside_note(shop: JointWorkshop, member: Member, chosen: JointOutcome) -> list[str]:
    assert chosen.trial is not None
    others = [
        f"{other.name} ({chosen.trial.candidates[other.name].solution.num_gpus} GPUs)"
        for other in shop.members
        if other.name != member.name
    ]
    text = f"planned together with {', '.join(others)}: what they hold of the fleet is not to be had here"
    return [text] if others else []


def _own_limits(options: ProgramOptions) -> dict[str, Any]:
    """What of a service's options depends on the others."""
    names = ("budget_usd_per_hour", "max_power_watts", "granularity")
    return {name: getattr(options, name) for name in names}


def _proof(
    shop: JointWorkshop, chosen: JointOutcome, learned: Mapping[str, Corrections]
) -> tuple[Proof, tuple[str, ...]]:
    """The bound of the joint program over everything learned, against the chosen split; and what to know of it."""
    assert chosen.trial is not None
    solution = chosen.trial.solution
    problem = joint_problem(shop.members, shop.options, learned)
    last = solve_program(problem)
    best = max if solution.objective == "goodput" else min
    bound = solution.value if isinstance(last, Infeasible) else best(last.bound, solution.value)
    gap = 100 * abs(solution.value - bound) / max(abs(solution.value), 1e-12)
    proof = Proof(
        status="optimal" if gap <= 1e-4 else "feasible",
        objective=solution.objective,
        value=round(solution.value, 6),
        bound=round(bound, 6),
        gap_percent=round(gap, 4),
        solver=solution.solver,
        constraints_checked=solution.constraints_checked,
    )
    notes = ["links that services share are simulated with the planned mean load of the others taken off"]
    if len(shop.members) > 1 and problem.options.granularity != "node":
        notes.append("one after the other and by whole racks are compared on fleets of up to 12 hosts only")
    return proof, tuple(notes)


def _split(outcome: JointOutcome) -> Split:
    """An outcome in the words of the summary."""
    trial = outcome.trial
    if trial is None:
        reason = outcome.reasons[0] if outcome.reasons else "nothing fits"
        return Split(outcome.label, {}, {}, 0, 0.0, 0.0, reason)
    plans = {}
    for name, found in trial.candidates.items():
        text = pools_text(found.pools, ("prefill", "decode", "colocated"))
        plans[name] = (text, found.solution.num_gpus, round(found.solution.usd_per_hour, 6))
    solution = trial.solution
    misses = [f"{name}: {miss}" for name, verdict in outcome.verdicts.items() for miss in verdict.misses]
    return Split(
        outcome.label,
        plans,
        dict(outcome.verdicts),
        solution.num_gpus,
        round(solution.usd_per_hour, 6),
        round(solution.watts, 3),
        "; ".join([*outcome.reasons, *misses]),
    )
