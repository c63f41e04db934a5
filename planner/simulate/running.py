"""KV blocks and the set of decoding sequences of an engine. Part of the hot loop: runs as is and compiled.

A decoding sequence holds c = E_STEPS + R_OFFSET tokens and ⌈c / block⌉ blocks. It takes a block in every step that
starts with c ≡ 0 (mod block), so E_PHASES counts sequences by the step, modulo the block, in which they do.

Layers with a window of w tokens keep only the blocks that the next token still sees (vLLM's hybrid KV cache manager).
Memory is counted in pages then: a block has E_FULL_PAGES in the layers that keep every token and E_WINDOW_PAGES in the
others. A step that starts with c tokens frees what lies before c − w + 1: its first block with c = w − 1 + block, which
E_CROSSING awaits, and another every `block` steps from then on, which E_LEAVING counts as E_PHASES does.
"""

from __future__ import annotations

from splitplan.planner.simulate.layout import (
    DECODING,
    E_ARRIVING,
    E_BLOCK_TOKENS,
    E_CONTEXT,
    E_CROSSING,
    E_CROSSING_SIZE,
    E_FULL_PAGES,
    E_HOME,
    E_KV_FREE,
    E_KV_PAGES,
    E_LANES,
    E_LATEST,
    E_LEAVING,
    E_PHASES,
    E_PROMPT_BLOCKS,
    E_RESERVE_PAGES,
    E_RUNNING,
    E_SEQUENCE_PAGES,
    E_SLOW,
    E_STEPS,
    E_WATERMARK_PAGES,
    E_WIDTH,
    E_WINDOW_PAGES,
    G_WINDOW,
    R_EARLIER,
    R_FINISH_STEP,
    R_GENERATED,
    R_LATER,
    R_LIMIT,
    R_OFFSET,
    R_OUTPUT,
    R_SLOW_GAPS,
    R_STATE,
    World,
)
from splitplan.planner.simulate.queues import heap_push, heap_remove


def blocks_for(world: World, engine: int, tokens: int) -> int:
    """KV blocks that hold `tokens`."""
    block = world.ints[engine + E_BLOCK_TOKENS]
    return (tokens + block - 1) // block


def prompt_pages(world: World, engine: int, tokens: int) -> int:
    """KV pages of a prompt from admission to the end of its prefill: with windows, the most that it holds at once."""
    ints = world.ints
    blocks = blocks_for(world, engine, tokens)
    pages = ints[engine + E_SEQUENCE_PAGES] + blocks * ints[engine + E_FULL_PAGES]
    if ints[engine + E_WINDOW_PAGES] > 0:
        pages += min(blocks, ints[engine + E_PROMPT_BLOCKS]) * ints[engine + E_WINDOW_PAGES]
    return pages


def held_pages(world: World, engine: int, tokens: int) -> int:
    """KV pages of a sequence that has `tokens` and has not begun its next step."""
    ints = world.ints
    blocks = blocks_for(world, engine, tokens)
    pages = ints[engine + E_SEQUENCE_PAGES] + blocks * ints[engine + E_FULL_PAGES]
    if ints[engine + E_WINDOW_PAGES] > 0:
        left = max(0, tokens - ints[G_WINDOW]) // ints[engine + E_BLOCK_TOKENS]
        pages += (blocks - left) * ints[engine + E_WINDOW_PAGES]
    return pages


def step_pages(world: World, engine: int, step: int) -> int:
    """Pages that step number `step` takes, less what leaves the window with it; none of the steps before it may be open
    that lies a whole block or more before it."""
    ints = world.ints
    phase = step % ints[engine + E_BLOCK_TOKENS]
    pages = ints[ints[engine + E_PHASES] + phase] * (ints[engine + E_FULL_PAGES] + ints[engine + E_WINDOW_PAGES])
    if ints[engine + E_WINDOW_PAGES] > 0:
        leaving = ints[ints[engine + E_LEAVING] + phase]
        leaving += ints[ints[engine + E_CROSSING] + step % ints[engine + E_CROSSING_SIZE]]
        pages -= leaving * ints[engine + E_WINDOW_PAGES]
    return pages


