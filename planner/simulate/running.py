"""KV blocks and the set of decoding sequences of an engine. Part of the hot loop: runs as is and compiled.

A decoding sequence holds c = E_STEPS + R_OFFSET tokens and ⌈c / block⌉ blocks. It takes a block in every step that
starts with c ≡ 0 (mod block), so E_PHASES counts sequences by the step, modulo the block, in which they do.
"""

from __future__ import annotations

from splitplan.planner.simulate.layout import (
    DECODING,
    E_BLOCK_TOKENS,
    E_CONTEXT,
    E_KV_BLOCKS,
    E_KV_FREE,
    E_LATEST,
    E_PHASES,
    E_RESERVE_BLOCKS,
    E_RUNNING,
    E_STEPS,
    E_WATERMARK_BLOCKS,
    R_EARLIER,
    R_FINISH_STEP,
    R_GENERATED,
    R_LATER,
    R_OFFSET,
    R_OUTPUT,
    R_STATE,
    World,
)
from splitplan.planner.simulate.queues import heap_push, heap_remove


def blocks_for(world: World, engine: int, tokens: int) -> int:
    """KV blocks that hold `tokens`."""
    block = world.engine_i[engine + E_BLOCK_TOKENS]
    return (tokens + block - 1) // block


def may_take(world: World, engine: int, blocks: int) -> bool:
    """Whether a new sequence may take `blocks`: an empty engine only has to hold it, a busy one keeps its margins."""
    engine_i = world.engine_i
    free = engine_i[engine + E_KV_FREE]
    if free == engine_i[engine + E_KV_BLOCKS]:
        return blocks <= free
    margin = engine_i[engine + E_WATERMARK_BLOCKS]
    margin += engine_i[engine + E_RESERVE_BLOCKS] * (engine_i[engine + E_RUNNING] + 1)
    return blocks + margin <= free


def growth(world: World, engine: int, first: int, steps: int) -> int:
    """Blocks taken in `steps` steps from `first` steps ahead of E_STEPS on, with the running set as it is."""
    engine_i = world.engine_i
    block = engine_i[engine + E_BLOCK_TOKENS]
    cycles = steps // block
    blocks = cycles * engine_i[engine + E_RUNNING]
    phases = engine_i[engine + E_PHASES]
    phase = (engine_i[engine + E_STEPS] + first) % block
    for _ in range(steps - cycles * block):
        blocks += world.memory[phases + phase]
        phase += 1
        if phase == block:
            phase = 0
    return blocks


def join_running(world: World, engine: int, request: int, context: int) -> None:
    """A sequence with `context` tokens of KV, whose blocks it holds, starts to decode with the next step."""
    engine_i = world.engine_i
    request_i = world.request_i
    steps = engine_i[engine + E_STEPS]
    request_i[request + R_OFFSET] = context - steps
    request_i[request + R_FINISH_STEP] = steps + request_i[request + R_OUTPUT] - request_i[request + R_GENERATED]
    request_i[request + R_STATE] = DECODING
    heap_push(world, engine, request)
    engine_i[engine + E_RUNNING] += 1
    engine_i[engine + E_CONTEXT] += context
    world.memory[engine_i[engine + E_PHASES] + (steps - context) % engine_i[engine + E_BLOCK_TOKENS]] += 1
    latest = engine_i[engine + E_LATEST]
    request_i[request + R_EARLIER] = latest
    request_i[request + R_LATER] = -1
    if latest >= 0:
        request_i[latest + R_LATER] = request
    engine_i[engine + E_LATEST] = request


def leave_running(world: World, engine: int, request: int) -> None:
    """A sequence that finished or is preempted gives its slot and its blocks back."""
    engine_i = world.engine_i
    request_i = world.request_i
    offset = request_i[request + R_OFFSET]
    context = engine_i[engine + E_STEPS] + offset
    heap_remove(world, engine, request)
    engine_i[engine + E_RUNNING] -= 1
    engine_i[engine + E_CONTEXT] -= context
    world.memory[engine_i[engine + E_PHASES] + (-offset) % engine_i[engine + E_BLOCK_TOKENS]] -= 1
    engine_i[engine + E_KV_FREE] += blocks_for(world, engine, context)
    earlier = request_i[request + R_EARLIER]
    later = request_i[request + R_LATER]
    if earlier >= 0:
        request_i[earlier + R_LATER] = later
    if later >= 0:
        request_i[later + R_EARLIER] = earlier
    else:
        engine_i[engine + E_LATEST] = earlier
