"""Failures to survive, as cuts in the instances alone.

    z(n, a) = min Σ_b short[b]        rates and flows of instances n on the links; short[b] of the asked a[b] stays

z is convex in n and a, so its value and slopes at one point bound it everywhere:

    survive[d]  z* + Σ_{c,ℓ} slope[c,ℓ] · (n[c,ℓ] · [ℓ ∉ d] − n*[c,ℓ]) + Σ_b slope[b] · (rate_b · σ_b − a*[b]) ≤ 0

A filling n* that falls short with one domain gone gives a cut that holds with *any* domain gone and at any hour; it is
added for all of them at once. The first cuts come from the fleet without links and places, where z is a matter of
milliseconds and its slopes are the same for all hosts of a kind; those that links make necessary come after.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from splitplan.planner.program import constraints, groups, nics
from splitplan.planner.program.build import (
    Program,
    define_instances,
    define_service,
    failure_domains,
    link_tree,
    service_states,
)
from splitplan.planner.program.linear import LinearModel, Terms
from splitplan.planner.program.pairing import SMALLEST_RATE, pair_flows
from splitplan.planner.program.solver import RepeatedBounds, Sensitive
from splitplan.planner.program.topology import Granularity, Location, fleet_locations
from splitplan.planner.program.types import FloatArray, Placed, ServedState

SHORT = 5e-7
"""Of the asked rate: what counts as unserved."""
SMALLEST_SLOPE = 1e-9
Counts = dict[tuple[int, int], float]  # (column, place) -> instances


class Shortage:
    """z(n, a): what given instances leave unserved, and its slopes."""

    def __init__(self, program: Program, granularity: Granularity) -> None:
        problem = program.problem
        busiest = np.max([rate for _, rate in problem.rates], axis=0)
        options = replace(problem.options, survive="", class_weights=None, whole_classes=False)
        bare = replace(problem, options=options, hours=(), rate_req_per_s=busiest)
        locations = fleet_locations(problem.fleet, granularity)
        tree, families = link_tree(locations), program.families
        self.program = Program(bare, program.columns, granularity, locations, families, tree, LinearModel(), {}, [], [])
        define_instances(self.program, None, frozenset())
        for hour, gone, rate, alive in service_states(self.program, failures=False):
            define_service(self.program, hour, gone, rate, alive)
        groups.define_proportions(self.program, self.program.normal)
        constraints.define_instance_time(self.program, self.program.normal)
        constraints.define_kv_conservation(self.program, self.program.normal)
        constraints.define_bandwidth(self.program, self.program.normal)
        nics.define_nics_in_use(self.program, self.program.normal)
        self.asked = self._define_demand()
        self.keys = tuple(self.program.n)
        variables = [*self.program.n.values(), *self.asked.values()]
        self._solve = RepeatedBounds(self.program.model, variables)
        self._place_of = {node.name: place for place, location in enumerate(locations) for node in location.nodes}

    def _define_demand(self) -> dict[int, int]:
        """served[b]: Σ x + short[b] = asked[b]."""
        model, asked = self.program.model, dict[int, int]()
        for b, name in enumerate(self.program.problem.class_names):
            if self.program.normal.rate_req_per_s[b] <= 0:
                continue
            terms: Terms = [
                (variable, 1.0)
                for (cls, index, _), variable in self.program.normal.x.items()
                if cls == b and self.program.columns[index].role != "decode"
            ]
            asked[b] = model.add_variable(f"asked[{name}]")
            short = model.add_variable(f"short[{name}]")
            model.objective[short] = 1.0
            model.add_constraint(f"served[{name}]", [*terms, (short, 1.0), (asked[b], -1.0)], "==", 0.0)
        return asked

    def place(self, location: Location) -> int:
        """The index here of a location of the program."""
        return self._place_of[location.nodes[0].name]

    def at(self, counts: Counts, asked: FloatArray) -> Sensitive:
        """z for instances by (column, place here) and [classes] req/s."""
        point = [counts.get(key, 0.0) for key in self.keys] + [float(asked[b]) for b in self.asked]
        return self._solve.solve(np.array(point))


@dataclass(frozen=True, slots=True)
class State:
    """One load with one domain gone."""

    hour: str
    rate_req_per_s: FloatArray
    domain: str
    gone: frozenset[int]


class Failures:
    """The failures that a program must survive, and the cuts that make it."""

    def __init__(self, program: Program) -> None:
        self._program = program
        domains = failure_domains(program.problem, program.locations)
        self.states = [
            State(hour, rate, name, gone) for name, gone in domains.items() for hour, rate in program.problem.rates
        ]
        self._shortages = (Shortage(program, "fleet"), Shortage(program, program.granularity))
        self._scaled = program.problem.options.objective == "goodput"

    def cut_off(self, values: list[float]) -> int:
        """Add cuts that the instances (and rate scales) of `values` break; how many failures were found to fall short.

        The fleet without links is asked first; the real links only where it finds nothing.
        """
        for shortage in self._shortages:
            known: set[tuple[float, ...]] = set()
            found = 0
            for state in self.states:
                counts, asked = self._counts(shortage, values, state), self._asked(values, state)
                point = (*(counts.get(key, 0.0) for key in shortage.keys), *asked)
                if point in known:
                    continue
                known.add(point)
                answer = shortage.at(counts, asked)
                if answer.objective > SHORT * float(asked.sum()):
                    self._add_cuts(shortage, answer)
                    found += 1
            if found:
                return found
        return 0

    def _counts(self, shortage: Shortage, values: list[float], state: State) -> Counts:
        counts: Counts = {}
        for (index, place), variable in self._program.n.items():
            if place not in state.gone and values[variable] > 1e-9:
                key = (index, shortage.place(self._program.locations[place]))
                counts[key] = counts.get(key, 0.0) + round(values[variable], 9)
        return counts

    def _asked(self, values: list[float], state: State) -> FloatArray:
        scale = [values[sigma] for sigma in self._program.normal.sigmas] if self._scaled else 1.0
        return np.asarray(state.rate_req_per_s * np.array(scale), dtype=np.float64)

    def _add_cuts(self, shortage: Shortage, answer: Sensitive) -> None:
        """One cut for every failure at every hour, around one sum that they share."""
        program, model = self._program, self._program.model
        slope_asked = {b: answer.slopes[variable] for b, variable in shortage.asked.items()}
        scale = sum(slope * float(program.problem.rates[0][1][b]) for b, slope in slope_asked.items())
        slope_of: dict[tuple[int, int], float] = {}
        for key in program.n:
            mapped = (key[0], shortage.place(program.locations[key[1]]))
            slope = answer.slopes[shortage.program.n[mapped]] / scale
            if slope < -SMALLEST_SLOPE:
                slope_of[key] = slope
        constant = answer.objective - sum(
            answer.slopes[variable] * answer.values[variable]
            for variable in (*shortage.program.n.values(), *shortage.asked.values())
        )
        total = model.add_variable("survive_total", -np.inf)
        terms = [(program.n[key], slope) for key, slope in slope_of.items()]
        model.add_constraint("survive_total", [*terms, (total, -1.0)], "==", 0.0)
        for state in self.states:
            row: Terms = [(total, 1.0)]
            row += [(program.n[key], -slope) for key, slope in slope_of.items() if key[1] in state.gone]
            asked = [(b, slope / scale * float(state.rate_req_per_s[b])) for b, slope in slope_asked.items()]
            rhs = -constant / scale
            if self._scaled:
                row += [(program.normal.sigmas[b], amount) for b, amount in asked]
            else:
                rhs -= sum(amount for _, amount in asked)
            model.add_constraint(f"survive[{state.domain}{state.hour and f' at {state.hour}'}]", row, "<=", rhs)

    def certificates(self, values: list[float]) -> tuple[ServedState, ...]:
        """Who serves what in each failure; domains that differ only in names share one."""
        shortage, program = self._shortages[1], self._program
        served: dict[object, tuple[State, list[str]]] = {}
        for state in self.states:
            if any(round(values[program.n[key]]) for key in program.n if key[1] in state.gone):
                key = (state.hour, domain_key(program, values, state.gone))
                served.setdefault(key, (state, []))[1].append(state.domain)
        found = []
        for state, names in served.values():
            counts = {key: float(round(count)) for key, count in self._counts(shortage, values, state).items()}
            answer = shortage.at(counts, self._asked(values, state))
            placed = _placed_in(shortage.program, counts, answer.values)
            flows = pair_flows(shortage.program, answer.values, 1.0)
            found.append(ServedState(state.hour, state.domain, tuple(names), placed, flows))
        return tuple(found)


def domain_key(program: Program, values: list[float], gone: frozenset[int]) -> object:
    """Equal for domains whose loss is the same but for names: alike places of alike racks, with alike instances."""
    here: dict[int, list[tuple[int, int]]] = {}
    for (index, place), variable in program.n.items():
        if round(values[variable]):
            here.setdefault(place, []).append((index, round(values[variable])))
    racks: dict[str, list[int]] = {}
    for place, location in enumerate(program.locations):
        racks.setdefault(location.rack, []).append(place)
    uplinks = {rack.name: rack.uplink_bytes_per_s for rack in program.problem.fleet.racks}

    def place_key(place: int) -> tuple[object, ...]:
        location = program.locations[place]
        return (location.gpu, location.gpu_link, location.nic_bytes_per_s, location.one_host, *here.get(place, ()))

    parts = []
    for rack, places in racks.items():
        lost = sorted(repr(place_key(place)) for place in places if place in gone)
        if lost:
            whole = sorted(repr(place_key(place)) for place in places)
            parts.append(repr((program.locations[places[0]].pod, uplinks[rack], whole, lost)))
    return tuple(sorted(parts))


def _placed_in(program: Program, counts: Counts, values: list[float]) -> tuple[Placed, ...]:
    """The instances of one state with the rates they serve."""
    rates: dict[tuple[int, int], list[float]] = {}
    for (b, index, place), variable in program.normal.x.items():
        row = rates.setdefault((index, place), [0.0] * len(program.problem.class_names))
        row[b] = values[variable] if values[variable] > SMALLEST_RATE else 0.0
    placed = []
    for (index, place), count in sorted(counts.items(), key=lambda item: (item[0][1], item[0][0])):
        column, location = program.columns[index], program.locations[place]
        row = rates.get((index, place), [0.0] * len(program.problem.class_names))
        work = sum(rate * float(column.work_s_per_request[b]) for b, rate in enumerate(row) if rate > 0)
        placed.append(
            Placed(column.name, column.role, location.name, location.rack, int(count), tuple(row), work / count)
        )
    return tuple(placed)
