"""Two plans side by side: what is added (+), gone (−) and changed (~)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from splitplan.planner.plan import Instance, Plan, Pool
from splitplan.planner.show.drawing import index_ranges

Sign = Literal["+", "−", "~"]
Slots = tuple[tuple[str, int], ...]
SHAPE = (
    "role",
    "gpu",
    "tensor_parallel",
    "pipeline_parallel",
    "expert_parallel",
    "weight_dtype",
    "kv_dtype",
    "block_tokens",
    "max_num_seqs",
    "max_num_batched_tokens",
)
"""Two pools with equal shape run the same engine command, whatever their names."""

SAID_APART = frozenset(("engine", "connector", "length_buckets", "held", "move_usd_per_hour", "time_limit_s"))
"""Options that have a line of their own in a diff, or say nothing of what was wanted."""


@dataclass(frozen=True, slots=True)
class Change:
    """One line of a diff."""

    sign: Sign
    text: str

    def __str__(self) -> str:
        return f"{self.sign} {self.text}"


def diff_plans(old: Plan, new: Plan) -> tuple[Change, ...]:
    """Changes from `old` to `new`: question, pools, instances on their GPUs, totals. () when nothing differs."""
    return (*_questions(old, new), *_instances(old, new), *_totals(old, new))


def shape_of(pool: Pool) -> tuple[object, ...]:
    """What makes two instances interchangeable."""
    stages = tuple((stage.gpu, stage.layers) for stage in pool.stages)
    return (*(getattr(pool, name) for name in SHAPE), stages)


def slots_of(instance: Instance) -> Slots:
    """(node, GPU index) of an instance, stage after stage."""
    return tuple((slot.node, slot.index) for slot in instance.gpus)


def where(instance: Instance) -> str:
    """ "h100-1 GPU 0-3" or "n1 GPU 0-7, n2 GPU 0-7"."""
    nodes = dict.fromkeys(slot.node for slot in instance.gpus)
    return ", ".join(f"{node} GPU {index_ranges(s.index for s in instance.gpus if s.node == node)}" for node in nodes)


def _questions(old: Plan, new: Plan) -> list[Change]:
    changes = []
    for name in ("model", "fleet", "workload", "slo", "rate_req_per_s"):
        before, after = getattr(old.inputs, name), getattr(new.inputs, name)
        if before != after:
            changes.append(Change("~", f"{name.replace('_req_per_s', '')}: {_short(before)} → {_short(after)}"))
    for name in ("model_hash", "fleet_hash", "workload_hash"):
        stem = name.removesuffix("_hash")
        same_name = getattr(old.inputs, stem) == getattr(new.inputs, stem)
        if stem == "workload" and old.inputs.rate_req_per_s != new.inputs.rate_req_per_s:
            continue  # the rate is part of a workload's content, and has been said
        if same_name and getattr(old.inputs, name) != getattr(new.inputs, name):
            changes.append(Change("~", f"{stem} {getattr(new.inputs, stem)}: its content has changed"))
    if old.length_edges != new.length_edges:
        edges = [", ".join(map(str, plan.length_edges)) or "none" for plan in (old, new)]
        changes.append(Change("~", f"length buckets: {edges[0]} → {edges[1]}"))
    if old.connector and new.connector and old.connector != new.connector:
        changes.append(Change("~", f"connector: {old.connector} → {new.connector}"))
    options = [plan.inputs.options for plan in (old, new)]
    for name in sorted(options[0].keys() | options[1].keys()):
        before, after = (each.get(name, "default") for each in options)
        if before != after and name not in SAID_APART:
            changes.append(Change("~", f"{name.replace('_', ' ')}: {_short(before)} → {_short(after)}"))
    if (old.engine, old.engine_version) != (new.engine, new.engine_version):
        text = f"engine: {old.engine} {old.engine_version} → {new.engine} {new.engine_version}"
        changes.append(Change("~", text))
    return changes


def _short(value: object) -> str:
    return f"{value:g} req/s" if isinstance(value, float) else str(value)


def _instances(old: Plan, new: Plan) -> list[Change]:
    """Instances are the same when their shape and their GPUs are; a pool whose count changed gets a line of its own."""
    before = {(shape_of(pool), slots_of(i)): (pool, i) for pool in old.pools for i in pool.instances}
    after = {(shape_of(pool), slots_of(i)): (pool, i) for pool in new.pools for i in pool.instances}
    changes = []
    shapes = dict.fromkeys(shape for shape, _ in (*before, *after))
    for shape in shapes:
        counts = [sum(key[0] == shape for key in side) for side in (before, after)]
        pool = next(pool for side in (after, before) for key, (pool, _) in side.items() if key[0] == shape)
        if counts[0] and counts[1] and counts[0] != counts[1]:
            changes.append(Change("~", f"{pool.name}: {counts[0]} → {counts[1]} instances"))
        for key, (then_pool, instance) in before.items():
            if key[0] == shape and key not in after:
                changes.append(Change("−", f"{pool.name} on {where(instance)}{_command_of(then_pool, old, new)}"))
        for key, (now, instance) in after.items():
            if key[0] != shape:
                continue
            if key not in before:
                changes.append(Change("+", f"{pool.name} on {where(instance)}{_command_of(now, old, new)}"))
            elif (then := before[key][0].prompts) != now.prompts:
                changes.append(Change("~", f"{now.name} on {where(instance)}: {then} → {now.prompts}"))
    return changes


def _command_of(pool: Pool, old: Plan, new: Plan) -> str:
    """What tells this pool's command from another of the same name in the two plans, such as its chunk."""
    others = [each for plan in (old, new) for each in plan.pools if each.name == pool.name]
    unlike = [name for name in SHAPE if len({getattr(each, name) for each in others}) > 1]
    told = [f"{name.replace('_', ' ')} {getattr(pool, name)}" for name in unlike]
    return f" ({', '.join(told)})" if told else ""


def _totals(old: Plan, new: Plan) -> list[Change]:
    changes = []
    for text, before, after in (
        ("GPUs", old.num_gpus, new.num_gpus),
        ("$/h", round(old.usd_per_hour, 2), round(new.usd_per_hour, 2)),
        ("W", round(old.watts), round(new.watts)),
    ):
        if before != after:
            changes.append(Change("~", f"{before:g} → {after:g} {text} ({after - before:+g})"))
    return changes
