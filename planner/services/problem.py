"""One program over the columns of all services, and its answer cut into one solution per service.

Columns and classes carry the name of their service in front (`chat/prefill h100-sxm tp2`). A column works on classes of
its own service only (infinite work elsewhere), and KV flows inside a service only; GPUs, rack power, NICs, uplinks,
spine, budget and capped prices are shared, because their rows in `program/constraints.py` sum over all columns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from splitplan.catalogs.errors import InputError
from splitplan.planner.columns.column import Column
from splitplan.planner.judge.corrections import Corrections
from splitplan.planner.program.build import program_granularity
from splitplan.planner.program.pipelines import gpus_at
from splitplan.planner.program.reduce import allowed_columns, reduce_columns, unmatched_pins
from splitplan.planner.program.topology import fleet_locations
from splitplan.planner.program.types import (
    FloatArray,
    Flow,
    Placed,
    ProgramInput,
    ProgramOptions,
    ProgramSolution,
)
from splitplan.planner.study import Study

SEPARATOR = "/"
Learned = Mapping[str, Corrections]  # by service


@dataclass(frozen=True, slots=True)
class Member:
    """One service with its study and the columns that its own wishes leave."""

    name: str
    study: Study
    columns: tuple[Column, ...]

    @property
    def prefix(self) -> str:
        """What stands before its columns and classes in the joint program."""
        return self.name + SEPARATOR


def member_of(name: str, study: Study) -> Member:
    """A service with the columns that its mode, pins and bans allow. Raises InputError for pins that match nothing."""
    problems = unmatched_pins(study.problem.columns, study.problem.options)
    if problems:
        raise InputError([replace(problem, where=f"service {name}") for problem in problems])
    return Member(name, study, allowed_columns(study.problem.columns, study.problem.options))


def joint_problem(members: Sequence[Member], options: ProgramOptions, learned: Learned) -> ProgramInput:
    """The program of all services on the fleet they share, with corrected columns."""
    first = members[0].study.problem
    options = replace(options, mode="auto", pin=(), forbid=(), price_kinds=first.options.price_kinds)
    sizes = [len(member.study.problem.class_names) for member in members]
    starts = np.concatenate([[0], np.cumsum(sizes)]).astype(int)
    columns: list[Column] = []
    for member, start in zip(members, starts, strict=False):
        for column in learned.get(member.name, Corrections()).apply(member.columns):
            work = np.full(int(starts[-1]), np.inf)
            work[start : start + len(column.work_s_per_request)] = column.work_s_per_request
            name = member.prefix + column.name
            columns.append(replace(column, name=name, work_s_per_request=work, service=member.name))
    problem = ProgramInput(
        fleet=first.fleet,
        columns=tuple(columns),
        class_names=tuple(_class_name(member, name) for member in members for name in member.study.problem.class_names),
        rate_req_per_s=np.concatenate([member.study.problem.rate_req_per_s for member in members]),
        kv_bytes_per_request=_kv_bytes(members),
        pairs_allowed=_pair_rule(members),
        options=options,
        held=first.held,
    )
    granularity = options.granularity or program_granularity(problem, reduce_columns(problem))
    return replace(problem, options=replace(options, granularity=granularity))


def _class_name(member: Member, name: str) -> str:
    return member.name if len(member.study.problem.class_names) == 1 else member.prefix + name


def _kv_bytes(members: Sequence[Member]) -> dict[str, FloatArray]:
    """By KV dtype, [all classes]; 0 where a service has no column of the dtype: nothing of it is sent then."""
    dtypes = dict.fromkeys(dtype for member in members for dtype in member.study.problem.kv_bytes_per_request)
    return {
        dtype: np.concatenate(
            [
                member.study.problem.kv_bytes_per_request.get(dtype, np.zeros(len(member.study.problem.class_names)))
                for member in members
            ]
        )
        for dtype in dtypes
    }


def _pair_rule(members: Sequence[Member]) -> Callable[[Column, Column], bool]:
    """Prefill and decode of one service, where its own connector connects them."""
    rules = {member.name: member.study.problem.pairs_allowed for member in members}

    def allowed(prefill: Column, decode: Column) -> bool:
        return prefill.service == decode.service and rules[prefill.service](prefill, decode)

    return allowed


def only(problem: ProgramInput, services: Sequence[str]) -> ProgramInput:
    """The joint program for some of the services: the classes of the others ask for nothing."""
    columns = tuple(column for column in problem.columns if column.service in services)
    served = np.any([np.isfinite(column.work_s_per_request) for column in columns], axis=0)
    return replace(problem, columns=columns, rate_req_per_s=np.where(served, problem.rate_req_per_s, 0.0))


def cut(member: Member, problem: ProgramInput, solution: ProgramSolution) -> ProgramSolution:
    """The part of a joint solution that is one service's, in the names of its own program, failures included."""
    own = tuple(item for item in solution.placed if item.column.startswith(member.prefix))
    mine = [b for b, name in enumerate(problem.class_names) if _is_of(member, name)]
    placed, flows = _part_of(member, mine, solution.placed, solution.flows)
    states = []
    for state in solution.states:
        left, sent = _part_of(member, mine, state.placed, state.flows)
        states.append(replace(state, placed=left, flows=sent))
    dollars, gpus, watts = totals(problem, own)
    goodput = solution.objective == "goodput"
    value = solution.rate_scale if goodput else watts if solution.objective == "power" else dollars
    return replace(
        solution,
        value=value,
        bound=value,
        gap_percent=0.0,
        placed=placed,
        flows=flows,
        class_scale=tuple(solution.class_scale[b] for b in mine),
        usd_per_hour=round(dollars, 9),
        num_gpus=gpus,
        watts=watts,
        bought=(),
        binding=(),
        states=tuple(states),
    )


def _is_of(member: Member, class_name: str) -> bool:
    return class_name == member.name or class_name.startswith(member.prefix)


def _part_of(
    member: Member, mine: Sequence[int], placed: Sequence[Placed], flows: Sequence[Flow]
) -> tuple[tuple[Placed, ...], tuple[Flow, ...]]:
    """Instances and flows of one service, by its own columns and its classes `mine`."""
    prefix = member.prefix
    own = tuple(
        replace(
            item,
            column=item.column.removeprefix(prefix),
            rate_req_per_s=tuple(item.rate_req_per_s[b] for b in mine),
        )
        for item in placed
        if item.column.startswith(prefix)
    )
    sent = tuple(
        replace(
            flow,
            class_index=mine.index(flow.class_index),
            prefill=flow.prefill.removeprefix(prefix),
            decode=flow.decode.removeprefix(prefix),
        )
        for flow in flows
        if flow.prefill.startswith(prefix)
    )
    return own, sent


def totals(problem: ProgramInput, placed: Sequence[Placed]) -> tuple[float, int, float]:
    """(dollars per hour, GPUs, watts) of placed instances, each GPU at its own price.

    Where kinds of price are mixed, the cheapest go to whoever asks first in the joint plan; a single service is
    counted at the fleet's price.
    """
    columns = {column.name: column for column in problem.columns}
    granularity = problem.options.granularity
    places = {location.name: location for location in fleet_locations(problem.fleet, granularity)}
    dollars, watts, num_gpus = [], [], 0
    for item in placed:
        column = columns[item.column]
        watts.append(item.instances * column.watts)
        for name, gpus in gpus_at(column, item.stages, item.location, item.instances).items():
            num_gpus += gpus
            dollars.append(gpus * places[name].usd_per_gpu_hour)
            watts.append(gpus * places[name].host_watts_per_gpu)
    return math.fsum(dollars), num_gpus, math.fsum(watts)
