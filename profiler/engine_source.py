"""An engine's own step times, measured from outside through its OpenAI endpoint: no access to its process is needed.

Prefill: one request alone, of a length, asked for one token; the time until it arrives is the prefill step, with the
way through HTTP and scheduler, which the shortest request shows by itself. Decode: `batch` requests of one context
length that run together; the time between tokens, while all of them are decoding, is the decode step. Every prompt is
of random token ids, so that no prefix cache can answer it; the engine's own counters say when one did, or when a
request was preempted, and the sample is then marked.
"""

from __future__ import annotations

import csv
import io
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any, Literal

from splitplan.catalogs.errors import Problem, ProfileError
from splitplan.profiler.engine_http import EngineClient, Stream
from splitplan.profiler.timer import summarise

LENGTHS = (1, 128, 512, 1024, 2048, 4096, 8192)
BATCHES = (1, 2, 4, 8, 16, 32, 64)
CONTEXTS = (128, 1024, 4096)
REPETITIONS = 5
DECODE_TOKENS = 48  # per request; the first ones overlap with other prefills and are not counted
MIN_STEPS = 8  # between tokens, with the whole batch decoding
PROMPT_TOKEN_IDS = (100, 20_000)  # ordinary words in the vocabulary of every model that is served
COUNTERS = {
    "preempted": ("vllm:num_preemptions_total", "sglang:num_retracted_reqs_total"),
    "prefix cache hit": ("vllm:prefix_cache_hits_total", "sglang:cached_tokens_total"),
}


@dataclass(frozen=True, slots=True)
class Sample:
    """One measured step. `tokens` is the prompt's length for a prefill, the context for a decode."""

    phase: Literal["prefill", "decode"]
    batch: int
    tokens: int
    median_s: float | None
    p20_s: float | None = None
    p80_s: float | None = None
    repetitions: int = 0
    remark: str = ""  # why there is no time, or why it is doubtful


def measure_engine(
    client: EngineClient,
    *,
    lengths: Sequence[int] = LENGTHS,
    batches: Sequence[int] = BATCHES,
    contexts: Sequence[int] = CONTEXTS,
    budget_s: float | None = None,
    seed: int = 0,
    show: Callable[[Sample], None] = lambda sample: None,
) -> list[Sample]:
    """Prefills at batch 1 over `lengths`, then decodes over `batches` × `contexts`, while the budget lasts.

    The engine must be idle otherwise: requests of others are in the times. Raises ProfileError where nothing answers.
    """
    client.check()
    deadline = None if budget_s is None else time.monotonic() + budget_s
    numbers = random.Random(seed)
    samples: list[Sample] = []
    jobs = [("prefill", 1, length) for length in lengths]
    jobs += [("decode", batch, context) for context in contexts for batch in batches]
    for phase, batch, tokens in jobs:
        if deadline is not None and time.monotonic() > deadline:
            break
        before = client.counters(COUNTERS)
        measure = _measure_prefill if phase == "prefill" else _measure_decode
        sample = measure(client, batch, tokens, numbers)
        sample = _with_remarks(sample, before, client.counters(COUNTERS))
        samples.append(sample)
        show(sample)
    return samples


def _measure_prefill(client: EngineClient, batch: int, tokens: int, numbers: random.Random) -> Sample:
    seconds = []
    for _ in range(REPETITIONS + 1):
        stream = client.complete(_prompt(tokens, numbers), 1)
        if stream.error or not stream.arrivals_s:
            return Sample("prefill", batch, tokens, None, remark=stream.error or "no token came back")
        seconds.append(stream.arrivals_s[0] - stream.sent_s)
    timing = summarise(seconds[1:])  # the first of a length may compile or capture
    return Sample("prefill", 1, tokens, timing.median_s, timing.p20_s, timing.p80_s, timing.repetitions)


