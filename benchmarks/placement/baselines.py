"""What DistServe's and Splitwise's searches choose from the columns that our program gets.

DistServe, high node affinity (OSDI 2024, algorithm 1): each stage alone, the configuration with the most goodput per
GPU, then as many as the rate needs. Low node affinity (algorithm 2): prefill and decode with equal pipeline stages,
the two segments of a stage in one node; the pair with the most goodput per GPU is replicated. Both know one GPU type.
Splitwise (ISCA 2024): whole machines, one instance each, prompt and token machines of any two types (HH, AA, HA, …);
the cheapest numbers that carry the rate.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from splitplan.planner.columns.column import Column
from splitplan.planner.program.types import ProgramInput


@dataclass(frozen=True, slots=True)
class Choice:
    """A baseline's placement: instances of one prefill and one decode column."""

    method: str
    prefill: Column
    decode: Column
    num_prefill: int
    num_decode: int
    usd_per_hour: float
    fits: bool  # within the fleet's GPUs by type

    @property
    def num_gpus(self) -> int:
        """GPUs in all."""
        return self.num_prefill * self.prefill.num_gpus + self.num_decode * self.decode.num_gpus

    def __str__(self) -> str:
        return f"{self.num_prefill} x {self.prefill.name} + {self.num_decode} x {self.decode.name}"


def load(problem: ProgramInput, column: Column) -> float:
    """Instances (a fraction) that the whole load takes on one column; infinite when it cannot serve a class."""
    asked = problem.rate_req_per_s > 0
    return float(np.dot(column.work_s_per_request[asked], problem.rate_req_per_s[asked]))


def role_columns(problem: ProgramInput, role: str, gpu: str) -> list[Column]:
    """The columns of a role on one GPU type that serve every class."""
    return [c for c in problem.columns if c.role == role and c.gpu == gpu and math.isfinite(load(problem, c))]


def _choice(
    problem: ProgramInput, method: str, prefill: Column, decode: Column, num_prefill: int, num_decode: int
) -> Choice:
    prices = problem.fleet.usd_per_gpu_hour
    used: dict[str, int] = {}
    dollars = 0.0
    for column, many in ((prefill, num_prefill), (decode, num_decode)):
        used[column.gpu] = used.get(column.gpu, 0) + many * column.num_gpus
        dollars += many * column.num_gpus * prices[column.gpu]
    fits = all(count <= problem.fleet.num_gpus.get(gpu, 0) for gpu, count in used.items())
    return Choice(method, prefill, decode, num_prefill, num_decode, dollars, fits)


def distserve_high(problem: ProgramInput, gpu: str) -> Choice | None:
    """Each stage's best goodput per GPU on one type, whatever the network."""
    prefill, decode = (role_columns(problem, role, gpu) for role in ("prefill", "decode"))
    if not prefill or not decode:
        return None
    best_prefill = min(prefill, key=lambda column: load(problem, column) * column.num_gpus)
    partners = [column for column in decode if problem.pairs_allowed(best_prefill, column)]
    if not partners:
        return None
    best_decode = min(partners, key=lambda column: load(problem, column) * column.num_gpus)
    counts = (math.ceil(load(problem, column) - 1e-9) for column in (best_prefill, best_decode))
    return _choice(problem, "DistServe, high affinity", best_prefill, best_decode, *counts)


def distserve_low(problem: ProgramInput, gpu: str, gpus_per_node: int) -> Choice | None:
    """Pairs with equal stages whose two segments share a node; the best goodput per GPU, replicated."""
    pairs = [
        (prefill, decode)
        for prefill in role_columns(problem, "prefill", gpu)
        for decode in role_columns(problem, "decode", gpu)
        if prefill.pipeline_parallel == decode.pipeline_parallel
        and prefill.tensor_parallel + decode.tensor_parallel <= gpus_per_node
        and problem.pairs_allowed(prefill, decode)
    ]
    if not pairs:
        return None

    def gpus_needed(pair: tuple[Column, Column]) -> float:
        return max(load(problem, column) for column in pair) * sum(column.num_gpus for column in pair)

    prefill, decode = min(pairs, key=gpus_needed)
    replicas = math.ceil(max(load(problem, prefill), load(problem, decode)) - 1e-9)
    return _choice(problem, "DistServe, low affinity", prefill, decode, replicas, replicas)


def splitwise(problem: ProgramInput, gpus_per_node: Mapping[str, int]) -> Choice | None:
    """Whole machines: the cheapest pair of types and numbers that carries the rate and fits the fleet, if any does."""
    choices = list(_splitwise_pairs(problem, gpus_per_node))
    return min(choices, key=lambda choice: (not choice.fits, choice.usd_per_hour), default=None)


def _splitwise_pairs(problem: ProgramInput, gpus_per_node: Mapping[str, int]) -> Iterator[Choice]:
    def machines(role: str) -> list[Column]:
        return [
            column
            for gpu, whole in gpus_per_node.items()
            for column in role_columns(problem, role, gpu)
            if column.tensor_parallel == whole and column.pipeline_parallel == 1
        ]

    for prefill in machines("prefill"):
        for decode in machines("decode"):
            if problem.pairs_allowed(prefill, decode):
                counts = (math.ceil(load(problem, column) - 1e-9) for column in (prefill, decode))
                yield _choice(problem, "Splitwise", prefill, decode, *counts)


def all_baselines(problem: ProgramInput) -> list[Choice]:
    """The best of each method over the types of the fleet: those that fit first, then by cost."""
    nodes = {node.gpu: node.num_gpus for node in problem.fleet.nodes}
    found: list[Choice] = []
    for candidates in (
        [distserve_high(problem, gpu) for gpu in nodes],
        [distserve_low(problem, gpu, many) for gpu, many in nodes.items()],
        [splitwise(problem, nodes)],
    ):
        found += _best(choice for choice in candidates if choice is not None)
    return found


def _best(choices: Iterable[Choice]) -> list[Choice]:
    return sorted(choices, key=lambda choice: (not choice.fits, choice.usd_per_hour))[:1]
