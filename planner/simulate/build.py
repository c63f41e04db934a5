"""Deployment and requests → the simulator's flat arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, cast

import numpy as np

from splitplan.planner.latency.step import StepModel
from splitplan.planner.simulate import layout as at
from splitplan.planner.simulate.build_requests import add_caches, fill_limits, fill_requests, gap_limits
from splitplan.planner.simulate.deployment import Change, Deployment, InstanceSpec
from splitplan.planner.simulate.rows import Rows, lane_rows
from splitplan.planner.spec.workload import FloatArray, IntArray, Requests

Arrivals = Literal["open", "burst", "closed", "batch"]
Routing = Literal["weighted", "round_robin", "least_loaded", "least_tokens", "prefix_aware"]

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
    "prefix_aware": at.ROUTE_PREFIX_AWARE,
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
    changes: Sequence[Change] = (),
    itl_limit_s: float | FloatArray | None = None,
) -> at.World:
    """All state of a simulation that has not begun, as NumPy arrays or as lists."""
    rows = Rows(deployment, requests)
    limits = gap_limits(requests, itl_limit_s)
    _fill_engines(rows, deployment, changes, len(limits))
    fill_requests(rows, requests, seed)
    fill_limits(rows, limits, itl_limit_s)
    _fill_links(rows, deployment)
    add_caches(rows, deployment, requests, _roles(deployment, changes))
    ints, floats = rows.ints, rows.floats
    _fill_globals(rows, deployment)
    ints[at.G_ARRIVALS] = ARRIVALS[arrivals]
    ints[at.G_CONCURRENCY] = concurrency
    ints[at.G_ROUTING] = ROUTINGS[routing]
    ints[at.G_STEPPING] = int(stepping)
    floats[at.G_THINK_S] = think_s
    times = rows.floats_of("requests")[:, at.R_ARRIVAL_S]
    if arrivals == "burst":
        times[:] = 0.0
    elif arrivals != "open":
        times[concurrency:] = at.INFINITE_S
        times[:concurrency] = 0.0
        ints[at.G_DUE] = ints[at.G_FIRST_REQUEST] + min(concurrency, len(requests)) * at.R_WIDTH
    first_change_s = _add_changes(rows, changes)
    _fill_sources(rows, float(times[0]), first_change_s)
    all_ints, all_floats = np.concatenate([ints, *rows.more_ints]), np.concatenate([floats, *rows.more_floats])
    if as_lists:
        return at.World(all_ints.tolist(), all_floats.tolist())
    return at.World(cast(at.Ints, all_ints), cast(at.Floats, all_floats))


def _roles(deployment: Deployment, changes: Sequence[Change]) -> list[set[str]]:
    """The roles every instance has at any time."""
    roles = [{str(instance.role)} for instance in deployment.instances]
    for change in changes:
        if change.role is not None:
            roles[change.instance].add(change.role)
    return roles


def _add_changes(rows: Rows, changes: Sequence[Change]) -> float:
    """Put the changes, in order of time, at common offsets behind everything; the time of the first."""
    ordered = sorted(changes, key=lambda change: change.time_s)
    offset = max(rows.end_ints, rows.end_floats)
    rows.add_ints(np.zeros(offset - rows.end_ints, dtype=np.int64))
    rows.add_floats(np.zeros(offset - rows.end_floats))
    kinds = {"fail": at.CHANGE_FAIL, "restart": at.CHANGE_RESTART, "role": at.CHANGE_ROLE}
    homes = rows.ints_of("engines")[:, at.E_HOME][_home_rows(rows)]
    ints = [(int(homes[c.instance]), kinds[c.kind], ROLES[c.role] if c.role else 0) for c in ordered]
    rows.add_ints(np.array(ints, dtype=np.int64).ravel())
    rows.add_floats(np.array([(c.time_s, c.reload_s, 0.0) for c in ordered], dtype=np.float64).ravel())
    rows.ints[at.G_NEXT_CHANGE] = offset
    rows.ints[at.G_END_CHANGE] = offset + len(ordered) * at.K_WIDTH
    rows.ints[at.G_LIMBO_HEAD] = -1
    return ordered[0].time_s if ordered else at.INFINITE_S


def _home_rows(rows: Rows) -> IntArray:
    lanes: IntArray = np.flatnonzero(rows.ints_of("engines")[:, at.E_LANE] == 0)
    return lanes


def _fill_links(rows: Rows, deployment: Deployment) -> None:
    """The links of the fabric, then one to each instance's host memory, then one to the store."""
    ints = rows.ints_of("links")
    ints[:, [at.L_FIRST, at.L_NEXT, at.L_WAY]] = -1
    rates = [link.bytes_per_s for link in deployment.links]
    rates += [instance.host_cache_bytes_per_s for instance in deployment.instances]
    rows.floats_of("links")[:, at.L_CAPACITY] = [*rates, deployment.store_bytes_per_s]
    homes = rows.ints_of("engines")[lane_rows(deployment)]
    homes[:, at.E_HOST_LINK] = [rows.link_handle(len(deployment.links) + k) for k in range(len(homes))]
    rows.ints_of("engines")[lane_rows(deployment)] = homes
    rows.ints[at.G_STORE_LINK] = rows.link_handle(len(rates))


