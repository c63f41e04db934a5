"""Helix's node sets through the planner's own program: columns of mixed pipelines, goodput as the objective."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np

from benchmarks.published.answers import Composition, colocated, inventory, node_sets
from benchmarks.published.cases import LayerTable
from splitplan.planner.columns.column import Column, Stage
from splitplan.planner.program.solve import solve_program
from splitplan.planner.program.types import ProgramInput, ProgramOptions, ProgramSolution


def pipeline_columns(table: LayerTable) -> list[Column]:
    """One column for every minimal set of nodes: its best uniform rate, and as many layers as each node holds at it."""
    best: dict[tuple[tuple[str, int], ...], float] = {}
    for rate in sorted({rate for rates in table.tokens_per_s.values() for rate in rates}):
        for nodes in node_sets(table, rate):
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


def through_program(table: LayerTable) -> Composition:
    """The most tokens/s from the nodes there are, and the pipelines that give them."""
    columns = pipeline_columns(table)
    fleet = inventory(table.nodes, dict.fromkeys(table.nodes, 1.0))
    options = ProgramOptions(objective="goodput", mode="colocated", granularity="rack")
    answer = solve_program(ProgramInput(fleet, tuple(columns), ("tokens",), np.ones(1), {}, options=options))
    assert isinstance(answer, ProgramSolution), answer
    by_name = {column.name: column for column in columns}
    pipelines = []
    for placed in answer.placed:
        column = by_name[placed.column]
        nodes = dict(Counter(stage.gpu for stage in column.stages))
        pipelines += [(1.0 / float(column.work_s_per_request[0]), nodes)] * placed.instances
    return Composition(answer.rate_scale, tuple(pipelines))
