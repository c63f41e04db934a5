"""From flows on the tree of links to flows between pairs of placed columns."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from splitplan.planner.columns.column import Reach
from splitplan.planner.program.types import Flow

if TYPE_CHECKING:
    from splitplan.planner.program.build import Program, Service, Vertex

SMALLEST_RATE = 1e-9
Place = tuple[int, int]  # (column, location)
Ends = list[tuple[Place, float]]


class _Ends:
    """What a set of placed columns still has to send (or to receive) in one class and kind of flow."""

    def __init__(self, rates: Iterable[tuple[Place, float]]) -> None:
        self.open = [(key, rate) for key, rate in rates if rate > SMALLEST_RATE]

    def take(self, amount: float) -> Ends:
        """Remove `amount` from the front, first come first served."""
        taken = []
        while self.open and amount > SMALLEST_RATE:
            key, rate = self.open[0]
            part = min(rate, amount)
            taken.append((key, part))
            amount -= part
            if rate - part > SMALLEST_RATE:
                self.open[0] = (key, rate - part)
            else:
                self.open.pop(0)
        return taken


def pair_flows(program: Program, values: list[float], scale: float, service: Service | None = None) -> tuple[Flow, ...]:
    """Flows of a service (the normal one) divided by `scale`: nearest first, in the order of columns and locations.

    At every vertex what stays there is paired among the senders and receivers below it that have not been paired yet.
    Several kinds of flow can share a sender; its rate is split among kinds as the program decided.
    """
    service = service or program.normal
    flows: list[Flow] = []
    for b in range(len(program.problem.class_names)):
        sent = _split_ends(program, service, values, b, prefill=True)
        received = _split_ends(program, service, values, b, prefill=False)
        for number in range(len(program.families.kinds)):
            stays = [(v, values[i]) for (cls, k, v), i in service.stay.items() if (cls, k) == (b, number)]
            flows += _pair_kind(program, b, number, dict(stays), sent[number], received[number], scale)
    return tuple(flows)


def _split_ends(
    program: Program, service: Service, values: list[float], b: int, *, prefill: bool
) -> list[dict[Vertex, Ends]]:
    """For every kind of flow and location: (column, location) and the rate it contributes to that kind."""
    kinds = program.families.kinds
    leaving = service.up if prefill else service.down
    result: list[dict[Vertex, Ends]] = [{} for _ in kinds]
    for place, location in enumerate(program.locations):
        vertex = ("location", location.name)
        for members in program.families.prefill if prefill else program.families.decode:
            ends = _Ends(
                ((index, place), values[service.x[b, index, place]])
                for index in members
                if (b, index, place) in service.x
            )
            for number, kind in enumerate(kinds):
                if (kind.prefill if prefill else kind.decode) != members:
                    continue
                key = (b, number, vertex)
                amount = sum(values[table[key]] for table in (service.stay, leaving) if key in table)
                result[number].setdefault(vertex, []).extend(ends.take(amount))
    return result


def _pair_kind(
    program: Program,
    b: int,
    number: int,
    stays: dict[Vertex, float],
    sent: dict[Vertex, Ends],
    received: dict[Vertex, Ends],
    scale: float,
) -> list[Flow]:
    """Pair one class and kind, from the locations up to the spine."""
    flows: list[Flow] = []
    senders = {vertex: list(ends) for vertex, ends in sent.items()}
    receivers = {vertex: list(ends) for vertex, ends in received.items()}
    for _ in range(4):  # location, rack, pod, spine
        above_senders: dict[Vertex, Ends] = {}
        above_receivers: dict[Vertex, Ends] = {}
        for vertex in dict.fromkeys([*senders, *receivers]):
            out, into = _Ends(senders.get(vertex, [])), _Ends(receivers.get(vertex, []))
            amount = stays.get(vertex, 0.0)
            for source, sink, rate in _match(out.take(amount), into.take(amount)):
                flows.append(_flow(program, b, source, sink, rate / scale))
            parent = program.parents.get(vertex, vertex)
            above_senders.setdefault(parent, []).extend(out.open)
            above_receivers.setdefault(parent, []).extend(into.open)
        senders, receivers = above_senders, above_receivers
    return flows


def _match(out: Ends, into: Ends) -> list[tuple[Place, Place, float]]:
    """North-west corner: pair two lists of equal total."""
    pairs, ends = [], _Ends(into)
    for source, rate in out:
        pairs += [(source, sink, part) for sink, part in ends.take(rate)]
    return pairs


def _flow(program: Program, b: int, source: Place, sink: Place, rate: float) -> Flow:
    (prefill, start), (decode, end) = source, sink
    origin, goal = program.locations[start], program.locations[end]
    reach: Reach = "fleet"
    if origin.rack == goal.rack:
        reach = "node" if start == end and origin.one_host else "rack"
    return Flow(b, program.columns[prefill].name, origin.name, program.columns[decode].name, goal.name, rate, reach)
