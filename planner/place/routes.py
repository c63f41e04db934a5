"""Routes between assigned instances, nearest first, and the load they put on every link of the fleet graph."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

import networkx as nx

from splitplan.planner.plan import Route
from splitplan.planner.program.topology import fleet_graph
from splitplan.planner.program.types import Flow, ProgramInput, ProgramSolution

if TYPE_CHECKING:
    from splitplan.planner.place.assign import Seat

Edge = tuple[tuple[str, str], tuple[str, str]]
Path = Literal["same-node", "same-rack", "cross-rack"]
DISTANCE: dict[Path, int] = {"same-node": 0, "same-rack": 1, "cross-rack": 2}
SMALLEST_SHARE = 1e-9


def route_instances(
    problem: ProgramInput, solution: ProgramSolution, seats: Sequence[Seat]
) -> tuple[tuple[Route, ...], dict[Edge, float]]:
    """Split the flows between placed columns among their instances; bytes/s per edge of the fleet graph."""
    places: dict[tuple[str, str], list[Seat]] = {}
    for seat in seats:
        places.setdefault((seat.column.name, seat.location.name), []).append(seat)
    rates: dict[tuple[str, str], float] = {}
    sent: dict[tuple[str, str], float] = {}
    for (start, end), flows in _by_pair(solution.flows).items():
        rate = sum(flow.rate_req_per_s for flow in flows)
        num_bytes = sum(flow.rate_req_per_s * _kv_bytes(problem, places[start][0], flow) for flow in flows)
        for source, sink, part in _match(places[start], places[end], rate):
            pair = (source.name, sink.name)
            rates[pair] = rates.get(pair, 0.0) + part
            sent[pair] = sent.get(pair, 0.0) + part * num_bytes / rate
    by_name = {seat.name: seat for seat in seats}
    order = {seat.name: number for number, seat in enumerate(seats)}
    total = sum(rates.values())
    routes = tuple(
        Route(
            prefill=prefill,
            decode=decode,
            share=round(min(1.0, rate / total), 12),
            path=path_between(by_name[prefill], by_name[decode]),
        )
        for (prefill, decode), rate in sorted(rates.items(), key=lambda item: (order[item[0][0]], order[item[0][1]]))
        if rate / total > SMALLEST_SHARE
    )
    return routes, link_loads(problem, by_name, sent)


def _by_pair(flows: Iterable[Flow]) -> dict[tuple[tuple[str, str], tuple[str, str]], list[Flow]]:
    pairs: dict[tuple[tuple[str, str], tuple[str, str]], list[Flow]] = {}
    for flow in flows:
        key = ((flow.prefill, flow.prefill_location), (flow.decode, flow.decode_location))
        pairs.setdefault(key, []).append(flow)
    return pairs


def _kv_bytes(problem: ProgramInput, seat: Seat, flow: Flow) -> float:
    return float(problem.kv_bytes_per_request[seat.column.kv_dtype][flow.class_index])


def path_between(source: Seat, sink: Seat) -> Path:
    """How far KV travels between two instances; one NVLink domain that spans nodes counts as one node."""
    if source.location.name == sink.location.name and source.location.one_host:
        return "same-node"
    if source.nodes == sink.nodes and len(source.nodes) == 1:
        return "same-node"
    return "same-rack" if source.location.rack == sink.location.rack else "cross-rack"


def _match(sources: Sequence[Seat], sinks: Sequence[Seat], rate: float) -> list[tuple[Seat, Seat, float]]:
    """Every instance of a placed column sends, or receives, an equal part; the nearest pairs are filled first."""
    supply = [rate / len(sources)] * len(sources)
    demand = [rate / len(sinks)] * len(sinks)
    smallest = rate * 1e-12
    pairs = sorted(
        (DISTANCE[path_between(source, sink)], i, j) for i, source in enumerate(sources) for j, sink in enumerate(sinks)
    )
    matched = []
    for _, i, j in pairs:
        part = min(supply[i], demand[j])
        if part > smallest:
            supply[i] -= part
            demand[j] -= part
            matched.append((sources[i], sinks[j], part))
    return matched


def link_loads(
    problem: ProgramInput, seats: Mapping[str, Seat], sent_bytes_per_s: Mapping[tuple[str, str], float]
) -> dict[Edge, float]:
    """KV bytes/s on every edge of the fleet graph; an instance on several nodes sends an equal part from each."""
    graph = fleet_graph(problem.fleet)
    paths: dict[tuple[str, str], list[tuple[str, str]]] = {}
    loads: dict[Edge, float] = {}
    for (prefill, decode), rate in sent_bytes_per_s.items():
        source, sink = seats[prefill], seats[decode]
        if path_between(source, sink) == "same-node":
            continue
        part = rate / (len(source.nodes) * len(sink.nodes))
        for start in source.nodes:
            for end in sink.nodes:
                if start == end:
                    continue
                if (start, end) not in paths:
                    paths[start, end] = nx.shortest_path(graph, ("node", start), ("node", end))
                way = paths[start, end]
                for edge in pairwise(way):
                    loads[edge] = loads.get(edge, 0.0) + part
    return loads


def overloaded_links(problem: ProgramInput, loads: Mapping[Edge, float]) -> list[tuple[Edge, float, float]]:
    """Edges of the fleet graph that carry more than their safe share: (edge, bytes/s, safe bytes/s)."""
    graph = fleet_graph(problem.fleet)
    share = problem.options.network_utilisation
    found = []
    for (start, end), load in loads.items():
        limit = graph.edges[start, end]["bytes_per_s"]
        if limit is not None and load > limit * share * (1 + 1e-6) + 1e-3:
            found.append(((start, end), load, limit * share))
    return found
