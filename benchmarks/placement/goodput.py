"""The most requests per second that each search's placement serves on a whole fleet, by the columns' arithmetic."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from benchmarks.placement.baselines import distserve_high, distserve_low, load, role_columns
from splitplan.planner.columns.column import Column
from splitplan.planner.program.solve import solve_program
from splitplan.planner.program.types import Infeasible, ProgramInput


@dataclass(frozen=True, slots=True)
class Served:
    """A placement that fills the fleet as far as its search can."""

    method: str
    req_per_s: float
    usd_per_hour: float
    placement: str


def all_goodputs(problem: ProgramInput) -> list[Served]:
    """DistServe's two searches on each type of the fleet by itself, added up; the best of Splitwise's pairs of machine
    types; this program."""
    nodes = {node.gpu: node.num_gpus for node in problem.fleet.nodes}
    found = [
        _together([_best(_distserve_high(problem, gpu)) for gpu in nodes]),
        _together([_best(_distserve_low(problem, gpu, whole)) for gpu, whole in nodes.items()]),
        _together([_best(_splitwise(problem, nodes))]),
    ]
    return [served for served in found if served] + [own(problem, "disagg"), own(problem, "auto")]


def _best(rivals: Iterator[Served]) -> Served | None:
    return min(rivals, key=lambda served: (-served.req_per_s, served.usd_per_hour), default=None)


def _together(parts: Sequence[Served | None]) -> Served | None:
    there = [part for part in parts if part is not None]
    if not there:
        return None
    rate, dollars = sum(part.req_per_s for part in there), sum(part.usd_per_hour for part in there)
    return Served(there[0].method, rate, dollars, " + ".join(part.placement for part in there))


def own(problem: ProgramInput, mode: str) -> Served:
    """This program's most goodput."""
    options = replace(problem.options, mode=mode, objective="goodput")  # type: ignore[arg-type]
    answer = solve_program(replace(problem, options=options))
    label = "this program" + (", disaggregated" if mode == "disagg" else "")
    if isinstance(answer, Infeasible):
        return Served(label, 0.0, 0.0, "–")
    counts: dict[str, int] = {}
    for placed in answer.placed:
        counts[placed.column] = counts.get(placed.column, 0) + placed.instances
    words = " + ".join(f"{many} x {name}" for name, many in counts.items())
    return Served(label, answer.rate_scale * float(problem.rate_req_per_s.sum()), answer.usd_per_hour, words)


def _distserve_high(problem: ProgramInput, gpu: str) -> Iterator[Served]:
    """Its two kinds of instance, in the numbers of the type's GPUs that balance the stages best."""
    choice = distserve_high(problem, gpu)
    if choice is not None:
        most = problem.fleet.num_gpus[gpu]
        yield from _fill(problem, choice.method, choice.prefill, choice.decode, most, most)


def _distserve_low(problem: ProgramInput, gpu: str, gpus_per_node: int) -> Iterator[Served]:
    """As many replicas of its pair as the nodes hold."""
    choice = distserve_low(problem, gpu, gpus_per_node)
    if choice is None:
        return
    stages = choice.prefill.pipeline_parallel
    segment = (choice.prefill.num_gpus + choice.decode.num_gpus) // stages
    nodes = sum(node.gpu == gpu for node in problem.fleet.nodes)
    replicas = nodes * (gpus_per_node // segment) // stages
    if replicas:
        yield _served(problem, choice.method, choice.prefill, choice.decode, replicas, replicas)


def _splitwise(problem: ProgramInput, gpus_per_node: Mapping[str, int]) -> Iterator[Served]:
    """Whole machines of two types, or of one shared by both stages."""

    def machines(role: str) -> list[Column]:
        columns = [column for gpu in gpus_per_node for column in role_columns(problem, role, gpu)]
        return [c for c in columns if c.tensor_parallel == gpus_per_node[c.gpu] and c.pipeline_parallel == 1]

    for prefill in machines("prefill"):
        for decode in machines("decode"):
            if problem.pairs_allowed(prefill, decode):
                many = problem.fleet.num_gpus
                yield from _fill(problem, "Splitwise", prefill, decode, many[prefill.gpu], many[decode.gpu])


def _fill(
    problem: ProgramInput, method: str, prefill: Column, decode: Column, prefill_gpus: int, decode_gpus: int
) -> Iterator[Served]:
    """Every split of the GPUs between the stages; of one type they share them."""
    for n in range(1, prefill_gpus // prefill.num_gpus + 1):
        left = prefill_gpus - n * prefill.num_gpus if prefill.gpu == decode.gpu else decode_gpus
        m = left // decode.num_gpus
        if m:
            yield _served(problem, method, prefill, decode, n, m)


def _served(problem: ProgramInput, method: str, prefill: Column, decode: Column, n: int, m: int) -> Served:
    total, prices = float(problem.rate_req_per_s.sum()), problem.fleet.usd_per_gpu_hour
    rate = total * min(n / load(problem, prefill), m / load(problem, decode))
    dollars = n * prefill.num_gpus * prices[prefill.gpu] + m * decode.num_gpus * prices[decode.gpu]
    return Served(method, rate, dollars, f"{n} x {prefill.name} + {m} x {decode.name}")
