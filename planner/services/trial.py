"""A joint solution on named GPUs: assigned together, then cut into a candidate per service beside the others' load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from splitplan.planner.columns.column import Column
from splitplan.planner.inputs import SolveInputs
from splitplan.planner.judge.candidates import Candidate, assigned_candidate
from splitplan.planner.judge.corrections import Corrections
from splitplan.planner.place.assign import Assignment, Seat, joined, seats_of
from splitplan.planner.program.types import ProgramInput, ProgramSolution
from splitplan.planner.services.problem import Learned, Member, cut
from splitplan.planner.spec.held import Held, fleet_left, together

SAME_LINK_BYTES_PER_S = 5e7
"""Links whose capacity differs by less are the same link to a simulation: its verdict is used again."""


@dataclass(frozen=True, slots=True)
class JointTrial:
    """A solution of the joint program, and what each service has of it."""

    problem: ProgramInput
    solution: ProgramSolution
    candidates: Mapping[str, Candidate]  # by service
    inputs: Mapping[str, SolveInputs]  # by service, with what the others hold


def assemble(
    members: Sequence[Member], learned: Learned, problem: ProgramInput, solution: ProgramSolution
) -> JointTrial:
    """Assign a joint solution and make each service's part of it runnable."""
    seats = seats_of(problem, solution)
    parts = {member.name: _part(member, learned, problem, solution, seats) for member in members}
    inputs = {}
    candidates = {}
    for member in members:
        others = together(held_of(*parts[other.name]) for other in members if other.name != member.name)
        own = _beside(member.study.inputs, others, problem, parts, member.name)
        found = assigned_candidate(*parts[member.name][:2], own, parts[member.name][2])
        if others.link_bytes_per_s:
            links = tuple(round(link.bytes_per_s / SAME_LINK_BYTES_PER_S) for link in found.deployment.links)
            found = replace(found, around=links)
        inputs[member.name], candidates[member.name] = own, found
    return JointTrial(problem, solution, candidates, inputs)


Part = tuple[ProgramInput, ProgramSolution, Assignment]


def _part(
    member: Member, learned: Learned, problem: ProgramInput, solution: ProgramSolution, seats: Sequence[Seat]
) -> Part:
    """A service's own program, its part of the answer, and where that stands."""
    own = own_problem(member, learned, problem)
    columns = {column.name: column for column in own.columns}
    answer = cut(member, problem, solution)
    rates = {(item.column, item.location): item for item in answer.placed}
    mine = []
    for seat in seats:
        if seat.column.service == member.name:
            column = columns[seat.column.name.removeprefix(member.prefix)]
            item = rates[column.name, seat.location.name]
            shares = tuple(rate / item.instances for rate in item.rate_req_per_s)
            mine.append(replace(seat, column=column, rate_req_per_s=shares))
    return own, answer, joined(own, answer, mine)


def own_problem(member: Member, learned: Learned, problem: ProgramInput) -> ProgramInput:
    """A service's own program at the granularity of the joint one, with its corrected columns."""
    columns: tuple[Column, ...] = learned.get(member.name, Corrections()).apply(member.study.problem.columns)
    options = replace(member.study.problem.options, granularity=problem.options.granularity)
    return replace(member.study.problem, columns=columns, options=options)


def held_of(problem: ProgramInput, solution: ProgramSolution, assignment: Assignment) -> Held:
    """What the instances of a solution take of the fleet: GPUs, power, dollars, and links at their mean load."""
    watts: dict[str, float] = {}
    slots: list[tuple[str, int]] = []
    for seat in assignment.seats:
        slots += seat.slots
        watts[seat.location.rack] = watts.get(seat.location.rack, 0.0) + seat.column.watts
    loads: dict[str, float] = {}
    for (start, end), bytes_per_s in assignment.link_loads.items():
        for name in _link_names(start, end):
            loads[name] = loads.get(name, 0.0) + bytes_per_s
    return Held(
        gpus=tuple(sorted(slots)),
        rack_watts=tuple((rack, round(amount, 3)) for rack, amount in sorted(watts.items())),
        link_bytes_per_s=tuple((name, round(amount, 3)) for name, amount in sorted(loads.items()) if amount > 0),
        usd_per_hour=round(solution.usd_per_hour, 6),
    )


def _link_names(start: tuple[str, str], end: tuple[str, str]) -> list[str]:
    """An edge of the fleet graph by the names of the program's rows; what leaves a rack is on the spine as well."""
    order = ("node", "rack", "pod", "spine")
    kinds = {"node": "nic", "rack": "rack_uplink", "pod": "pod_uplink"}
    upwards = order.index(start[0]) < order.index(end[0])
    low, direction = (start, "out") if upwards else (end, "in")
    names = [f"{kinds[low[0]]}_{direction}[{low[1]}]"]
    return [*names, "spine"] if low[0] == "rack" and upwards else names


def _beside(
    inputs: SolveInputs, others: Held, problem: ProgramInput, parts: Mapping[str, Part], name: str
) -> SolveInputs:
    """A service's inputs while the others stand where they are: what they hold, and budget and power without theirs."""
    options, question = problem.options, inputs.question
    watts = sum(part[1].watts for other, part in parts.items() if other != name)
    own = replace(
        question.program,
        budget_usd_per_hour=_less(options.budget_usd_per_hour, others.usd_per_hour),
        max_power_watts=_less(options.max_power_watts, watts),
        granularity=options.granularity,
    )
    held = together([question.held, others])
    question = replace(question, held=held, program=own)
    return replace(inputs, question=question, fleet=fleet_left(inputs.fleet, others))


def _less(limit: float | None, others: float) -> float | None:
    return None if limit is None else round(max(0.0, limit - others), 6)
