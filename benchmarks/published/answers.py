"""The published cases put to this program."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.published import cases
from benchmarks.published.cases import LayerTable
from splitplan.planner.columns.column import Column
from splitplan.planner.latency.step import StepModel
from splitplan.planner.program.linear import LinearModel
from splitplan.planner.program.solve import solve_program
from splitplan.planner.program.solver import solve
from splitplan.planner.program.types import Infeasible, ProgramInput, ProgramOptions, ProgramSolution
from splitplan.planner.spec.fleet import Fleet, Node, Rack


def colocated(gpu: str, work_s: Sequence[float]) -> Column:
    """One GPU that serves a request of each class in the given seconds."""
    flat, square = np.zeros(2), np.zeros((2, 2))
    return Column(
        name=f"colocated {gpu}",
        role="colocated",
        gpu=gpu,
        tensor_parallel=1,
        pipeline_parallel=1,
        expert_parallel=1,
        weight_dtype="bf16",
        kv_dtype="bf16",
        block_tokens=16,
        max_num_seqs=256,
        max_num_batched_tokens=8192,
        max_model_len=32768,
        memory_fraction=0.9,
        kv_capacity_tokens=0,
        work_s_per_request=np.array(work_s),
        watts=0.0,
        step=StepModel((0.0, 0.0), flat, 0.0, flat, flat, flat, flat, square, flat, flat, square),
    )


def inventory(counts: Mapping[str, int], prices: Mapping[str, float]) -> Fleet:
    """Single-GPU nodes in one rack: a plain count per type."""
    nodes = tuple(
        Node(f"{gpu}-{i}", "r", gpu, 1, "pcie", 1, None, 0, 0.0, 2**36, 0.0, (), {})
        for gpu, count in counts.items()
        for i in range(count)
    )
    return Fleet("counts", (Rack("r", nodes, None, None),), None, prices, {})


def gpus_used(answer: ProgramSolution | Infeasible) -> tuple[dict[str, int], float]:
    """GPUs by type and dollars per hour."""
    assert isinstance(answer, ProgramSolution), answer
    used: Counter[str] = Counter()
    for placed in answer.placed:
        used[placed.column.removeprefix("colocated ").partition("|")[0]] += placed.instances
    return dict(used), answer.usd_per_hour


def melange(*, split: bool) -> tuple[dict[str, int], float]:
    """Mélange's example: two GPU types, four length buckets; whole buckets as there (slice factor 1), or split ones."""
    shares = np.array(cases.MELANGE_SHARES).ravel()
    columns = [
        colocated(gpu, [1.0 / rate for row in table for rate in row])
        for gpu, table in cases.MELANGE_MAX_REQ_PER_S.items()
    ]
    fleet = inventory({"a10g": 40, "a100-sxm-80": 10}, cases.MELANGE_USD_PER_HOUR)
    names = ("short/short", "short/long", "long/short", "long/long")
    rates = cases.MELANGE_RATE_REQ_PER_S * shares
    options = ProgramOptions(whole_classes=not split)
    return gpus_used(solve_program(ProgramInput(fleet, tuple(columns), names, rates, {}, options=options)))


def melange_by_groups(*, whole_kinds: bool) -> tuple[dict[str, int], float]:
    """Mélange's example as `planner solve --length-buckets` asks it: instances take a run of neighbouring buckets.

    `whole_kinds`: one GPU type serves a bucket, as there; else a group's requests may be shared by both types.
    """
    shares = np.array(cases.MELANGE_SHARES).ravel()
    columns = []
    for gpu, table in cases.MELANGE_MAX_REQ_PER_S.items():
        work = np.array([1.0 / rate for row in table for rate in row])
        for low in range(len(work)):
            for high in range(low, len(work)):
                inside = (np.arange(len(work)) >= low) & (np.arange(len(work)) <= high)
                column = colocated(gpu, list(np.where(inside, work, np.inf)))
                columns.append(
                    replace(column, name=f"{column.name}|{low}-{high}", above_tokens=low, up_to_tokens=high + 1)
                )
    fleet = inventory({"a10g": 40, "a100-sxm-80": 10}, cases.MELANGE_USD_PER_HOUR)
    names = ("short/short", "short/long", "long/short", "long/long")
    rates = cases.MELANGE_RATE_REQ_PER_S * shares
    options = ProgramOptions(class_groups=True, whole_classes=whole_kinds)
    return gpus_used(solve_program(ProgramInput(fleet, tuple(columns), names, rates, {}, options=options)))


