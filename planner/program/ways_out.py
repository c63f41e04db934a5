"""What stands in the way of a plan, and the cheapest ways around it, found by solving again with one thing given up.

A wish or limit is named as a cause when all of the load fits without it. More GPUs are priced at the fleet's prices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from splitplan.catalogs.errors import OutOfTimeError, SolverError
from splitplan.planner.program.build import build_program
from splitplan.planner.program.infeasible import listed
from splitplan.planner.program.optimum import Optimum, elastic, find_optimum
from splitplan.planner.program.reduce import reduce_columns
from splitplan.planner.program.solver import solve_arrays
from splitplan.planner.program.topology import price_of
from splitplan.planner.program.types import Objective, ProgramInput, Reason
from splitplan.planner.spec.fleet import Fleet, Node, Rack

ALL = 1.0 - 1e-6
MOST_NODES = 64
CHECK_TIME_S = 10.0
ONE_MORE = 1.0 + 1e-6
ANY_PLAN = 1e4


Change = Callable[[ProgramInput], ProgramInput]


@dataclass(frozen=True, slots=True)
class Wish:
    """A wish or limit of the question: what it is called, what to do about it, and the question without it."""

    name: str
    verdict: str
    next_step: str  # {}: the least dollars or watts that would do
    without: Change


def ways_out(problem: ProgramInput) -> tuple[Reason, ...]:
    """Causes that alone stand in the way, and the cheapest GPUs to add; () when nothing of the kind helps."""
    wishes = list(_wishes(problem))
    causes = [_in_words(wish, problem) for wish in wishes if _fits(wish.without(problem))]
    nodes = more_nodes(problem) if problem.options.budget_usd_per_hour is None else ()
    return (*causes, *nodes) or _several(problem, wishes)


def _in_words(wish: Wish, problem: ProgramInput) -> Reason:
    """The cause; what a budget or a power limit would have to be is solved for."""
    sentence = f"{wish.name} {wish.verdict}"
    if "{}" not in wish.next_step:
        return Reason(sentence, wish.next_step)
    free = wish.without(problem)
    objective: Objective = "power" if "max-power" in wish.next_step else "cost"
    found = _optimum(replace(free, options=replace(free.options, objective=objective)))
    return Reason(sentence, wish.next_step.format(f"{found.value * ONE_MORE:.6g}") if found else "")


def _several(problem: ProgramInput, wishes: list[Wish]) -> tuple[Reason, ...]:
    """Where nothing helps alone: as few of them as help together."""

    def fits(given_up: list[Wish]) -> bool:
        changed = problem
        for wish in given_up:
            changed = wish.without(changed)
        return _fits(changed)

    if not fits(wishes):
        return ()
    for wish in reversed(list(wishes)):
        fewer = [other for other in wishes if other is not wish]
        if fits(fewer):
            wishes = fewer
    return (Reason(f"{listed([wish.name for wish in wishes])} together stand in the way", "give them up together"),)


def _wishes(problem: ProgramInput) -> Iterator[Wish]:
    """Everything about the question that could be given up."""
    options, blocks, small = problem.options, "stands in the way", "is too small"
    fits = "without it all of the load fits"
    for text in options.forbid:
        yield Wish(f"--forbid {text}", blocks, fits, _filter_gone("forbid", text))
    for text in options.pin:
        yield Wish(f"--pin {text}", blocks, fits, _filter_gone("pin", text))
    if options.mode != "auto":
        yield Wish(f"--mode {options.mode}", blocks, "--mode auto would do", _without(mode="auto"))
    if options.require:
        yield Wish(f"--require {', '.join(options.require)}", blocks, fits, _without(require=()))
    if options.survive:
        yield Wish(f"surviving the loss of any {options.survive}", blocks, "leave out --survive", _without(survive=""))
    if options.max_share_per_rack is not None:
        yield Wish("--max-rack-share", blocks, "raise it", _without(max_share_per_rack=None))
    if options.whole_classes:
        yield Wish("--whole-classes", blocks, "leave it out", _without(whole_classes=False))
    if options.max_kinds is not None:
        yield Wish(f"--kinds {options.max_kinds}", blocks, "raise it", _without(max_kinds=None))
    if options.budget_usd_per_hour is not None:
        name = f"the budget of {options.budget_usd_per_hour:g} $/h"
        yield Wish(name, small, "--budget {} would do", _without(budget_usd_per_hour=None))
    if options.max_power_watts is not None:
        name = f"the power limit of {options.max_power_watts:g} W"
        yield Wish(name, small, "--max-power {} would do", _without(max_power_watts=None))
    yield from _limits(problem.fleet)


def _limits(fleet: Fleet) -> Iterator[Wish]:
    """What the fleet has little of, besides GPUs."""
    blocks = "stands in the way"
    if fleet.max_usd_per_hour is not None:
        name, step = f"the fleet file's budget of {fleet.max_usd_per_hour:g} $/h", "raise it to {}"
        yield Wish(name, "is too small", step, lambda p: replace(p, fleet=replace(p.fleet, max_usd_per_hour=None)))
    if any(rack.power_limit_watts is not None for rack in fleet.racks):
        yield Wish("rack power", blocks, "more power for its racks would do", _powered)
    yield Wish("KV transfer over the network", blocks, "wider links would do, or colocated serving", _wide)
    taken = sum(len(node.gpus_in_use) for node in fleet.nodes)
    if taken:
        yield Wish(f"{taken} GPUs in use already", "stand in the way", "with all GPUs free it fits", _freed)


def _without(**changes: Any) -> Change:
    return lambda problem: replace(problem, options=replace(problem.options, **changes))


def _filter_gone(name: str, text: str) -> Change:
    def change(problem: ProgramInput) -> ProgramInput:
        rest = tuple(other for other in getattr(problem.options, name) if other != text)
        return _without(**{name: rest})(problem)

    return change


def _powered(problem: ProgramInput) -> ProgramInput:
    racks = tuple(replace(rack, power_limit_watts=None) for rack in problem.fleet.racks)
    return replace(problem, fleet=replace(problem.fleet, racks=racks))


def _freed(problem: ProgramInput) -> ProgramInput:
    return _with_nodes(problem, lambda node: replace(node, gpus_in_use=()))


def _with_nodes(problem: ProgramInput, change: Callable[[Node], Node]) -> ProgramInput:
    racks = tuple(replace(rack, nodes=tuple(change(node) for node in rack.nodes)) for rack in problem.fleet.racks)
    return replace(problem, fleet=replace(problem.fleet, racks=racks))


def _wide(problem: ProgramInput) -> ProgramInput:
    """NICs a thousand times as wide (a node without one gets one), and no limit above them."""
    wide = _with_nodes(problem, lambda node: replace(node, nic_bytes_per_s=1e3 * max(node.nic_bytes_per_s, 1e9)))
    racks = tuple(replace(rack, uplink_bytes_per_s=None) for rack in wide.fleet.racks)
    pods = tuple(replace(pod, uplink_bytes_per_s=None) for pod in wide.fleet.pods)
    return replace(wide, fleet=replace(wide.fleet, racks=racks, pods=pods, spine_bytes_per_s=None))


def more_nodes(problem: ProgramInput) -> tuple[Reason, ...]:
    """For every GPU type the fewest nodes, in racks like its own, that make all of the load fit, cheapest first."""
    found: list[tuple[float, Reason]] = []
    for gpu in problem.fleet.num_gpus:
        rack, node = next((rack, node) for rack in problem.fleet.racks for node in rack.nodes if node.gpu == gpu)
        number = _fewest(problem, rack, node)
        if number is not None:
            usd = number * node.num_gpus * price_of(node, problem.fleet)
            nodes = f"{number} more {gpu} {'node' if number == 1 else 'nodes'} of {node.num_gpus} GPUs"
            where = f"in {'a rack' if number <= len(rack.nodes) else 'racks'} like {rack.name}"
            found.append((usd, Reason(f"with {nodes} {where} (up to {usd:.4g} $/h more) all of the load would fit")))
    return tuple(reason for _, reason in sorted(found, key=lambda entry: entry[0]))


def _fewest(problem: ProgramInput, rack: Rack, node: Node) -> int | None:
    """The fewest nodes more that do; None if MOST_NODES do not."""

    def enough(number: int) -> bool:
        return _fits(replace(problem, fleet=_grown(problem.fleet, rack, node, number)))

    high = 1
    while not enough(high):
        high *= 2
        if high > MOST_NODES:
            return None
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _grown(fleet: Fleet, rack: Rack, like: Node, number: int) -> Fleet:
    """The fleet with so many nodes more, in new racks like one of its own with no more nodes than that has."""
    racks = []
    for start in range(0, number, len(rack.nodes)):
        name = f"{rack.name}+{1 + start // len(rack.nodes)}"
        nodes = tuple(
            replace(like, name=f"{like.name}+{k + 1}", rack=name, failure_domain="", gpus_in_use=())
            for k in range(start, min(number, start + len(rack.nodes)))
        )
        racks.append(replace(rack, name=name, nodes=nodes))
    return replace(fleet, racks=(*fleet.racks, *racks))


def _fits(problem: ProgramInput) -> bool:
    """Whether all of the load fits: the relaxation says no quickly, whole instances say yes."""
    columns = reduce_columns(problem)
    program = build_program(problem, columns)
    loose = elastic(program)
    for sigma in program.all_sigmas:
        loose.high[sigma] = 1.0
    relaxed = solve_arrays(loose.with_objective({program.sigma: 1.0}, maximise=True).relaxed())
    if not relaxed.has_solution or relaxed.objective < ALL:
        return False
    return _optimum(problem, ANY_PLAN) is not None


def _optimum(problem: ProgramInput, gap_percent: float = 0.0) -> Optimum | None:
    """The best plan, or one within a gap; None when there is none or none was found in CHECK_TIME_S."""
    options = replace(problem.options, tie_breaks=False, gap_percent=gap_percent, time_limit_s=CHECK_TIME_S)
    if options.objective == "goodput":
        options = replace(options, objective="cost")
    quick = replace(problem, options=options)
    try:
        return find_optimum(build_program(quick, reduce_columns(quick)))
    except OutOfTimeError:
        raise
    except SolverError:
        return None