def _fill_globals(rows: Rows, deployment: Deployment) -> None:
    ints, floats = rows.ints, rows.floats
    engines, (lanes, width) = rows.first["engines"], rows.shape["engines"]
    ints[at.G_FIRST_ENGINE], ints[at.G_END_ENGINE] = engines, engines + lanes * width
    first, (count, width) = rows.first["requests"], rows.shape["requests"]
    ints[at.G_FIRST_REQUEST], ints[at.G_END_REQUEST] = first, first + count * width
    ints[at.G_NEXT] = first
    ints[at.G_END_FLOW] = rows.first["flows"]
    ints[at.G_FIRST_WAY] = ints[at.G_END_WAY] = rows.first["ways"]
    ints[[at.G_FREE_FLOW, at.G_FREE_WAY, at.G_TRAILING]] = -1
    ints[at.G_WAYS] = rows.add_ints(np.zeros(rows.shape["ways"][0], dtype=np.int64))
    ints[at.G_FIRST_LINK] = rows.first["links"]
    ints[at.G_GAPS] = rows.add_ints(np.zeros(len(GAP_EDGES_S), dtype=np.int64))
    ints[at.G_EDGES] = rows.add_floats(GAP_EDGES_S)
    ints[at.G_EDGE_COUNT] = len(GAP_EDGES_S)
    ints[at.G_DECODE_EMITS_FIRST] = int(deployment.decode_emits_first_token)
    ints[at.G_CACHED_ON_DECODE] = int(deployment.decode_keeps_prefix)
    ints[at.G_SPINE] = rows.link_handle(deployment.spine)
    ints[at.G_WINDOW] = deployment.window_tokens
    floats[at.G_KV_BYTES_PER_TOKEN] = deployment.kv_bytes_per_token
    floats[at.G_KV_BYTES_PER_SEQUENCE] = deployment.kv_bytes_per_sequence
    floats[at.G_WINDOWED_BYTES_PER_TOKEN] = deployment.windowed_kv_bytes_per_token
    if deployment.indices("prefill") and deployment.indices("decode"):
        ints[at.G_LAYERWISE] = int(deployment.layerwise_layers > 0)
    _fill_costs(rows, deployment)
    floats[at.G_LAST_LAYER_SHARE] = 1.0 / max(deployment.layerwise_layers, 1)


def _fill_costs(rows: Rows, deployment: Deployment) -> None:
    """Latency and cost per block of every kind of path; nothing where KV comes from outside."""
    kinds = 1 + max(instance.kind for instance in deployment.instances)
    costs = np.zeros((kinds, kinds, 2, at.COST_WIDTH))
    if deployment.indices("prefill") and deployment.indices("decode"):
        known = deployment.path_costs
        for sender, receiver, inside in np.ndindex(kinds, kinds, 2):
            cost = known.get((sender, receiver, bool(inside)), deployment.own_cost)
            descriptors = np.array([cost.descriptors_per_block, cost.windowed_descriptors_per_block])
            costs[sender, receiver, inside] = [cost.latency_s, *(cost.descriptor_s * descriptors), cost.copies]
    rows.ints[at.G_KINDS] = kinds
    rows.ints[at.G_COSTS] = rows.add_floats(costs)