def cross_windows(world: World, engine: int, step: int) -> None:
    """Step number `step` is taken: sequences whose first block left the window with it go on to lose one per block."""
    ints = world.ints
    if ints[engine + E_WINDOW_PAGES] > 0:
        slot = ints[engine + E_CROSSING] + step % ints[engine + E_CROSSING_SIZE]
        world.ints[ints[engine + E_LEAVING] + step % ints[engine + E_BLOCK_TOKENS]] += ints[slot]
        ints[slot] = 0


def may_take(world: World, engine: int, pages: int) -> bool:
    """Whether a new sequence may take `pages`: an empty engine only has to hold it, a busy one keeps its margins."""
    ints = world.ints
    free = ints[ints[engine + E_HOME] + E_KV_FREE]
    if free == ints[engine + E_KV_PAGES]:
        return pages <= free
    margin = ints[engine + E_WATERMARK_PAGES]
    reserve = ints[engine + E_RESERVE_PAGES]
    if reserve > 0:
        arriving = ints[ints[engine + E_HOME] + E_ARRIVING]
        margin += reserve * (running_sequences(world, engine) + arriving + 1)
    return pages + margin <= free


def running_sequences(world: World, engine: int) -> int:
    """Decoding sequences in all lanes of the engine's instance."""
    ints = world.ints
    home = ints[engine + E_HOME]
    running = 0
    for lane in range(home, home + ints[engine + E_LANES] * E_WIDTH, E_WIDTH):
        running += ints[lane + E_RUNNING]
    return running


def take_steps(world: World, engine: int, first: int, steps: int) -> int:
    """Pages taken in `steps` steps from `first` steps ahead of E_STEPS on, with the running set as it is."""
    ints = world.ints
    if ints[engine + E_WINDOW_PAGES] > 0:
        pages = 0
        for step in range(ints[engine + E_STEPS] + first, ints[engine + E_STEPS] + first + steps):
            pages += step_pages(world, engine, step)
            cross_windows(world, engine, step)
        return pages
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
    return blocks * ints[engine + E_FULL_PAGES]


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
    if ints[engine + E_WINDOW_PAGES] > 0:
        _count_window(world, engine, context - steps, 1)
    if ints[request + R_LIMIT] >= 0:
        ints[request + R_SLOW_GAPS] -= ints[ints[engine + E_SLOW] + ints[request + R_LIMIT]]
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
    if ints[engine + E_WINDOW_PAGES] > 0:
        _count_window(world, engine, offset, -1)
    add_slow_steps(world, engine, request)
    earlier = ints[request + R_EARLIER]
    later = ints[request + R_LATER]
    if earlier >= 0:
        ints[earlier + R_LATER] = later
    if later >= 0:
        ints[later + R_EARLIER] = earlier
    else:
        ints[engine + E_LATEST] = earlier
    return context


def add_slow_steps(world: World, engine: int, request: int) -> None:
    """A sequence leaves: of the engine's steps since it joined, those longer than its limit were its own gaps."""
    ints = world.ints
    if ints[request + R_LIMIT] >= 0:
        ints[request + R_SLOW_GAPS] += ints[ints[engine + E_SLOW] + ints[request + R_LIMIT]]


def _count_window(world: World, engine: int, offset: int, change: int) -> None:
    """Count a sequence in or out, where its blocks leave the window: for the first time yet to come, or already."""
    ints = world.ints
    block = ints[engine + E_BLOCK_TOKENS]
    first_step = ints[G_WINDOW] - 1 + block - offset
    if first_step >= ints[engine + E_STEPS]:
        world.ints[ints[engine + E_CROSSING] + first_step % ints[engine + E_CROSSING_SIZE]] += change
    else:
        world.ints[ints[engine + E_LEAVING] + first_step % block] += change