def variant_autoscaler() -> tuple[dict[str, int], float]:
    """llm-d's variant autoscaler: the cheapest accelerator whose ITL at its batch limit stays below the target."""
    columns = []
    for gpu, (alpha, beta) in cases.WVA_ITL_MS.items():
        itl_ms = alpha + beta * cases.WVA_MAX_BATCH
        if itl_ms <= cases.WVA_ITL_LIMIT_MS:
            columns.append(colocated(gpu, [cases.WVA_TOKENS * itl_ms / 1e3 / cases.WVA_MAX_BATCH]))
    fleet = inventory(dict.fromkeys(cases.WVA_COST, 4), cases.WVA_COST)
    rate = np.array([cases.WVA_REQ_PER_MIN / 60.0])
    return gpus_used(solve_program(ProgramInput(fleet, tuple(columns), ("all",), rate, {})))


def scarce_inventory() -> tuple[dict[str, int], float]:
    """One L20 and eight A10: a load worth eight A10 takes the one L20 there is and seven A10, never a second L20."""
    prices = {"l20": 0.9, "a10g": 1.0}
    columns = (colocated("l20", [0.125]), colocated("a10g", [0.125]))
    fleet = inventory(cases.AIBRIX_INVENTORY, prices)
    return gpus_used(solve_program(ProgramInput(fleet, columns, ("all",), np.array([64.0]), {})))


@dataclass(frozen=True, slots=True)
class Composition:
    """Pipelines of mixed nodes: tokens/s in all, the nodes of each pipeline, and how deep it is."""

    tokens_per_s: float
    pipelines: tuple[tuple[float, dict[str, int]], ...]  # (tokens/s, nodes by type)

    @property
    def depth(self) -> int:
        """Stages of the deepest pipeline."""
        return max(sum(nodes.values()) for _, nodes in self.pipelines)


def compose(table: LayerTable) -> Composition:
    """Helix's placement by uniform-rate pipelines.

    A pipeline at rate r takes from every node as many layers as it can hold at r; its layers must add up to the
    model's. One integer program chooses how many pipelines of each make-up to build from the nodes there are.
    """
    model, patterns = LinearModel(maximise=True), []
    for rate in sorted({rate for rates in table.tokens_per_s.values() for rate in rates}):
        for nodes in node_sets(table, rate):
            variable = model.add_variable(f"{rate:g} from {nodes}", 0.0, 64.0, integer=True)
            model.objective[variable] = rate
            patterns.append((variable, rate, nodes))
    for kind, many in table.nodes.items():
        terms = [(variable, float(nodes[kind])) for variable, _, nodes in patterns]
        model.add_constraint(f"nodes[{kind}]", terms, "<=", many)
    answer = solve(model)
    chosen = [(rate, nodes) for variable, rate, nodes in patterns for _ in range(round(answer.values[variable]))]
    return Composition(sum(rate for rate, _ in chosen), tuple(chosen))


def node_sets(table: LayerTable, rate: float) -> list[dict[str, int]]:
    """Minimal sets of nodes that hold the whole model at a rate."""
    layers = {
        kind: max((held for held, served in enumerate(rates, 1) if served >= rate), default=0)
        for kind, rates in table.tokens_per_s.items()
    }
    kinds = [kind for kind in table.nodes if layers[kind]]
    found = []
    for counts in itertools.product(*(range(table.nodes[kind] + 1) for kind in kinds)):
        total = sum(count * layers[kind] for kind, count in zip(kinds, counts, strict=True))
        spare = total - table.num_layers
        used = [layers[kind] for kind, count in zip(kinds, counts, strict=True) if count]
        if spare >= 0 and all(spare < held for held in used):
            found.append(dict.fromkeys(table.nodes, 0) | dict(zip(kinds, counts, strict=True)))
    return found