def _fill_engines(rows: Rows, deployment: Deployment, changes: Sequence[Change], num_limits: int) -> None:
    """One row per lane: an instance with s pipeline stages has s lanes, the first of which is its home."""
    ints, floats = rows.ints_of("engines"), rows.floats_of("engines")
    tables: dict[tuple[int, int], dict[int, int]] = {}
    nodes: dict[str, int] = {}
    racks: dict[str, int] = {}
    homes = lane_rows(deployment)
    for index, instance in enumerate(deployment.instances):
        lanes = max(instance.step.num_stages, 1)
        fields = _instance_fields(rows, instance, deployment.window_tokens)
        for step in instance.step.stages or (instance.step,):
            key = (id(step), instance.max_num_seqs)
            if key not in tables:
                tables[key] = _add_tables(rows, step, instance.max_num_seqs)
        # An instance without a node is on its own; without a rack, in one rack with all that name none.
        fields[at.E_NODE] = nodes.setdefault(instance.node or f"\0{index}", len(nodes))
        fields[at.E_RACK] = racks.setdefault(instance.rack, len(racks))
        fields[at.E_HOME] = rows.first["engines"] + homes[index] * at.E_WIDTH
        for lane in range(lanes):
            row = homes[index] + lane
            step = instance.step.stages[lane] if instance.step.stages else instance.step
            lane_fields = _lane_fields(rows, instance, deployment.window_tokens, num_limits)
            lane_fields |= tables[id(step), instance.max_num_seqs]
            for field, value in (fields | lane_fields | {at.E_INDEX: row, at.E_LANE: lane}).items():
                ints[row, field] = value
            floats[row, at.E_OVERHEAD_DECODE_S : at.E_OVERHEAD_PREFILL_S + 1] = step.overhead_s
            floats[row, at.E_GAP_S] = step.gap_s
            floats[row, at.E_HANDOFF_S] = instance.step.handoff_s
            floats[row, at.E_SHARE] = instance.share
            floats[row, at.E_BACK_S] = at.INFINITE_S
    _add_lists(rows, deployment, changes, [rows.first["engines"] + row * at.E_WIDTH for row in homes])


def _lane_fields(rows: Rows, instance: InstanceSpec, window_tokens: int, num_limits: int) -> dict[int, int]:
    """What each lane counts for itself: its running sequences, and the steps in which they take and free blocks."""
    slots, block = instance.max_num_seqs, instance.block_tokens
    size = window_tokens + block if instance.kv_parts[1] else 0
    scratch = rows.add_ints(np.zeros(slots + 2 * block + size + num_limits, dtype=np.int64))
    return {
        at.E_HEAP: scratch,
        at.E_PHASES: scratch + slots,
        at.E_LEAVING: scratch + slots + block,
        at.E_CROSSING: scratch + slots + 2 * block,
        at.E_CROSSING_SIZE: size,
        at.E_SLOW: scratch + slots + 2 * block + size,
    }


