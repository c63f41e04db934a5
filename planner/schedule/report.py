"""A schedule as people read it: which plan when, the moves, and what one plan for all hours would cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from splitplan.planner.schedule.document import MoveEntry, ScheduleFile, SwitchEntry, plan_names
from splitplan.planner.schedule.solve import Schedule
from splitplan.planner.show.drawing import index_ranges
from splitplan.planner.show.report import attainment_text, pools_text

if TYPE_CHECKING:
    from rich.console import Console


def print_schedule(console: Console, schedule: Schedule, document: ScheduleFile) -> None:
    """Periods, moves, costs and proof."""
    console.print(_periods_table(schedule, document))
    console.print()
    for switch in document.switches:
        console.print(f"Hour {switch.hour}: {switch.before} → {switch.after}  ({switch.usd:.2f} $)", markup=False)
        for move in switch.moves:
            console.print(f"  {move_text(move)}", markup=False)
    if not document.switches:
        console.print("One plan for all hours: no switching pays for its moves.")
    console.print()
    for line in cost_lines(schedule):
        console.print(line, markup=False)


def _periods_table(schedule: Schedule, document: ScheduleFile) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("hours", no_wrap=True)
    table.add_column("planned for", justify="right", no_wrap=True)
    table.add_column("plan", overflow="fold")
    for heading in ("GPUs", "$/h", "all met"):
        table.add_column(heading, justify="right", no_wrap=True)
    for period, state in zip(document.periods, schedule.state_of, strict=True):
        plan = schedule.plans[state]
        last = (period.first_hour + period.num_hours - 1) % document.num_hours
        met = attainment_text(plan.verification) if plan.verification else ""
        table.add_row(
            f"{period.first_hour:02}–{last:02}",
            f"{period.planned_req_per_s:g} req/s",
            pools_text(plan.pools, ("prefill", "decode", "colocated")),
            str(plan.num_gpus),
            f"{plan.usd_per_hour:.2f}",
            met,
        )
    return table


def move_text(move: MoveEntry) -> str:
    """ "5 min before: start decode a100-sxm-80 tp1 on a100-2 GPU 0"."""
    minutes = abs(move.at_s) / 60
    when = "at the hour" if move.at_s == 0 else f"{minutes:g} min {'before' if move.at_s < 0 else 'after'}"
    nodes = dict.fromkeys(slot.node for slot in move.gpus)
    where = ", ".join(f"{n} GPU {index_ranges(s.index for s in move.gpus if s.node == n)}" for n in nodes)
    warning = "" if move.safe else f"   only {100 * move.served:.0f} % of the load is served"
    return f"{when}: {move.action} {move.column} on {where}{warning}"


def cost_lines(schedule: Schedule) -> list[str]:
    """What the schedule costs a round beside one plan for all hours and the cheapest of each; how far from the best."""
    hours = sum(period.num_hours for period in schedule.periods)
    moved = sum(switch.usd for switch in schedule.switches)
    saved = schedule.all_day_usd - schedule.usd
    share = 100 * saved / schedule.all_day_usd if schedule.all_day_usd else 0.0
    return [
        f"Schedule  {schedule.usd:.2f} $ per {hours} hours, {moved:.2f} $ of it for moves",
        f"One plan  {schedule.all_day_usd:.2f} $, {schedule.all_day.usd_per_hour:.2f} $/h at all hours; the schedule "
        f"saves {saved:.2f} $ ({share:.1f} %)",
        f"Each      {schedule.follow_usd:.2f} $ with the cheapest plan of each period, whatever switching costs",
        f"Proof     no schedule over these levels costs less than {schedule.bound_usd:.2f} $ (gap "
        f"{schedule.gap_percent:.2f} %, {schedule.solver}), over columns corrected by simulation",
        "Levels    "
        + "; ".join(
            f"{level.rate_req_per_s:g} req/s in hours {index_ranges(level.hours)}" for level in schedule.levels
        ),
    ]


def drops(switches: tuple[SwitchEntry, ...]) -> int:
    """Moves after which less than the load is served."""
    return sum(not move.safe for switch in switches for move in switch.moves)


def as_json(schedule: Schedule, document: ScheduleFile) -> dict[str, Any]:
    """The schedule as plain data, every plan in full."""
    plans = dict(zip(plan_names(schedule), schedule.plans, strict=True))
    return {
        **{key: value for key, value in document.model_dump(mode="json").items() if key not in ("kind", "version")},
        "gap_percent": round(schedule.gap_percent, 4),
        "plans": {name: plan.model_dump(mode="json") for name, plan in plans.items()},
        "one_plan": schedule.all_day.model_dump(mode="json"),
    }
