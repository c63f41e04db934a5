"""Deployment and requests → the simulator's flat arrays."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from splitplan.catalogs.errors import InputError, Problem
from splitplan.planner.latency.step import StepModel
from splitplan.planner.simulate import layout as at
from splitplan.planner.simulate.deployment import Deployment, InstanceSpec
from splitplan.planner.spec.workload import FloatArray, IntArray, Requests

Arrivals = Literal["open", "burst", "closed", "batch"]
Routing = Literal["weighted", "round_robin", "least_loaded", "least_tokens"]

ARRIVALS: dict[str, int] = {
    "open": at.ARRIVALS_OPEN,
    "burst": at.ARRIVALS_OPEN,
    "closed": at.ARRIVALS_CLOSED,
    "batch": at.ARRIVALS_BATCH,
}
ROUTINGS: dict[str, int] = {
    "weighted": at.ROUTE_WEIGHTED,
    "round_robin": at.ROUTE_ROUND_ROBIN,
    "least_loaded": at.ROUTE_LEAST_LOADED,
    "least_tokens": at.ROUTE_LEAST_TOKENS,
}
ROLES = {"prefill": at.PREFILL, "decode": at.DECODE, "colocated": at.COLOCATED}

# Inter-token times are counted in bins 1 % wide from 10 µs to 1,000 s.
GAP_EDGES_S: FloatArray = 1e-5 * 1.01 ** np.arange(1852, dtype=np.float64)


def build_world(
    deployment: Deployment,
    requests: Requests,
    *,
    seed: int,
    arrivals: Arrivals,
    concurrency: int,
    think_s: float,
    routing: Routing,
    stepping: bool,
    as_lists: bool,
) -> at.World:
    """All arrays of a simulation that has not begun, as NumPy arrays or as lists."""
    tables, table_fields = _tables(deployment)
    memory, memory_fields, lists = _memory(deployment)
    engine_i, engine_f = _engines(deployment, table_fields, memory_fields)
    global_i, global_f = _globals(deployment, requests, lists)
    global_i[at.G_ARRIVALS] = ARRIVALS[arrivals]
    global_i[at.G_CONCURRENCY] = concurrency
    global_i[at.G_ROUTING] = ROUTINGS[routing]
    global_i[at.G_STEPPING] = int(stepping)
    global_f[at.G_THINK_S] = think_s
    request_i, request_f = _requests(requests, seed)
    if arrivals == "burst":
        request_f[:, at.R_ARRIVAL_S] = 0.0
    elif arrivals != "open":
        request_f[:, at.R_ARRIVAL_S] = at.INFINITE_S
        request_f[:concurrency, at.R_ARRIVAL_S] = 0.0
        global_i[at.G_DUE] = min(concurrency, len(requests)) * at.R_WIDTH
    flows = (len(requests) + 2) * at.F_WIDTH
    wake_s, tree, leaves = _sources(len(deployment.instances), float(request_f[0, at.R_ARRIVAL_S]))
    global_i[at.G_LEAVES] = leaves
    capacities = np.array([[link.bytes_per_s, 0.0] for link in deployment.links], dtype=np.float64)
    arrays: list[Any] = [
        global_i,
        global_f,
        engine_i.ravel(),
        engine_f.ravel(),
        request_i.ravel(),
        request_f.ravel(),
        np.zeros(flows, dtype=np.int64),
        np.zeros(flows, dtype=np.float64),
        np.zeros(capacities.size, dtype=np.int64),
        capacities.ravel(),
        tables,
        memory,
        _shares(deployment, engine_i),
        wake_s,
        tree,
        GAP_EDGES_S,
        np.zeros(len(GAP_EDGES_S), dtype=np.int64),
    ]
    return at.World(*[array.tolist() for array in arrays] if as_lists else arrays)


def _requests(requests: Requests, seed: int) -> tuple[IntArray, FloatArray]:
    count = len(requests)
    if count == 0:
        raise InputError(Problem("no requests to simulate", expected="at least one; missing traffic is not zero load"))
    ints = np.full((count, at.R_WIDTH), -1, dtype=np.int64)
    floats = np.full((count, at.R_WIDTH), -1.0, dtype=np.float64)
    ints[:, at.R_INPUT] = np.maximum(requests.input_tokens, 1)
    ints[:, at.R_OUTPUT] = np.maximum(requests.output_tokens, 1)
    ints[:, at.R_CACHED] = np.clip(requests.cached_tokens, 0, ints[:, at.R_INPUT] - 1)
    ints[:, [at.R_GENERATED, at.R_PREEMPTIONS, at.R_STATE]] = 0
    arrival_s = np.asarray(requests.arrival_s, dtype=np.float64)
    if not (np.isfinite(arrival_s).all() and (np.diff(arrival_s) >= 0).all() and arrival_s[0] >= 0):
        raise InputError(Problem("arrival times are not in order", expected="seconds from 0 on, ascending"))
    floats[:, at.R_ARRIVAL_S] = arrival_s
    floats[:, [at.R_DRAW_ENTRY, at.R_DRAW_DECODE]] = np.random.default_rng(seed).random((count, 2))
    return ints, floats


def _globals(deployment: Deployment, requests: Requests, lists: dict[int, int]) -> tuple[IntArray, FloatArray]:
    ints = np.zeros(at.G_WIDTH, dtype=np.int64)
    floats = np.zeros(at.G_FLOAT_WIDTH, dtype=np.float64)
    for field, value in lists.items():
        ints[field] = value
    ints[at.G_REQUESTS] = len(requests)
    ints[at.G_DECODE_EMITS_FIRST] = int(deployment.decode_emits_first_token)
    transfers = deployment.indices("prefill") and deployment.indices("decode")
    ints[at.G_LAYERWISE] = int(deployment.layerwise_layers > 0 and bool(transfers))
    ints[at.G_SPINE] = _link_handle(deployment.spine)
    floats[at.G_KV_BYTES_PER_TOKEN] = deployment.kv_bytes_per_token
    if deployment.indices("prefill"):
        floats[at.G_TRANSFER_LATENCY_S] = deployment.transfer_latency_s
        floats[at.G_BLOCK_COST_S] = deployment.descriptor_s * deployment.descriptors_per_block
    floats[at.G_LAST_LAYER_SHARE] = 1.0 / max(deployment.layerwise_layers, 1)
    return ints, floats


def _link_handle(link: int | None) -> int:
    return -1 if link is None else link * at.L_WIDTH


def _engines(
    deployment: Deployment, table_fields: list[dict[int, int]], memory_fields: list[dict[int, int]]
) -> tuple[IntArray, FloatArray]:
    count = len(deployment.instances)
    ints = np.zeros((count, at.E_WIDTH), dtype=np.int64)
    floats = np.zeros((count, at.E_WIDTH), dtype=np.float64)
    nodes: dict[str, int] = {}
    racks: dict[str, int] = {}
    for index, instance in enumerate(deployment.instances):
        fields = table_fields[index] | memory_fields[index] | _instance_fields(instance)
        fields[at.E_INDEX] = index
        # An instance without a node is on its own; without a rack, in one rack with all that name none.
        fields[at.E_NODE] = nodes.setdefault(instance.node or f"\0{index}", len(nodes))
        fields[at.E_RACK] = racks.setdefault(instance.rack, len(racks))
        for field, value in fields.items():
            ints[index, field] = value
        floats[index, at.E_OVERHEAD_DECODE_S : at.E_OVERHEAD_PREFILL_S + 1] = instance.step.overhead_s
        floats[index, at.E_GAP_S] = instance.step.gap_s
        floats[index, at.E_SHARE] = instance.share
    return ints, floats


def _instance_fields(instance: InstanceSpec) -> dict[int, int]:
    blocks = instance.kv_capacity_tokens // instance.block_tokens
    fields = {
        at.E_ROLE: ROLES[instance.role],
        at.E_BLOCK_TOKENS: instance.block_tokens,
        at.E_KV_BLOCKS: blocks,
        at.E_KV_FREE: blocks,
        at.E_WATERMARK_BLOCKS: int(instance.watermark * blocks),
        at.E_MAX_SEQS: instance.max_num_seqs,
        at.E_BUDGET_TOKENS: instance.max_num_batched_tokens,
        at.E_PREFILL_FIRST: int(instance.scheduler == "sglang"),
        at.E_RESERVE_BLOCKS: -(-instance.reserve_output_tokens // instance.block_tokens),
        at.E_LOCAL_LINK: _link_handle(instance.local_link if instance.role == "prefill" else None),
    }
    for field, links in ((at.E_EGRESS, instance.egress), (at.E_INGRESS, instance.ingress)):
        for k in range(2):
            fields[field + k] = _link_handle(links[k] if k < len(links) else None)
    for field in (at.E_LATEST, at.E_PARTIAL, at.E_WAIT_HEAD, at.E_INCOMING_HEAD, at.E_READY_HEAD, at.E_PROMPTS):
        fields[field] = -1
    return fields


def _memory(deployment: Deployment) -> tuple[IntArray, list[dict[int, int]], dict[int, int]]:
    """Regions of `memory`: a heap and block phases per instance, then the lists of entry and decode engines."""
    size = 0
    fields = []
    for instance in deployment.instances:
        fields.append({at.E_HEAP: size, at.E_PHASES: size + instance.max_num_seqs})
        size += instance.max_num_seqs + instance.block_tokens
    decodes = deployment.indices("decode")
    entries = deployment.indices("prefill", "colocated") or decodes
    lists = {at.G_ENTRY_LIST: size, at.G_ENTRY_COUNT: len(entries)}
    lists |= {at.G_DECODE_LIST: size + len(entries), at.G_DECODE_COUNT: len(decodes)}
    memory = np.zeros(size + len(entries) + len(decodes), dtype=np.int64)
    memory[size:] = np.array(entries + decodes, dtype=np.int64) * at.E_WIDTH
    return memory, fields, lists


def _shares(deployment: Deployment, engine_i: IntArray) -> FloatArray:
    """Cumulative shares: one row over the entry instances, one over the decode instances, and one per routed entry."""
    decodes = deployment.indices("decode")
    entries = deployment.indices("prefill", "colocated") or decodes
    instances = deployment.instances
    rows = [_cumulative([instances[k].share for k in entries])]
    own_row = len(entries)
    if decodes:
        rows.append(_cumulative([instances[k].share for k in decodes]))
    offset = own_row + len(decodes)
    for entry in entries:
        weights = [deployment.routes.get((entry, decode), 0.0) for decode in decodes]
        if sum(weights) > 0:
            rows.append(_cumulative(weights))
            engine_i[entry, at.E_SHARE_ROW] = offset
            offset += len(decodes)
        else:
            engine_i[entry, at.E_SHARE_ROW] = own_row
    return np.concatenate(rows)


def _cumulative(weights: list[float]) -> FloatArray:
    total = np.cumsum(np.array(weights, dtype=np.float64))
    shares: FloatArray = total / total[-1]
    return shares


def _sources(engines: int, first_arrival_s: float) -> tuple[FloatArray, IntArray, int]:
    """Wake times and a tournament over them: tree[1] is the source with the earliest event, ties to the left."""
    leaves = 1
    while leaves < engines + at.FIRST_ENGINE_SOURCE:
        leaves *= 2
    wake_s = np.full(leaves, at.INFINITE_S, dtype=np.float64)
    wake_s[at.SOURCE_ARRIVAL] = first_arrival_s
    tree = np.zeros(2 * leaves, dtype=np.int64)
    tree[leaves:] = np.arange(leaves)
    for node in range(leaves - 1, 0, -1):
        left, right = tree[2 * node], tree[2 * node + 1]
        tree[node] = left if wake_s[left] <= wake_s[right] else right
    return wake_s, tree, leaves


def _tables(deployment: Deployment) -> tuple[FloatArray, list[dict[int, int]]]:
    """All step models, each once, with the offsets of its tables for every instance."""
    pieces: list[FloatArray] = []
    known: dict[tuple[int, int], dict[int, int]] = {}
    fields = []
    size = 0
    for instance in deployment.instances:
        key = (id(instance.step), instance.max_num_seqs)
        if key not in known:
            known[key], added = _model_tables(instance.step, instance.max_num_seqs, size)
            pieces += added
            size += sum(piece.size for piece in added)
        fields.append(known[key])
    return np.concatenate([piece.ravel() for piece in pieces]), fields


def _model_tables(step: StepModel, max_num_seqs: int, offset: int) -> tuple[dict[int, int], list[FloatArray]]:
    new_knots, past_knots, prefill = _at_least_two_knots(
        step.prefill_new_knots, step.prefill_past_knots, step.prefill_attention_s
    )
    batch_knots, context_knots, decode = _at_least_two_knots(
        step.decode_batch_knots, step.decode_context_knots, step.decode_attention_s
    )
    dense = _rows_by_batch(batch_knots, decode, max_num_seqs)
    pieces = {
        at.E_TOKEN_TABLE: step.token_s,
        at.E_SEQUENCE_TABLE: step.sequence_s,
        at.E_HOST_TABLE: step.host_s,
        at.E_NEW_KNOTS: new_knots,
        at.E_PAST_KNOTS: past_knots,
        at.E_PREFILL_TABLE: prefill,
        at.E_CONTEXT_KNOTS: context_knots,
        at.E_DECODE_TABLE: dense,
    }
    fields = {
        at.E_NEW_COUNT: len(new_knots),
        at.E_PAST_COUNT: len(past_knots),
        at.E_CONTEXT_COUNT: len(context_knots),
    }
    for field, piece in pieces.items():
        fields[field] = offset
        offset += piece.size
    return fields, [np.asarray(piece, dtype=np.float64) for piece in pieces.values()]


def _at_least_two_knots(
    rows: FloatArray, columns: FloatArray, values: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """A table with one knot along an axis is constant along it."""
    rows, columns, values = (np.asarray(array, dtype=np.float64) for array in (rows, columns, values))
    if len(rows) == 1:
        rows, values = np.append(rows, rows[0] + 1.0), np.vstack([values, values])
    if len(columns) == 1:
        columns, values = np.append(columns, columns[0] + 1.0), np.hstack([values, values])
    return rows, columns, values


def _rows_by_batch(knots: FloatArray, values: FloatArray, max_num_seqs: int) -> FloatArray:
    """Decode attention for every batch size, [batch, context knot]: linear between batch knots and beyond the last."""
    batch = np.arange(max_num_seqs + 1, dtype=np.float64)
    k = np.clip(np.searchsorted(knots, batch, side="right") - 1, 0, len(knots) - 2)
    weight = ((batch - knots[k]) / (knots[k + 1] - knots[k]))[:, None]
    rows: FloatArray = values[k] + weight * (values[k + 1] - values[k])
    return rows
