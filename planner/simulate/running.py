"""KV blocks and the set of decoding sequences of an engine. Part of the hot loop: runs as is and compiled.

A decoding sequence holds c = E_STEPS + R_OFFSET tokens and ⌈c / block⌉ blocks. It takes a block in every step that
starts with c ≡ 0 (mod block), so E_PHASES counts sequences by the step, modulo the block, in which they do.
"""

from __future__ import annotations

from splitplan.planner.simulate.layout import (
    DECODING,
    E_BLOCK_TOKENS,
    E_CONTEXT,
    E_HOME,
    E_KV_BLOCKS,
    E_KV_FREE,
    E_LANES,
    E_LATEST,
    E_PHASES,
    E_RESERVE_BLOCKS,
    E_RUNNING,
    E_STEPS,
    E_WATERMARK_BLOCKS,
    E_WIDTH,
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
    block = world.ints[engine + E_BLOCK_TOKENS]
    return (tokens + block - 1) // block


def may_take(world: World, engine: int, blocks: int) -> bool:
    """Whether a new sequence may take `blocks`: an empty engine only has to hold it, a busy one keeps its margins."""
    ints = world.ints
    free = ints[ints[engine + E_HOME] + E_KV_FREE]
    if free == ints[engine + E_KV_BLOCKS]:
        return blocks <= free
    margin = ints[engine + E_WATERMARK_BLOCKS]
    reserve = ints[engine + E_RESERVE_BLOCKS]
    if reserve > 0:
        margin += reserve * (running_sequences(world, engine) + 1)
    return blocks + margin <= free


def running_sequences(world: World, engine: int) -> int:
    """Decoding sequences in all lanes of the engine's instance."""
    ints = world.ints
    home = ints[engine + E_HOME]
    running = 0
    for lane in range(home, home + ints[engine + E_LANES] * E_WIDTH, E_WIDTH):
        running += ints[lane + E_RUNNING]
    return running


def growth(world: World, engine: int, first: int, steps: int) -> int:
    """Blocks taken in `steps` steps from `first` steps ahead of E_STEPS on, with the running set as it is."""
    ints = world.ints
    block = ints[engine + E_BLOCK_TOKENS]
    cycles = steps // block
    blocks = cycles * ints[engine + E_RUNNING]
    phases = ints[engine + E_PHASES]
    phase = (ints[engine + E_STEPS] + first) % block
    for _ in range(steps - cycles * block):
        blocks += world.ints[phases + phase]
        phase += 1
        if phase == block:
            phase = 0
    return blocks


def join_running(world: World, engine: int, request: int, context: int) -> None:
    """A sequence with `context` tokens of KV, whose blocks it holds, starts to decode with the next step."""
    ints = world.ints
    steps = ints[engine + E_STEPS]
    ints[request + R_OFFSET] = context - steps
    ints[request + R_FINISH_STEP] = steps + ints[request + R_OUTPUT] - ints[request + R_GENERATED]
    ints[request + R_STATE] = DECODING
    heap_push(world, engine, request)
    ints[engine + E_RUNNING] += 1
    ints[engine + E_CONTEXT] += context
    world.ints[ints[engine + E_PHASES] + (steps - context) % ints[engine + E_BLOCK_TOKENS]] += 1
    latest = ints[engine + E_LATEST]
    ints[request + R_EARLIER] = latest
    ints[request + R_LATER] = -1
    if latest >= 0:
        ints[latest + R_LATER] = request
    ints[engine + E_LATEST] = request


def leave_running(world: World, engine: int, request: int) -> int:
    """A sequence that finished or is preempted gives its slot back; the tokens whose KV it still holds."""
    ints = world.ints
    offset = ints[request + R_OFFSET]
    context = ints[engine + E_STEPS] + offset
    heap_remove(world, engine, request)
    ints[engine + E_RUNNING] -= 1
    ints[engine + E_CONTEXT] -= context
    world.ints[ints[engine + E_PHASES] + (-offset) % ints[engine + E_BLOCK_TOKENS]] -= 1
    earlier = ints[request + R_EARLIER]
    later = ints[request + R_LATER]
    if earlier >= 0:
        ints[earlier + R_LATER] = later
    if later >= 0:
        ints[later + R_EARLIER] = earlier
    else:
        ints[engine + E_LATEST] = earlier
    return context
