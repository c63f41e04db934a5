"""Rack patterns: what one rack of a class can hold and do, priced one class at a time.

pattern of a class   integer instances n within the rack's GPUs and power, and rates on them within its NICs and
                     uplink: what it serves by itself, what KV it sends up and what it takes in
pricing              the pattern with the least  amount(n) − Σ_b π_b · served_b − Σ_{b,k} (μ_up · up + μ_down · down)
                     at the master's prices π, μ: one small integer program per class, the program of `build.py` for a
                     fleet of one open-ended rack
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from splitplan.catalogs.errors import SolverError
from splitplan.planner.columns.column import Column
from splitplan.planner.program.build import Program, Vertex, build_program
from splitplan.planner.program.money import rent_terms
from splitplan.planner.program.objective import cost_objective, power_objective
from splitplan.planner.program.solver import RepeatedSolve, SolveLimits
from splitplan.planner.program.topology import price_of
from splitplan.planner.program.types import FloatArray, ProgramInput
from splitplan.planner.spec.fleet import Fleet, Rack

GROUP_LIMIT = 20
"""Pods are merged into at most this many groups: with one group per pod the master grows past what it can solve."""
PRICING_TIME_S = 2.0
PRICING_GAP = 5e-4
Channel = tuple[int, int]  # (class, kind of flow)


@dataclass(frozen=True, slots=True)
class RackClass:
    """Identical racks in one group of pods."""

    shape: int  # index of the shape that its racks share
    group: int  # index of the pod group
    racks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Pattern:
    """What a rack of one shape holds and does. Rates in req/s."""

    shape: int
    counts: tuple[tuple[int, int, int], ...]  # (column, location within the rack, instances)
    amount: float  # dollars per hour, or watts
    dollars: float  # rent per hour
    served: tuple[float, ...]  # by class, without leaving the rack
    up: tuple[tuple[Channel, float], ...]
    down: tuple[tuple[Channel, float], ...]


@dataclass(frozen=True, slots=True)
class RackClasses:
    """The fleet as classes of racks. `group_pods[g]`: pods in a group (0: racks that hang on the spine itself)."""

    shapes: tuple[Rack, ...]
    classes: tuple[RackClass, ...]
    group_pods: tuple[int, ...]
    group_bytes_per_s: tuple[float | None, ...]  # uplink of one pod


def rack_classes(fleet: Fleet) -> RackClasses:
    """Group racks by what they hold, and pods by which racks they hold."""
    shapes: dict[object, int] = {}
    representatives: list[Rack] = []
    shape_of: dict[str, int] = {}
    for rack in fleet.racks:
        key = _shape_key(rack, fleet)
        if key not in shapes:
            shapes[key] = len(shapes)
            representatives.append(rack)
        shape_of[rack.name] = shapes[key]
    group_of, pods, limits = _pod_groups(fleet, shape_of, len(shapes))
    members: dict[tuple[int, int], list[str]] = {}
    for rack in fleet.racks:
        members.setdefault((shape_of[rack.name], group_of[rack.pod]), []).append(rack.name)
    classes = tuple(RackClass(shape, group, tuple(names)) for (shape, group), names in members.items())
    return RackClasses(tuple(representatives), classes, pods, limits)


def _shape_key(rack: Rack, fleet: Fleet) -> object:
    nodes = tuple(
        (
            node.gpu,
            node.gpu_link,
            node.num_gpus,
            node.nvlink_domain_gpus,
            node.gpus_in_use,
            node.nic_bytes_per_s,
            node.host_watts,
            price_of(node, fleet),
        )
        for node in rack.nodes
    )
    return nodes, rack.power_limit_watts, rack.uplink_bytes_per_s


def _pod_groups(
    fleet: Fleet, shape_of: Mapping[str, int], num_shapes: int
) -> tuple[dict[str, int], tuple[int, ...], tuple[float | None, ...]]:
    """Pods of equal make-up and uplink together; the most alike merged until GROUP_LIMIT groups are left."""
    limit_of = {pod.name: pod.uplink_bytes_per_s for pod in fleet.pods}
    make_up: dict[str, FloatArray] = {}
    for rack in fleet.racks:
        make_up.setdefault(rack.pod, np.zeros(num_shapes))[shape_of[rack.name]] += 1
    groups: dict[tuple[object, ...], list[str]] = {}
    for pod, held in make_up.items():
        groups.setdefault((bool(pod), limit_of.get(pod), *held), []).append(pod)
    merged = list(groups.values())
    while len(merged) > GROUP_LIMIT:
        merged = _merge_closest(merged, make_up, limit_of)
    group_of = {pod: number for number, pods in enumerate(merged) for pod in pods}
    counts = tuple(0 if pods == [""] else len(pods) for pods in merged)
    return group_of, counts, tuple(_mean_limit([limit_of.get(pod) for pod in pods]) for pods in merged)


def _merge_closest(
    groups: list[list[str]], make_up: Mapping[str, FloatArray], limit_of: Mapping[str, float | None]
) -> list[list[str]]:
    """Join the smallest group to the one most like it with the same kind of uplink (merging only relaxes)."""
    order = sorted(range(len(groups)), key=lambda number: (len(groups[number]), number))
    small = order[0]
    means = [np.mean([make_up[pod] for pod in pods], axis=0) for pods in groups]

    def distance(number: int) -> tuple[bool, float, int]:
        alike = (limit_of.get(groups[number][0]) is None) == (limit_of.get(groups[small][0]) is None)
        return (not alike, float(np.abs(means[number] - means[small]).sum()), number)

    target = min(order[1:], key=distance)
    groups[target] = groups[target] + groups[small]
    return [pods for number, pods in enumerate(groups) if number != small]


def _mean_limit(limits: list[float | None]) -> float | None:
    known = [limit for limit in limits if limit is not None]
    return sum(known) / len(known) if len(known) == len(limits) else None


class Pricing:
    """The pricing problem of one rack shape."""

    def __init__(self, problem: ProgramInput, columns: tuple[Column, ...], shape: int, rack: Rack) -> None:
        alone = replace(rack, pod="")
        fleet = replace(problem.fleet, racks=(alone,), pods=(), spine_bytes_per_s=None, max_usd_per_hour=None)
        options = replace(problem.options, budget_usd_per_hour=None, max_power_watts=None, require=())
        self.program = build_program(replace(problem, fleet=fleet, options=options), columns, "rack", open_ended=True)
        self.shape = shape
        make = power_objective if options.objective == "power" else cost_objective
        self.amounts = make(self.program, tie_break=False).amounts
        self.rents = dict(rent_terms(self.program))
        self._leaf: Vertex = ("rack", rack.name)
        self._solve = RepeatedSolve(self.program.model, SolveLimits(PRICING_TIME_S, PRICING_GAP, 1e-7))

    def best(
        self, served: FloatArray, up: Mapping[Channel, float], down: Mapping[Channel, float], budget: float
    ) -> tuple[Pattern, float]:
        """The best pattern at prices per req/s and per dollar of budget, and a lower bound on its reduced amount."""
        service, cost = self.program.normal, np.zeros(len(self.program.model.low))
        for variable, amount in self.amounts.items():
            cost[variable] += amount
        for variable, amount in self.rents.items():
            cost[variable] += amount * budget
        for (b, index, _), variable in service.x.items():
            if self.program.columns[index].role == "colocated":
                cost[variable] -= served[b]
        for (b, _, _), variable in service.stay.items():
            cost[variable] -= served[b]
        for prices, flows in ((up, service.up), (down, service.down)):
            for (b, kind, vertex), variable in flows.items():
                if vertex == self._leaf:
                    cost[variable] -= prices.get((b, kind), 0.0)
        answer = self._solve.solve(cost, maximise=False)
        if not answer.has_solution:  # an empty rack is always a solution
            raise SolverError(f"the solver gave no rack pattern for racks like {self._leaf[1]}")
        return self._pattern(answer.values), min(answer.bound, answer.objective)

    def _pattern(self, values: list[float]) -> Pattern:
        program, service = self.program, self.program.normal
        served = [0.0] * len(program.problem.class_names)
        for (b, index, _), variable in service.x.items():
            if program.columns[index].role == "colocated":
                served[b] += values[variable]
        for (b, _, _), variable in service.stay.items():
            served[b] += values[variable]
        counts = tuple(
            (index, place, round(values[variable]))
            for (index, place), variable in program.n.items()
            if round(values[variable])
        )
        amount = sum(amount * round(values[v]) for v, amount in self.amounts.items())
        return Pattern(
            self.shape,
            counts,
            amount,
            sum(rent * round(values[v]) for v, rent in self.rents.items()),
            tuple(round(rate, 9) for rate in served),
            self._at_leaf(service.up, values),
            self._at_leaf(service.down, values),
        )

    def _at_leaf(
        self, flows: Mapping[tuple[int, int, Vertex], int], values: list[float]
    ) -> tuple[tuple[Channel, float], ...]:
        return tuple(
            ((b, kind), round(values[variable], 9))
            for (b, kind, vertex), variable in flows.items()
            if vertex == self._leaf and values[variable] > 1e-9
        )


def channels(program: Program) -> tuple[Channel, ...]:
    """Every (class, kind) of flow that may leave a rack."""
    found = dict.fromkeys(
        (b, kind) for b, kind, vertex in (*program.normal.up, *program.normal.down) if vertex[0] == "rack"
    )
    return tuple(found)
