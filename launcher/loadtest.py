"""An open-loop load generator: requests leave at their arrival times, whether or not earlier ones have come back.

Latencies count from the time a request was *due*, so that a client that falls behind is not kinder to the server; how
far it fell behind is reported. Prompts are random token ids of the workload's lengths, answers are forced to theirs.
Where the workload names its prompts' blocks, equal blocks are equal tokens, so that a prefix cache finds what it would
find in service; where it only says how many tokens are cached, those are the same in all prompts.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from urllib.parse import urlsplit

from splitplan.catalogs.errors import InputError, Problem, shorten
from splitplan.launcher import http
from splitplan.planner.spec.workload import Requests

TOKEN_IDS = range(100, 8_000)
"""Ordinary words in every vocabulary that matters; no special tokens."""

SHARED_PREFIX_SEED = "prefix"


@dataclass(frozen=True, slots=True)
class Served:
    """What one request met. Times in seconds from when it was due; 0 where it failed."""

    due_s: float
    input_tokens: int
    output_tokens: int  # as answered
    ttft_s: float
    e2e_s: float
    gaps_s: tuple[float, ...]  # between tokens
    lag_s: float  # how late the client sent it
    error: str = ""

    @property
    def tpot_s(self) -> float | None:
        """(E2E − TTFT) / (output tokens − 1); None for a single token."""
        return (self.e2e_s - self.ttft_s) / (self.output_tokens - 1) if self.output_tokens > 1 else None


def replay(
    url: str | Callable[[int], str],
    model: str,
    requests: Requests,
    *,
    seed: int = 0,
    timeout_s: float = 600.0,
    progress: Callable[[int], None] = lambda _: None,
) -> list[Served]:
    """Send `requests` to an OpenAI completions endpoint at their arrival times; returns one result for each.

    `url` may be a function from a prompt's tokens to the endpoint that takes it.
    """
    lengths = (int(tokens) for tokens in requests.input_tokens)
    addresses = [split_url(url if isinstance(url, str) else url(tokens)) for tokens in lengths]
    return asyncio.run(_replay(addresses, model, requests, seed, timeout_s, progress))


def split_url(url: str) -> tuple[str, int, str]:
    """(host, port, path in front of /v1) of an endpoint; InputError for anything but http://host:port/path."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
        parts = urlsplit("")
    if parts.scheme != "http" or not host or parts.query or parts.fragment:
        raise InputError(Problem(f"{shorten(url)!r} is not an endpoint", expected="http://HOST:PORT"))
    return host, port or 80, parts.path.rstrip("/")


async def _replay(
    addresses: Sequence[tuple[str, int, str]],
    model: str,
    requests: Requests,
    seed: int,
    timeout_s: float,
    progress: Callable[[int], None],
) -> list[Served]:
    source = random.Random(seed)
    loop = asyncio.get_running_loop()
    began_s = loop.time() + 0.05
    tasks: list[asyncio.Task[Served]] = []
    for number in range(len(requests)):
        due_s = float(requests.arrival_s[number])
        body = _body(model, prompt_ids(requests, number, source), int(requests.output_tokens[number]))
        await asyncio.sleep(max(0.0, began_s + due_s - loop.time()))
        job = _one(addresses[number], body, began_s, due_s, int(requests.input_tokens[number]), timeout_s)
        tasks.append(asyncio.create_task(job))
        progress(number + 1)
    return await asyncio.gather(*tasks)


def prompt_ids(requests: Requests, number: int, source: random.Random) -> list[int]:
    """Token ids of one prompt: those of its named or shared prefix first, random ones after it."""
    length, prefix = int(requests.input_tokens[number]), requests.prefix
    ids: list[int] = []
    if prefix is not None:
        for block in prefix.hashes[prefix.offsets[number] : prefix.offsets[number + 1]]:
            ids += random.Random(int(block)).choices(TOKEN_IDS, k=prefix.block_tokens)
    else:
        ids = random.Random(SHARED_PREFIX_SEED).choices(TOKEN_IDS, k=int(requests.cached_tokens[number]))
    ids = ids[:length]
    return ids + source.choices(TOKEN_IDS, k=length - len(ids))


def _body(model: str, prompt: Sequence[int], output_tokens: int) -> bytes:
    body = {
        "model": model,
        "prompt": prompt,
        "max_tokens": output_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    return json.dumps(body, separators=(",", ":")).encode()


async def _one(
    address: tuple[str, int, str], body: bytes, began_s: float, due_s: float, input_tokens: int, timeout_s: float
) -> Served:
    loop = asyncio.get_running_loop()
    lag_s = loop.time() - began_s - due_s
    try:
        times_s, output_tokens = await asyncio.wait_for(_stream(address, body), timeout_s)
    except (OSError, asyncio.IncompleteReadError, TimeoutError, ValueError, http.HttpError) as error:
        reason = shorten(error) or type(error).__name__
        return Served(due_s, input_tokens, 0, 0.0, 0.0, (), lag_s, reason)
    first_s, last_s = times_s[0] - began_s - due_s, times_s[-1] - began_s - due_s
    gaps = tuple(later - earlier for earlier, later in pairwise(times_s))
    return Served(due_s, input_tokens, output_tokens, first_s, last_s, gaps, lag_s)


async def _stream(address: tuple[str, int, str], body: bytes) -> tuple[Sequence[float], int]:
    """Send one request; returns the time each token event arrived, and the number of tokens answered."""
    loop = asyncio.get_running_loop()
    host, port, prefix = address
    reader, writer = await http.open_request(host, port, "POST", f"{prefix}/v1/completions", body)
    try:
        head = await http.read_head(reader)
        if head.status != 200:
            raise http.HttpError(
                head.status, f"HTTP {head.status}: {(await reader.read(500)).decode('utf-8', 'replace')}"
            )
        times_s: list[float] = []
        tail, usage, is_done = b"", b"", False
        while data := await reader.read(65536):
            now_s = loop.time()
            *events, tail = (tail + data).split(b"\n\n")
            for event in events:
                at = event.find(b"data:")  # what stands before is a chunk's length
                if event.startswith(b"data: [DONE]", at):
                    is_done = True
                elif b'"choices": []' in event or b'"choices":[]' in event:
                    usage = event[at + 5 :]
                elif at >= 0:
                    times_s.append(now_s)
        if not is_done or not times_s:
            raise ConnectionError("the stream ended before its answer did")
        return times_s, _completion_tokens(usage) or len(times_s)
    finally:
        writer.close()


def _completion_tokens(usage: bytes) -> int:
    try:
        return int(json.loads(usage)["usage"]["completion_tokens"])
    except (ValueError, KeyError, TypeError):
        return 0
