"""The slow second answer: every way to fill every node, and one linear program over pairs of instances for each."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.optimize import linprog

from splitplan.planner.columns.column import Column
from splitplan.planner.program.types import ProgramInput
from splitplan.planner.spec.fleet import Node

REACH = {"node": 0, "rack": 1, "fleet": 2}


@dataclass(frozen=True, order=True)
class Filling:
    """What runs: instances by node (of a mixed pipeline, the node of its first stage), and the GPUs taken of nodes."""

    counts: tuple[tuple[int, ...], ...]  # [node][column]
    gpus: tuple[int, ...]  # [node]


class BruteForce:
    """All fillings of a small fleet, priced and tested one by one. Nodes are one NVLink domain each."""

    def __init__(self, problem: ProgramInput) -> None:
        self.problem = problem
        self.columns = problem.columns
        self.nodes = problem.fleet.nodes
        self.share = problem.options.network_utilisation

    def fillings(self) -> list[Filling]:
        """Every combination of instances that fits GPUs, rack power, budget and power."""
        per_node = [list(self._node_fillings(node)) for node in self.nodes]
        mixed = list(self._mixed_fillings())
        found = (self._together(counts, placed) for counts in itertools.product(*per_node) for placed in mixed)
        fitting = [each for each in found if each is not None and self._within_limits(each)]
        return list(dict.fromkeys(fitting)) if len(mixed) > 1 else fitting

    def _node_fillings(self, node: Node) -> Iterator[tuple[int, ...]]:
        free = node.num_gpus - len(node.gpus_in_use)
        ranges = [range(free // column.num_gpus + 1) if column.gpu == node.gpu else range(1) for column in self.columns]
        for counts in itertools.product(*ranges):
            if sum(count * column.num_gpus for count, column in zip(counts, self.columns, strict=True)) <= free:
                yield counts

    def _mixed_fillings(self) -> Iterator[tuple[tuple[int, tuple[int, ...]], ...]]:
        """Every multiset of mixed pipelines: (column, node of each stage), within the GPUs there are."""
        ways = [
            (c, stages)
            for c, column in enumerate(self.columns)
            if column.stages and self.problem.options.survive != "node"
            for stages in itertools.product(range(len(self.nodes)), repeat=len(column.stages))
            if len({self.nodes[i].rack for i in stages}) == 1
            and all(self.nodes[i].gpu == stage.gpu for i, stage in zip(stages, column.stages, strict=True))
        ]
        free = [node.num_gpus - len(node.gpus_in_use) for node in self.nodes]
        yield from self._more_mixed(ways, free, ())

    def _more_mixed(
        self,
        ways: list[tuple[int, tuple[int, ...]]],
        free: list[int],
        placed: tuple[tuple[int, tuple[int, ...]], ...],
    ) -> Iterator[tuple[tuple[int, tuple[int, ...]], ...]]:
        yield placed
        for number, (c, stages) in enumerate(ways):
            left = list(free)
            for i in stages:
                left[i] -= self.columns[c].tensor_parallel
            if min(left) >= 0:
                yield from self._more_mixed(ways[number:], left, (*placed, (c, stages)))

    def _together(
        self, counts: tuple[tuple[int, ...], ...], mixed: tuple[tuple[int, tuple[int, ...]], ...]
    ) -> Filling | None:
        """Both kinds of instances on one fleet, None where they do not fit."""
        gpus = [sum(n * column.num_gpus for n, column in zip(row, self.columns, strict=True)) for row in counts]
        rows = [list(row) for row in counts]
        for c, stages in mixed:
            rows[stages[0]][c] += 1
            for i in stages:
                gpus[i] += self.columns[c].tensor_parallel
        free = (node.num_gpus - len(node.gpus_in_use) for node in self.nodes)
        if any(used > room for used, room in zip(gpus, free, strict=True)):
            return None
        return Filling(tuple(tuple(row) for row in rows), tuple(gpus))

    def _within_limits(self, filling: Filling) -> bool:
        options, fleet = self.problem.options, self.problem.fleet
        for rack in fleet.racks:
            if rack.power_limit_watts is None:
                continue
            inside = [i for i, node in enumerate(self.nodes) if node.rack == rack.name]
            drawn = sum(self.nodes[i].host_watts for i in inside)
            drawn += sum(filling.counts[i][c] * column.watts for i in inside for c, column in enumerate(self.columns))
            if drawn > rack.power_limit_watts + 1e-9 and any(any(filling.counts[i]) for i in inside):
                return False
        budget, power = options.budget_usd_per_hour, options.max_power_watts
        if options.price_kinds and not np.isfinite(self.dollars(filling)):
            return False
        if budget is not None and self.dollars(filling) > budget + 1e-9:
            return False
        return power is None or self.watts(filling) <= power + 1e-9

    def dollars(self, filling: Filling) -> float:
        """Rent; with mixed kinds of price the cheapest GPUs first; infinite beyond all caps."""
        total = 0.0
        for gpu, price in self.problem.fleet.usd_per_gpu_hour.items():
            used = sum(count for node, count in zip(self.nodes, filling.gpus, strict=True) if node.gpu == gpu)
            prices = [price] * used
            if self.problem.options.price_kinds:
                tiers = [tier for tier in self.problem.fleet.price_tiers if tier.gpu == gpu]
                prices = sorted(
                    t.usd_per_gpu_hour for t in tiers for _ in range(used if t.max_gpus is None else t.max_gpus)
                )
            total += sum(prices[:used]) if len(prices) >= used else np.inf
        return total

    def watts(self, filling: Filling) -> float:
        running = sum(
            count * column.watts
            for counts in filling.counts
            for count, column in zip(counts, self.columns, strict=True)
        )
        hosts = (n * node.host_watts / node.num_gpus for node, n in zip(self.nodes, filling.gpus, strict=True))
        return running + sum(hosts)

    def gpus(self, filling: Filling) -> int:
        return sum(filling.gpus)

    def states(self, filling: Filling) -> Iterator[Filling]:
        """The filling, and what is left of it after each failure it must survive."""
        yield filling
        survive = self.problem.options.survive
        if survive:
            names = [node.name if survive == "node" else node.rack for node in self.nodes]
            for gone in dict.fromkeys(names):
                left = (
                    (0,) * len(counts) if name == gone else counts
                    for name, counts in zip(names, filling.counts, strict=True)
                )
                yield replace(filling, counts=tuple(left))

    def rate_scale(self, filling: Filling) -> float:
        """The largest multiple of the asked rates served in every state (weighted: the worth of what is served)."""
        return min(self._rate_scale(state) for state in self.states(filling))

    def _rate_scale(self, filling: Filling) -> float:
        weights = self.problem.options.class_weights
        placed = [(i, c) for i, counts in enumerate(filling.counts) for c, count in enumerate(counts) if count]
        rows = _Rows()
        worth: list[tuple[int, float]] = []
        time: dict[tuple[int, int], list[tuple[int, float]]] = {place: [] for place in placed}
        for b, rate in enumerate(self.problem.rate_req_per_s):
            served: list[tuple[int, float]] = []
            for source in placed:
                if self.columns[source[1]].role == "colocated" and np.isfinite(self._work(source, b)):
                    variable = rows.add()
                    served.append((variable, 1.0))
                    time[source].append((variable, self._work(source, b)))
                for sink in placed:
                    if self._may_feed(source, sink, b):
                        variable = rows.add()
                        served.append((variable, 1.0))
                        time[source].append((variable, self._work(source, b)))
                        time[sink].append((variable, self._work(sink, b)))
                        sent = float(self.problem.kv_bytes_per_request[self.columns[source[1]].kv_dtype][b])
                        self._load(rows, self.nodes[source[0]], self.nodes[sink[0]], variable, sent / 1e9)
            if weights is None:
                rows.equal([*served, (0, -float(rate))], 0.0)
            else:
                rows.at_most(served, float(rate))
                worth += [(variable, weights[b]) for variable, _ in served]
        if weights is not None:
            rows.equal([*worth, (0, -1.0)], 0.0)
        for place, terms in time.items():
            rows.at_most(terms, filling.counts[place[0]][place[1]])
        return rows.most_of_first()

    def _work(self, place: tuple[int, int], b: int) -> float:
        return float(self.columns[place[1]].work_s_per_request[b])

    def _may_feed(self, source: tuple[int, int], sink: tuple[int, int], b: int) -> bool:
        prefill, decode = self.columns[source[1]], self.columns[sink[1]]
        if prefill.role != "prefill" or decode.role != "decode" or not self.problem.pairs_allowed(prefill, decode):
            return False
        start, end = self.nodes[source[0]], self.nodes[sink[0]]
        distance = 0 if start is end else 1 if start.rack == end.rack else 2
        reach = min(REACH[prefill.transfer_reach], REACH[decode.transfer_reach])
        return distance <= reach and bool(np.isfinite(self._work(source, b)) and np.isfinite(self._work(sink, b)))

    def _load(self, rows: _Rows, start: Node, end: Node, variable: int, sent_gb: float) -> None:
        if start is end:
            return
        racks = {rack.name: rack for rack in self.problem.fleet.racks}
        rows.use(("out", start.name), start.nic_bytes_per_s * self.share / 1e9, variable, sent_gb)
        rows.use(("in", end.name), end.nic_bytes_per_s * self.share / 1e9, variable, sent_gb)
        if start.rack == end.rack:
            return
        for name, rack in (("up", racks[start.rack]), ("down", racks[end.rack])):
            if rack.uplink_bytes_per_s is not None:
                rows.use((name, rack.name), rack.uplink_bytes_per_s * self.share / 1e9, variable, sent_gb)
        if self.problem.fleet.spine_bytes_per_s is not None:
            rows.use(("spine", ""), self.problem.fleet.spine_bytes_per_s * self.share / 1e9, variable, sent_gb)

    def enough_time(self, filling: Filling) -> bool:
        """A quick necessary test: each stage alone has the time for the load at its best."""
        for roles in (("prefill", "colocated"), ("decode", "colocated")):
            scale = 0.0
            for b, rate in enumerate(self.problem.rate_req_per_s):
                best = [
                    count / self.columns[c].work_s_per_request[b]
                    for counts in filling.counts
                    for c, count in enumerate(counts)
                    if count and self.columns[c].role in roles and np.isfinite(self.columns[c].work_s_per_request[b])
                ]
                if rate > 0 and not best:
                    return False
                scale += rate / sum(best) if rate > 0 else 0.0
            if scale > len(self.problem.rate_req_per_s) + 1e-9:
                return False
        return True

    def least(self, key: str) -> tuple[float, int] | None:
        """The least dollars or watts, and the fewest GPUs at that: the first filling in order that serves the load."""
        value = self.dollars if key == "cost" else self.watts
        order = sorted((round(value(filling), 6), self.gpus(filling), filling) for filling in self.fillings())
        for amount, gpus, filling in order:
            if self.enough_time(filling) and self.rate_scale(filling) >= 1.0 - 1e-7:
                return amount, gpus
        return None

    def most(self) -> float:
        """The largest rate scale of any filling."""
        return max(self.rate_scale(filling) for filling in self.fillings())


class _Rows:
    """A linear program written row by row; variable 0 is the rate scale."""

    def __init__(self) -> None:
        self.num_variables = 1
        self.equalities: list[tuple[list[tuple[int, float]], float]] = []
        self.bounds: list[tuple[list[tuple[int, float]], float]] = []
        self.links: dict[tuple[str, str], tuple[list[tuple[int, float]], float]] = {}

    def add(self) -> int:
        self.num_variables += 1
        return self.num_variables - 1

    def equal(self, terms: list[tuple[int, float]], rhs: float) -> None:
        self.equalities.append((terms, rhs))

    def at_most(self, terms: list[tuple[int, float]], rhs: float) -> None:
        self.bounds.append((terms, rhs))

    def use(self, link: tuple[str, str], limit: float, variable: int, amount: float) -> None:
        self.links.setdefault(link, ([], limit))[0].append((variable, amount))

    def most_of_first(self) -> float:
        objective = np.zeros(self.num_variables)
        objective[0] = -1.0
        upper, upper_rhs = self._matrix([*self.bounds, *self.links.values()])
        equal, equal_rhs = self._matrix(self.equalities)
        answer: Any = linprog(
            objective, upper, upper_rhs, equal, equal_rhs, bounds=[(0, 1e4)] + [(0, None)] * (self.num_variables - 1)
        )
        assert answer.status == 0, answer.message
        return float(answer.x[0])

    def _matrix(self, rows: Sequence[tuple[list[tuple[int, float]], float]]) -> tuple[Any, Any]:
        if not rows:
            return None, None
        matrix = np.zeros((len(rows), self.num_variables))
        for number, (terms, _) in enumerate(rows):
            for variable, value in terms:
                matrix[number, variable] += value
        return matrix, np.array([rhs for _, rhs in rows])


def allowed_by_dtype(prefill: Column, decode: Column) -> bool:
    return prefill.kv_dtype == decode.kv_dtype