def _measure_decode(client: EngineClient, batch: int, tokens: int, numbers: random.Random) -> Sample:
    streams: list[Stream] = []
    lock = threading.Lock()

    def run(prompt: list[int], new_tokens: int) -> None:
        stream = client.complete(prompt, new_tokens)
        with lock:
            streams.append(stream)

    wanted = DECODE_TOKENS + batch  # others' prefills delay the first: it must still be decoding when the last starts
    threads = [threading.Thread(target=run, args=(_prompt(tokens, numbers), wanted)) for _ in range(batch)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    errors = [stream.error for stream in streams if stream.error]
    if errors:
        return Sample("decode", batch, tokens, None, remark=errors[0])
    gaps = gaps_while_all_decode(streams)
    if len(gaps) < MIN_STEPS:
        return Sample("decode", batch, tokens, None, remark=f"the engine did not run {batch} sequences at once")
    timing = summarise(gaps)
    per_event = sum(stream.tokens for stream in streams) / sum(len(stream.arrivals_s) for stream in streams)
    remark = f"{per_event:.1f} tokens arrive at a time" if per_event > 1.2 else ""
    return Sample("decode", batch, tokens, timing.median_s, timing.p20_s, timing.p80_s, len(gaps), remark)


def gaps_while_all_decode(streams: Sequence[Stream]) -> list[float]:
    """Seconds between tokens of every stream, from the last one's second token to the first one's end.

    A stream's first gap holds its own prefill's end; what lies outside ran with fewer sequences, or beside a prefill.
    """
    if any(len(stream.arrivals_s) < 3 for stream in streams):
        return []
    begin = max(stream.arrivals_s[1] for stream in streams)
    end = min(stream.arrivals_s[-1] for stream in streams)
    gaps = []
    for stream in streams:
        inside = [at for at in stream.arrivals_s if begin <= at <= end]
        gaps += [later - earlier for earlier, later in pairwise(inside)]
    return gaps


def _with_remarks(sample: Sample, before: dict[str, float], after: dict[str, float]) -> Sample:
    grown = [name for name, value in after.items() if value > before.get(name, 0.0)]
    remarks = [remark for remark in (sample.remark, *grown) if remark]
    return replace(sample, remark="; ".join(remarks))


def _prompt(tokens: int, numbers: random.Random) -> list[int]:
    return [numbers.randrange(*PROMPT_TOKEN_IDS) for _ in range(max(tokens, 1))]


CSV_COLUMNS = (
    *("id", "source", "date", "gpu", "num_gpus", "engine", "engine_version", "mode", "model", "dtype", "kv_dtype"),
    *("tp", "pp", "isl", "osl", "batch_or_concurrency", "ttft_ms_p50", "tpot_ms_p50", "notes", "source_group"),
)


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What the endpoint cannot say about itself."""

    gpu: str
    tp: int
    pp: int = 1
    dtype: str = ""
    kv_dtype: str = ""
    model: str = ""  # catalog name, where the served name is not one
    date: str = ""


def csv_rows(samples: Sequence[Sample], client: EngineClient, facts: EngineFacts) -> list[dict[str, str]]:
    """Rows as `planner calibrate` reads them: samples with a time and no remark."""
    good = [sample for sample in samples if sample.median_s is not None and not sample.remark]
    if not good:
        remarks = sorted({sample.remark for sample in samples if sample.remark})
        problem = Problem("not one step could be measured", client.url, next_step="; ".join(remarks)[:300])
        raise ProfileError(problem)
    return [_csv_row(number, sample, client, facts) for number, sample in enumerate(good, 1)]


def csv_text(rows: Sequence[dict[str, str]]) -> str:
    """Rows with their header."""
    text = io.StringIO()
    writer = csv.DictWriter(text, CSV_COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def sample_document(sample: Sample) -> dict[str, Any]:
    """A sample as JSON data."""
    return asdict(sample)


def _csv_row(number: int, sample: Sample, client: EngineClient, facts: EngineFacts) -> dict[str, str]:
    assert sample.median_s is not None
    milliseconds = f"{1e3 * sample.median_s:.4f}"
    is_prefill = sample.phase == "prefill"
    decoded = DECODE_TOKENS + sample.batch
    row = {
        "id": f"{sample.phase}-{number}",
        "source": "measured through the engine's endpoint",
        "date": facts.date,
        "gpu": facts.gpu,
        "num_gpus": str(facts.tp * facts.pp),
        "engine": client.engine,
        "engine_version": client.version,
        "mode": "online-concurrency",
        "model": facts.model or client.model,
        "dtype": facts.dtype,
        "kv_dtype": facts.kv_dtype,
        "tp": str(facts.tp),
        "pp": str(facts.pp),
        "isl": str(sample.tokens),
        "osl": str(1 if is_prefill else decoded),
        "batch_or_concurrency": str(sample.batch),
        "ttft_ms_p50": milliseconds if is_prefill else "",
        "tpot_ms_p50": "" if is_prefill else milliseconds,
        "notes": f"p20 {1e3 * (sample.p20_s or 0):.4f} ms, p80 {1e3 * (sample.p80_s or 0):.4f} ms",
        "source_group": f"{client.engine} on {facts.gpu}",
    }
    return {name: row[name] for name in CSV_COLUMNS}
