"""Classes that are served together: neighbouring length buckets behind one set of instances.

A column serves some of the classes, its *group*; it was worked out for the mix of just those, each at its own rate.
So a plan picks groups of which each class is in one, for its prefill (or colocated serving) and for its decode, and
every instance takes the classes of its group in proportion to their rates, as a router does that looks at nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from splitplan.planner.columns.column import Column
from splitplan.planner.program.constraints import most_instances
from splitplan.planner.program.linear import Terms

if TYPE_CHECKING:
    from splitplan.planner.program.build import Program, Service
    from splitplan.planner.program.types import ProgramInput

Group = tuple[int, ...]  # class indices, ascending


def group_of(column: Column) -> Group:
    """The classes that a column serves."""
    return tuple(int(b) for b in np.flatnonzero(np.isfinite(column.work_s_per_request)))


def stage_of(column: Column) -> str:
    """ "decode", or "prefill" for whatever takes new requests."""
    return "decode" if column.role == "decode" else "prefill"


def group_name(problem: ProgramInput, group: Group) -> str:
    """The classes of a group by name."""
    return (
        "all classes" if len(group) == len(problem.class_names) else " + ".join(problem.class_names[b] for b in group)
    )


def define_groups(program: Program) -> None:
    """y[g] ∈ {0, 1} per stage: instances only in groups that are picked, and each class in at most one of them."""
    if not program.problem.options.class_groups:
        return
    picked: dict[tuple[str, Group], int] = {}
    instances: dict[int, Terms] = {}
    for (index, _), variable in program.n.items():
        instances.setdefault(index, []).append((variable, 1.0))
    room = most_instances(program)
    for index, terms in instances.items():
        column = program.columns[index]
        key = (stage_of(column), group_of(column))
        name = f"group[{group_name(program.problem, key[1])}, {key[0]}]"
        if key not in picked:
            picked[key] = program.model.add_variable(name, 0, 1, integer=True)
        row = [*terms, (picked[key], -float(room[index]))]
        program.model.add_constraint(f"group[{column.name}]", row, "<=", 0.0)
    for stage in ("prefill", "decode"):
        for b, name in enumerate(program.problem.class_names):
            mine: Terms = [
                (variable, 1.0) for (where, group), variable in picked.items() if where == stage and b in group
            ]
            if len(mine) > 1:
                program.model.add_constraint(f"one_group[{name}, {stage}]", mine, "<=", 1.0)


def define_proportions(program: Program, service: Service) -> None:
    """x[b,c,ℓ] / rate_b is the same for all classes of a column's group."""
    if not program.problem.options.class_groups:
        return
    served: dict[tuple[int, int], list[int]] = {}
    for b, index, place in service.x:
        served.setdefault((index, place), []).append(b)
    for (index, place), classes in served.items():
        first, column, location = classes[0], program.columns[index], program.locations[place]
        for b in classes[1:]:
            name = f"in_proportion[{program.problem.class_names[b]}, {column.name}, {location.name}{service.name}]"
            ratio = float(service.rate_req_per_s[b] / service.rate_req_per_s[first])
            row = [(service.x[b, index, place], 1.0), (service.x[first, index, place], -ratio)]
            program.model.add_constraint(name, row, "==", 0.0)
