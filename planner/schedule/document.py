"""The Schedule document: which plan runs when, and the moves from each to the next. Plans are files of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field

from splitplan.catalogs.documents import read_document, validate, write_text
from splitplan.planner.plan import GpuSlot
from splitplan.planner.schedule.joint import Switching
from splitplan.planner.schedule.layout import Switch
from splitplan.planner.schedule.solve import Schedule


class _Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PeriodEntry(_Frozen):
    """Hours in a row under one plan."""

    first_hour: int = Field(ge=0)
    num_hours: int = Field(ge=1)
    planned_req_per_s: float = Field(gt=0)  # the busiest hour among those planned alike
    plan: str  # its name in `plans`
    usd_per_hour: float = Field(ge=0)


class MoveEntry(_Frozen):
    """One start or stop. `at_s` is relative to the hour; a start serves `reload_s` later, a stop takes `drain_s`."""

    at_s: float
    action: Literal["start", "stop"]
    column: str
    gpus: tuple[GpuSlot, ...]
    served: float  # share of the load that is served once it is done
    safe: bool


class SwitchEntry(_Frozen):
    """From one plan to the next."""

    hour: int = Field(ge=0)
    before: str
    after: str
    usd: float = Field(ge=0)
    moves: tuple[MoveEntry, ...]


class ScheduleFile(_Frozen):
    """A schedule for a round of hours; dollars are per round."""

    kind: Literal["Schedule"] = "Schedule"
    version: Literal[1] = 1
    num_hours: int = Field(ge=1)
    move_usd: float = Field(ge=0)
    reload_s: float = Field(ge=0)
    drain_s: float = Field(ge=0)
    usd: float = Field(ge=0)
    bound_usd: float = Field(ge=0)
    one_plan_usd: float = Field(ge=0)  # the best single plan that serves all hours
    cheapest_each_usd: float = Field(ge=0)  # the cheapest plan of each period, whatever switching costs
    solver: str
    plans: dict[str, str]  # name → file beside this one
    periods: tuple[PeriodEntry, ...]
    switches: tuple[SwitchEntry, ...]


def plan_names(schedule: Schedule) -> tuple[str, ...]:
    """A name per plan: by the load it is made for."""
    names: list[str] = []
    for plan in schedule.plans:
        base = f"{plan.inputs.rate_req_per_s:g}-req-per-s"
        name, number = base, 2
        while name in names:
            name, number = f"{base}-{number}", number + 1
        names.append(name)
    return tuple(names)


def document_of(schedule: Schedule, switching: Switching) -> ScheduleFile:
    """The schedule as it is written."""
    names = plan_names(schedule)
    periods = tuple(
        PeriodEntry(
            first_hour=period.first_hour,
            num_hours=period.num_hours,
            planned_req_per_s=schedule.levels[period.level].rate_req_per_s,
            plan=names[state],
            usd_per_hour=schedule.plans[state].usd_per_hour,
        )
        for period, state in zip(schedule.periods, schedule.state_of, strict=True)
    )
    return ScheduleFile(
        num_hours=sum(period.num_hours for period in schedule.periods),
        move_usd=switching.move_usd,
        reload_s=switching.reload_s,
        drain_s=switching.drain_s,
        usd=schedule.usd,
        bound_usd=schedule.bound_usd,
        one_plan_usd=schedule.all_day_usd,
        cheapest_each_usd=schedule.follow_usd,
        solver=schedule.solver,
        plans={name: f"{name}.yaml" for name in names},
        periods=periods,
        switches=tuple(_switch(switch, names) for switch in schedule.switches),
    )


def _switch(switch: Switch, names: tuple[str, ...]) -> SwitchEntry:
    moves = tuple(
        MoveEntry(
            at_s=at_s,
            action=move.action,
            column=move.unit.column,
            gpus=tuple(GpuSlot(node=node, index=index) for node, index in move.unit.slots),
            served=round(move.served, 6),
            safe=move.safe,
        )
        for move, at_s in zip(switch.moves, switch.at_s, strict=True)
    )
    return SwitchEntry(
        hour=switch.hour,
        before=names[switch.before],
        after=names[switch.after],
        usd=round(switch.usd, 6),
        moves=moves,
    )


def save_schedule(document: ScheduleFile, path: str | Path) -> None:
    """Write a schedule as YAML, whole or not at all; the same schedule gives the same bytes. Raises InputError."""
    text = yaml.safe_dump(document.model_dump(mode="json"), sort_keys=False, allow_unicode=True, width=120)
    write_text(path, text, "schedule")


def load_schedule(path: str | Path) -> ScheduleFile:
    """Read and check a schedule file; raises DocumentError with every problem and its line."""
    return validate(read_document(path, "schedule"), ScheduleFile)
