"""Continuous batching with chunked prefill, as the planned engines do it, on planned step times.

A step takes one token for every decoding sequence and fills the rest of the token budget with prefill chunks, first
come first served. With pipeline stages several steps are under way at once: the next one enters the first stage when
that is free, and waits at each further stage for the step before it, however short it is itself. A sequence decodes in
one of them at a time; the chunks of its prompt may follow each other. A sequence is admitted when a slot is free and
the KV cache has room for all it may grow to, so that nothing is ever preempted.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from splitplan.launcher.mock.timing import StepTimes

LATE_S = 0.05
"""A loop this late (a busy machine) starts its next step now instead of catching up."""


@dataclass(slots=True, eq=False)
class Sequence:
    """One request inside the engine."""

    prompt_tokens: int
    max_tokens: int
    emit: Callable[[int, bool], None]  # (position, last)
    is_gone: Callable[[], bool]
    done_tokens: int = 0  # of the prompt, begun; equal to prompt_tokens where the KV came from elsewhere
    answered: int = 0
    remote_kv: bool = False  # its first token comes out of a decode step

    @property
    def kv_tokens(self) -> int:
        """What it may grow to."""
        return self.prompt_tokens + self.max_tokens

    @property
    def is_decoding(self) -> bool:
        """Past its prompt."""
        return self.done_tokens == self.prompt_tokens and (self.answered > 0 or self.remote_kv)


class Scheduler:
    """The step loop of one instance."""

    def __init__(
        self,
        times: StepTimes,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        kv_capacity_tokens: int,
        num_stages: int = 1,
    ) -> None:
        self.times = times
        self.num_stages = num_stages
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.kv_capacity_tokens = kv_capacity_tokens or 2**62
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.steps = 0
        self._in_flight: set[Sequence] = set()
        self._wake = asyncio.Event()
        self._between: asyncio.Event | None = None  # set at the end of a step, for those who wait for it
        self._stage_free_s = [0.0] * num_stages
        self._arrived_s = 0.0  # of the latest sequence: no step that may hold it began before

    def fits(self, sequence: Sequence) -> bool:
        """Whether the KV cache could hold this sequence alone."""
        return sequence.kv_tokens <= self.kv_capacity_tokens

    def submit(self, sequence: Sequence) -> None:
        """Queue a sequence."""
        self.waiting.append(sequence)
        self._arrived_s = asyncio.get_running_loop().time()
        self._wake.set()

    async def boundary(self) -> None:
        """Until the step under way ends: only between steps does an engine ask for KV that lies elsewhere."""
        if self.running:
            self._between = self._between or asyncio.Event()
            await self._between.wait()

    async def run(self) -> None:
        """Step for ever: the next step is made up when the first stage is free."""
        loop = asyncio.get_running_loop()
        free_s = loop.time()
        while True:
            self._drop_gone()
            self._admit()
            decoding, chunks = self._plan_step()
            if not decoding and not chunks:
                self._wake.clear()
                await self._wake.wait()
                free_s = max(free_s, loop.time())
                continue
            now_s = loop.time()
            start_s = max(free_s, self._arrived_s) if now_s - free_s < LATE_S else now_s
            finish_s = self._pass_stages(start_s, self._stage_seconds(decoding, chunks))
            free_s = self._stage_free_s[0]
            finished = self._begin(chunks)
            self._in_flight.update(decoding)
            self.steps += 1
            if self.num_stages > 1:
                loop.call_at(finish_s, self._finish_step, decoding, finished)
            await asyncio.sleep(max(0.0, free_s - loop.time()))
            if self.num_stages == 1:
                self._finish_step(decoding, finished)

    def _pass_stages(self, start_s: float, stage_s: float) -> float:
        """When a step that starts now leaves the last stage; each stage takes one step at a time, in order."""
        end_s = start_s
        for stage, free_s in enumerate(self._stage_free_s):
            end_s = max(end_s, free_s) + stage_s
            self._stage_free_s[stage] = end_s
        return end_s

    def _admit(self) -> None:
        held = sum(sequence.kv_tokens for sequence in self.running)
        while self.waiting and len(self.running) < self.max_num_seqs:
            if held + self.waiting[0].kv_tokens > self.kv_capacity_tokens and self.running:
                break
            sequence = self.waiting.popleft()
            held += sequence.kv_tokens
            self.running.append(sequence)

    def _plan_step(self) -> tuple[list[Sequence], list[tuple[Sequence, int]]]:
        free = [sequence for sequence in self.running if sequence not in self._in_flight]
        decoding = [sequence for sequence in free if sequence.is_decoding]
        budget = max(1, self.max_num_batched_tokens - len(decoding))
        chunks = []
        for sequence in free:
            left = sequence.prompt_tokens - sequence.done_tokens
            if left > 0 and budget > 0:
                chunks.append((sequence, min(left, budget)))
                budget -= min(left, budget)
        return decoding, chunks

    def _stage_seconds(self, decoding: list[Sequence], chunks: list[tuple[Sequence, int]]) -> float:
        context = sum(sequence.prompt_tokens + sequence.answered for sequence in decoding) / max(1, len(decoding))
        parts = [(each.done_tokens, new) for each, new in chunks]
        return self.times.stage_s(len(decoding), context, parts, self.num_stages)

    @staticmethod
    def _begin(chunks: list[tuple[Sequence, int]]) -> list[Sequence]:
        """Count the chunks as begun; returns the sequences whose prompt ends with this step."""
        for sequence, new in chunks:
            sequence.done_tokens += new
        return [sequence for sequence, _ in chunks if sequence.done_tokens == sequence.prompt_tokens]

    def _finish_step(self, decoding: list[Sequence], finished: list[Sequence]) -> None:
        self._in_flight.difference_update(decoding)
        self._wake.set()
        for sequence in (*decoding, *finished):
            position, sequence.answered = sequence.answered, sequence.answered + 1
            with contextlib.suppress(ConnectionError):
                sequence.emit(position, sequence.answered == sequence.max_tokens)
        self.running = [sequence for sequence in self.running if sequence.answered < sequence.max_tokens]
        if self._between is not None:
            self._between.set()
            self._between = None

    def _drop_gone(self) -> None:
        self.running = [sequence for sequence in self.running if not sequence.is_gone()]
        if self.waiting and self.waiting[0].is_gone():
            self.waiting = deque(sequence for sequence in self.waiting if not sequence.is_gone())
