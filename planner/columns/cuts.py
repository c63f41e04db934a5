"""Where the layers of a mixed pipeline are cut: stages at one rate, within the memory of each.

With n layers on one type and the rest on the other, the slowest stage's time for a mean request and the KV tokens of
the tightest stage follow from two numbers per type, since both are linear in layers. Three cuts are handed on: the
slowest stage at its fastest, the most KV memory, and half-way between; their columns say which serves most.
"""

from __future__ import annotations

from splitplan.catalogs.engines import Engine
from splitplan.catalogs.models import Model
from splitplan.planner.columns.column import Role
from splitplan.planner.columns.mix import RequestMix
from splitplan.planner.columns.pipelines import Pipeline, spread
from splitplan.planner.columns.service import at, decode_step_s, mix_prompts
from splitplan.planner.columns.shapes import shape_memory
from splitplan.planner.columns.steps import StepLibrary
from splitplan.planner.latency.memory import InstanceMemory
from splitplan.planner.latency.operations import Position
from splitplan.planner.latency.weights import StageCut

SPLIT_CHUNK, SPLIT_BATCH = 2048, 64
"""Where layers are balanced: prompts in chunks of so many tokens, decodes in batches of so many sequences."""


def layer_splits(
    pipeline: Pipeline,
    role: Role,
    model: Model,
    engine: Engine,
    mix: RequestMix,
    library: StepLibrary,
    limits: tuple[int, int],
    fraction: float,
) -> list[Pipeline]:
    """The pipeline cut in up to three ways: half-way, the fastest slowest stage, the most KV memory."""
    many, more = (count for _, count in pipeline.parts())
    costs = _layer_costs(pipeline, role, model, mix, library)
    rooms = [_room(pipeline, number, model, engine, mix, limits, fraction) for number in (0, len(pipeline.stages) - 1)]
    found: list[tuple[float, float, int]] = []
    for share in range(many, model.num_layers - more + 1):
        layers = (-(-share // many), -(-(model.num_layers - share) // more))
        kv_tokens = min((room[0] - room[1] * held) / (room[2] * held) for room, held in zip(rooms, layers, strict=True))
        if kv_tokens >= mix.max_model_len:
            slowest_s = max(cost[0] * held + cost[1] for cost, held in zip(costs, layers, strict=True))
            found.append((slowest_s, -kv_tokens, share))
    if not found:
        return []
    fastest, roomiest = min(found)[2], min(found, key=lambda entry: (entry[1], entry[0]))[2]
    shares = dict.fromkeys(((fastest + roomiest) // 2, fastest, roomiest))
    return [pipeline.with_layers((*spread(share, many), *spread(model.num_layers - share, more))) for share in shares]


def _room(
    pipeline: Pipeline,
    number: int,
    model: Model,
    engine: Engine,
    mix: RequestMix,
    limits: tuple[int, int],
    fraction: float,
) -> tuple[float, float, float]:
    """(bytes for weights and KV, bytes of weights per layer, KV bytes per token and layer) on a GPU of a stage."""
    last = len(pipeline.stages) - 1

    def memory(layers: int) -> InstanceMemory:
        cut = StageCut(layers, number == 0, number == last)
        return shape_memory(
            pipeline.stages[number],
            model,
            engine,
            max_num_seqs=limits[0],
            chunk=limits[1],
            fraction=fraction,
            max_model_len=mix.max_model_len,
            cut=cut,
        )

    one, two = memory(1), memory(2)
    per_layer = two.weights_bytes - one.weights_bytes
    return one.kv_bytes + per_layer, per_layer, max(one.kv_bytes_per_token, 1e-9)


def _layer_costs(
    pipeline: Pipeline, role: Role, model: Model, mix: RequestMix, library: StepLibrary
) -> list[tuple[float, float]]:
    """Seconds that a request takes of a stage on each type: per layer, and besides (the LM head of the last)."""
    costs = []
    for number, (shape, _) in enumerate(pipeline.parts()):
        position: Position = "middle" if number == 0 else "last"
        step = library.stage(shape, model.num_layers, position)
        total_s, head_s = 0.0, 0.0
        if role != "decode":
            total_s += float(mix_prompts(step, SPLIT_CHUNK, mix).service().occupancy_s.mean())
            head_s += float(step.sequence_s[1])
        if role != "prefill":
            batch = SPLIT_BATCH / len(pipeline.stages)
            tokens = float(mix.output_tokens.mean())
            total_s += tokens * decode_step_s(step, batch, mix.context_tokens) / batch
            head_s += tokens * at(step.sequence_s, batch) / batch
        costs.append(((total_s - head_s) / model.num_layers, head_s))
    return costs
