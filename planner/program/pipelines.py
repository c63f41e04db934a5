"""Pipelines that mix GPU types by stage: groups of GPUs of each type in one rack, dealt to instances afterwards.

An instance counts at its home, where its first stage stands. A part of the column (its stages on one kind of host)
takes `count` groups for each instance of the rack. Where the rack has a single location for a part, its groups are
there; where it has several, y[c,p,ℓ] says how many stand at each. Any stages of one rack make a pipeline, so that
instances are put together only when the program is solved: `stage_places`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from splitplan.planner.columns.column import Column, Part
from splitplan.planner.program.types import StagePlace

if TYPE_CHECKING:
    from splitplan.planner.program.build import Program
    from splitplan.planner.program.topology import Location

Counts = Mapping[tuple[int, str], int]
SPLIT_FAILURES = ("node", "power-domain")
"""Failures that can take some stages of a pipeline and leave the others: mixed pipelines are not offered then."""


def define_mixed(program: Program, index: int, counts: Counts | None, free_racks: frozenset[str]) -> None:
    """n[c,ℓ], y[c,p,ℓ] and stages[c,p,ρ] of one mixed column, in every rack that has all its types."""
    if split_by_failures(program):
        return
    column = program.columns[index]
    racks: dict[str, list[int]] = {}
    for place, location in enumerate(program.locations):
        racks.setdefault(location.rack, []).append(place)
    for rack, members in racks.items():
        stands = [[place for place in members if can_hold(part, program.locations[place])] for part in column.parts]
        if all(stands):
            _define_in_rack(program, index, rack, stands, None if rack in free_racks else counts)


def split_by_failures(program: Program) -> bool:
    """Whether there are mixed pipelines that the failures to survive forbid."""
    mixed = any(column.stages for column in program.columns)
    return mixed and program.problem.options.survive in SPLIT_FAILURES


def can_hold(part: Part, location: Location) -> bool:
    """Whether a stage of the part can stand at the location."""
    fits = part.gpu == location.gpu and part.gpu_link in ("", location.gpu_link)
    return fits and location.slots_of_size(part.size) > 0


def _define_in_rack(program: Program, index: int, rack: str, stands: list[list[int]], counts: Counts | None) -> None:
    from splitplan.planner.program.build import Use

    column, model = program.columns[index], program.model
    rooms = [
        [program.locations[place].slots_of_size(part.size) for place in places]
        for part, places in zip(column.parts, stands, strict=True)
    ]
    most = min(sum(room) // part.count for part, room in zip(column.parts, rooms, strict=True))
    homes: dict[int, int] = {}
    for place, room in zip(stands[0], rooms[0], strict=True):
        low, high = 0, min(most, room)
        if counts is not None:
            low = high = counts.get((index, program.locations[place].name), 0)
        if high > 0:
            label = f"instances[{column.name}, {program.locations[place].name}]"
            homes[place] = program.n[index, place] = model.add_variable(label, low, high, integer=True)
    if not homes:
        return
    for number, (part, places) in enumerate(zip(column.parts, stands, strict=True)):
        at_home = number == 0 and part.count == 1
        if at_home or len(places) == 1:
            for home, variable in homes.items():
                place = home if at_home else places[0]
                program.uses.append(Use(variable, index, number, place, part.count, part.size))
            continue
        terms = [(variable, -float(part.count)) for variable in homes.values()]
        for place, room in zip(places, rooms[number], strict=True):
            label = f"stages[{column.name}, {part.gpu}, {program.locations[place].name}]"
            stage = model.add_variable(label, 0, room, integer=True)
            program.uses.append(Use(stage, index, number, place, 1, part.size))
            terms.append((stage, 1.0))
            if number == 0 and place in homes:
                model.add_constraint(f"{label} first", [(stage, 1.0), (homes[place], -1.0)], ">=", 0.0)
        model.add_constraint(f"stages[{column.name}, {part.gpu}, rack {rack}]", terms, "==", 0.0)


def stage_places(program: Program, values: Sequence[float]) -> dict[tuple[int, int], tuple[StagePlace, ...]]:
    """Where all stages of the instances at a home stand, by (column, home): dealt in the order of locations."""
    groups: dict[tuple[int, str, int], list[list[int]]] = {}  # (column, rack, part) → [location, groups left]
    for use in program.uses:
        number = use.groups * round(values[use.variable])
        if program.columns[use.index].stages and number:
            key = (use.index, program.locations[use.place].rack, use.part)
            groups.setdefault(key, []).append([use.place, number])
    homes = [
        (index, place, round(values[variable]))
        for (index, place), variable in program.n.items()
        if round(values[variable]) > 0 and program.columns[index].stages
    ]
    for index, place, instances in homes:  # the first stage of every instance is at home
        _take(groups[index, program.locations[place].rack, 0], instances, place)
    places = {}
    for index, place, instances in homes:
        rack, found = program.locations[place].rack, [StagePlace(0, program.locations[place].name, instances)]
        for number, part in enumerate(program.columns[index].parts):
            wanted = instances * (part.count - (number == 0))
            dealt = _take(groups.get((index, rack, number), []), wanted)
            found += [StagePlace(number, program.locations[at].name, many) for at, many in dealt]
        places[index, place] = tuple(found)
    return places


def _take(groups: list[list[int]], wanted: int, only: int | None = None) -> list[tuple[int, int]]:
    """Take groups from the front of a list, of one location or of any."""
    taken = []
    for entry in groups:
        part = min(entry[1], wanted) if only in (None, entry[0]) else 0
        if part:
            entry[1] -= part
            wanted -= part
            taken.append((entry[0], part))
    return taken


def gpus_at(column: Column, stages: tuple[StagePlace, ...], home: str, instances: int) -> dict[str, int]:
    """GPUs that instances take, by location."""
    if not column.stages:
        return {home: instances * column.num_gpus}
    found: dict[str, int] = {}
    for stage in stages:
        found[stage.location] = found.get(stage.location, 0) + stage.groups * column.tensor_parallel
    return found
