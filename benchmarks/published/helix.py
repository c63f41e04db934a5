"""Helix's node sets through the planner's own program: columns of mixed pipelines, goodput as the objective.

What the objective leaves out is then simulated: decoding through all stages, one micro-batch a stage, hand-offs over
Helix's network between. Its table gives tokens/s of a node by the layers it holds; a step of T tokens is taken to last
T / rate on each.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.published.answers import Composition, colocated, inventory, node_sets
from benchmarks.published.cases import LayerTable
from splitplan.planner.columns.column import Column, Stage
from splitplan.planner.latency.build import unlike_stages
from splitplan.planner.latency.step import StepModel
from splitplan.planner.program.solve import solve_program
from splitplan.planner.program.types import ProgramInput, ProgramOptions, ProgramSolution
from splitplan.planner.simulate import Deployment, InstanceSpec, simulate
from splitplan.planner.spec.workload import Requests

LINK_BYTES_PER_S, LINK_LATENCY_S = 1e9 / 8, 1e-3  # its full mesh
HANDOFF_BYTES_PER_TOKEN = (
    2 * 2 * 8192
)  # hidden states and residual in 16 bit; 6,656 wide for its 30B model, taken alike
TOKENS_IN, TOKENS_OUT = 763, 232
"""Means of the conversation trace it serves."""


def pipeline_columns(table: LayerTable, max_depth: int = 64) -> list[Column]:
    """One column for every minimal set of nodes: its best uniform rate, and as many layers as each node holds at it."""
    best: dict[tuple[tuple[str, int], ...], float] = {}
    for rate in sorted({rate for rates in table.tokens_per_s.values() for rate in rates}):
        for nodes in node_sets(table, rate):
            if sum(nodes.values()) <= max_depth:
                best[tuple(nodes.items())] = rate  # ascending: the highest rate stays
    return [_column(table, dict(nodes), rate) for nodes, rate in best.items()]


def _column(table: LayerTable, nodes: dict[str, int], rate: float) -> Column:
    stages, left = [], table.num_layers
    deep = sum(nodes.values())
    for kind, count in nodes.items():
        most = max(held for held, served in enumerate(table.tokens_per_s[kind], 1) if served >= rate) if count else 0
        for _ in range(count):
            deep -= 1
            layers = min(most, left - deep)  # every later stage holds a layer at least
            stages.append(Stage(kind, "", layers))
            left -= layers
    kinds = [kind for kind, count in nodes.items() if count]
    name = " ".join(f"{count}x{kind}" for kind, count in nodes.items() if count)
    column = replace(colocated("+".join(kinds), [1.0 / rate]), name=name, pipeline_parallel=len(stages))
    return replace(column, stages=tuple(stages)) if len(stages) > 1 else column


def chosen_columns(table: LayerTable, max_depth: int = 64) -> list[Column]:
    """The pipelines that give the most tokens/s from the nodes there are, one entry each."""
    columns = pipeline_columns(table, max_depth)
    fleet = inventory(table.nodes, dict.fromkeys(table.nodes, 1.0))
    options = ProgramOptions(objective="goodput", mode="colocated", granularity="rack")
    answer = solve_program(ProgramInput(fleet, tuple(columns), ("tokens",), np.ones(1), {}, options=options))
    assert isinstance(answer, ProgramSolution), answer
    by_name = {column.name: column for column in columns}
    return [by_name[placed.column] for placed in answer.placed for _ in range(placed.instances)]


def through_program(table: LayerTable, max_depth: int = 64) -> Composition:
    """The most tokens/s, and the pipelines that give them."""
    pipelines = tuple(
        (1.0 / float(column.work_s_per_request[0]), dict(Counter(stage.gpu for stage in column.stages)))
        for column in chosen_columns(table, max_depth)
    )
    return Composition(sum(rate for rate, _ in pipelines), pipelines)


@dataclass(frozen=True, slots=True)
class Served:
    """What a layout serves when it is simulated."""

    tokens_per_s: float  # output tokens of all users
    tpot_s: float  # median


def simulated(table: LayerTable, columns: list[Column], users: int) -> Served:
    """So many users decode through these pipelines and ask again as soon as they are served."""
    rate = sum(1.0 / float(column.work_s_per_request[0]) for column in columns)
    specs = []
    for number, column in enumerate(columns):
        share = 1.0 / float(column.work_s_per_request[0]) / rate
        slots = max(1, round(users * share / len(column.stages))) * len(column.stages)
        step = _step(table, column, slots // len(column.stages))
        specs.append(
            InstanceSpec(
                f"pipeline-{number}",
                "decode",
                step,
                kv_capacity_tokens=10**8,
                max_num_seqs=slots,
                max_num_batched_tokens=slots,
                share=share,
            )
        )
    count = 6 * users
    lengths = np.full(count, TOKENS_IN, dtype=np.int64), np.full(count, TOKENS_OUT, dtype=np.int64)
    nothing = np.zeros(count, dtype=np.int64)
    requests = Requests(np.zeros(count), *lengths, nothing, nothing)
    run = simulate(Deployment(tuple(specs)), requests, arrivals="closed", concurrency=users).runs[0]
    return Served(count * TOKENS_OUT / run.end_s, float(np.median(run.tpot_s)))


def _step(table: LayerTable, column: Column, micro_batch: int) -> StepModel:
    """Stages that take T / rate seconds for T tokens, and hand-offs of a micro-batch over the network."""
    tokens = np.arange(4097, dtype=np.float64)
    stages = tuple(
        replace(
            column.step,
            token_s=tokens / table.tokens_per_s[stage.gpu][stage.layers - 1],
            sequence_s=np.zeros(4097),
            host_s=np.zeros(4097),
            prefill_new_knots=np.array([0.0, 1.0]),
            prefill_past_knots=np.array([0.0, 1.0]),
            decode_batch_knots=np.array([0.0, 1.0]),
            decode_context_knots=np.array([0.0, 1.0]),
        )
        for stage in column.stages
    )
    return unlike_stages(stages, LINK_LATENCY_S + micro_batch * HANDOFF_BYTES_PER_TOKEN / LINK_BYTES_PER_S)