def _instance_fields(rows: Rows, instance: InstanceSpec, window_tokens: int) -> dict[int, int]:
    block = instance.block_tokens
    full, windowed = (part // math.gcd(*instance.kv_parts) for part in instance.kv_parts)
    pages = instance.kv_capacity_tokens // block * (full + windowed)
    reserved = -(-instance.reserve_output_tokens // block)
    in_window = -(-window_tokens // block) + 1
    lanes = max(instance.step.num_stages, 1)
    fields = {
        at.E_ROLE: ROLES[instance.role],
        at.E_BLOCK_TOKENS: instance.block_tokens,
        at.E_KV_PAGES: pages,
        at.E_KV_FREE: pages,
        at.E_SEQUENCE_PAGES: -(-instance.kv_sequence_tokens // block) * (full + windowed),
        at.E_FULL_PAGES: full,
        at.E_WINDOW_PAGES: windowed,
        at.E_PROMPT_BLOCKS: -(-(window_tokens - 1 + instance.max_num_batched_tokens) // block) + 1,
        at.E_UP: at.UP,
        at.E_NEXT_ROLE: ROLES[instance.role],
        at.E_WATERMARK_PAGES: int(instance.watermark * pages),
        at.E_MAX_SEQS: -(-instance.max_num_seqs // lanes),
        at.E_BUDGET_TOKENS: instance.max_num_batched_tokens,
        at.E_PREFILL_FIRST: int(instance.scheduler in ("sglang", "static")),
        at.E_STATIC: int(instance.scheduler == "static"),
        at.E_OPEN: 1,
        at.E_RESERVE_PAGES: full * reserved + windowed * min(reserved, in_window),
        at.E_LOCAL_LINK: rows.link_handle(instance.local_link if instance.role == "prefill" else None),
        at.E_LANES: lanes,
        at.E_ABOVE_TOKENS: instance.above_tokens,
        at.E_UP_TO_TOKENS: instance.up_to_tokens,
        at.E_UNLIKE: int(bool(instance.step.stages)),
    }
    for field, links in ((at.E_EGRESS, instance.egress), (at.E_INGRESS, instance.ingress)):
        for k in range(2):
            fields[field + k] = rows.link_handle(links[k] if k < len(links) else None)
    fields |= {at.E_CACHE: -1, at.E_HOST_CACHE: -1, at.E_READ_FLOW: -1, at.E_WAYS: -1, at.E_KIND: instance.kind}
    for field in (at.E_LATEST, at.E_PARTIAL, at.E_WAIT_HEAD, at.E_INCOMING_HEAD, at.E_READY_HEAD, at.E_PROMPTS):
        fields[field] = -1
    return fields


def _add_lists(rows: Rows, deployment: Deployment, changes: Sequence[Change], homes: list[int]) -> None:
    """Lists of entry and decode instances; cumulative shares over each, and one row per entry instance with routes."""
    ints, instances = rows.ints, deployment.instances
    roles = _roles(deployment, changes)
    decodes = [k for k, own in enumerate(roles) if "decode" in own]
    entries = [k for k, own in enumerate(roles) if own != {"decode"}] or decodes
    ints[at.G_DECODE_ALONE] = int(entries == decodes and not deployment.indices("prefill", "colocated"))
    ints[at.G_ENTRY_LIST] = rows.add_ints(np.array([homes[k] for k in entries], dtype=np.int64))
    ints[at.G_DECODE_LIST] = rows.add_ints(np.array([homes[k] for k in decodes], dtype=np.int64))
    ints[at.G_ENTRY_COUNT], ints[at.G_DECODE_COUNT] = len(entries), len(decodes)
    ints[at.G_ENTRY_SHARES] = rows.add_floats(_cumulative([instances[k].share for k in entries]))
    if not decodes:
        return
    shared_row = rows.add_floats(_cumulative([instances[k].share for k in decodes]))
    for entry in entries:
        weights = [deployment.routes.get((entry, decode), 0.0) for decode in decodes]
        routed = sum(weights) > 0
        ints[homes[entry] + at.E_SHARE_ROW] = rows.add_floats(_cumulative(weights)) if routed else shared_row


def _cumulative(weights: list[float]) -> FloatArray:
    total = np.cumsum(np.array(weights, dtype=np.float64))
    shares: FloatArray = total / total[-1]
    return shares


def _fill_sources(rows: Rows, first_arrival_s: float, first_change_s: float) -> None:
    """Wake times and a tournament over them: tree[1] is the source with the earliest event, ties to the left."""
    leaves = 1
    while leaves < rows.shape["engines"][0] + at.FIRST_ENGINE_SOURCE:
        leaves *= 2
    wake_s = np.full(leaves, at.INFINITE_S, dtype=np.float64)
    wake_s[at.SOURCE_ARRIVAL] = first_arrival_s
    wake_s[at.SOURCE_CONTROL] = first_change_s
    tree = np.zeros(2 * leaves, dtype=np.int64)
    tree[leaves:] = np.arange(leaves)
    for node in range(leaves - 1, 0, -1):
        left, right = tree[2 * node], tree[2 * node + 1]
        tree[node] = left if wake_s[left] <= wake_s[right] else right
    rows.ints[at.G_LEAVES] = leaves
    rows.ints[at.G_TREE] = rows.add_ints(tree)
    rows.ints[at.G_WAKE] = rows.add_floats(wake_s)


def _add_tables(rows: Rows, step: StepModel, max_num_seqs: int) -> dict[int, int]:
    """Put a step model's tables behind the rows; their offsets and sizes as engine fields."""
    new_knots, past_knots, prefill = _at_least_two_knots(
        step.prefill_new_knots, step.prefill_past_knots, step.prefill_attention_s
    )
    batch_knots, context_knots, decode = _at_least_two_knots(
        step.decode_batch_knots, step.decode_context_knots, step.decode_attention_s
    )
    return {
        at.E_NEW_COUNT: len(new_knots),
        at.E_PAST_COUNT: len(past_knots),
        at.E_CONTEXT_COUNT: len(context_knots),
        at.E_TOKEN_TABLE: rows.add_floats(step.token_s),
        at.E_SEQUENCE_TABLE: rows.add_floats(step.sequence_s),
        at.E_HOST_TABLE: rows.add_floats(step.host_s),
        at.E_NEW_KNOTS: rows.add_floats(new_knots),
        at.E_PAST_KNOTS: rows.add_floats(past_knots),
        at.E_PREFILL_TABLE: rows.add_floats(prefill),
        at.E_CONTEXT_KNOTS: rows.add_floats(context_knots),
        at.E_DECODE_TABLE: rows.add_floats(_rows_by_batch(batch_knots, decode, max_num_seqs)),
    }


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
