"""The proof that a cluster serves: greedy requests across prefill and decode, compared and counted.

`/health` proves nothing: with unequal block sizes both sides are healthy and answer wrongly. So prompts are sent
through the router and then to one prefill instance alone, whose own KV is right by construction; the answers must
agree, the transfer counters must have moved, and both roles must have worked.
"""

from __future__ import annotations

import random
import re
import time
import urllib.error
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from splitplan.catalogs.errors import LaunchError, Problem, shorten
from splitplan.launcher.mock.router import DECODE_HEADER, PREFILL_HEADER
from splitplan.launcher.state import ClusterState, Process
from splitplan.launcher.web import get, post_json

PROMPT_NUMBERS, ANSWER_TOKENS = 60, 16
MIN_AGREEING_WORDS, MIN_AGREEING_SHARE = 2, 0.5
"""GPU types round differently, so that now and then a right answer parts from another right one; wrong KV agrees on
next to nothing."""

LONE_PROMPTS = 3
METRICS_LAG_S = 15.0
"""Engines publish some counters only now and then."""

TIMEOUT_S = 120.0
DISCOVERY_S = 20.0  # that a Dynamo front end may take to hear of workers that are ready
PARALLEL_REQUESTS = 8
REQUEST_COUNTER = "vllm:request_success_total"
TRANSFER_COUNTER = "vllm:nixl_bytes_transferred_count"
BYTES_COUNTER = "vllm:nixl_bytes_transferred_sum"
FAILED_COUNTER = "vllm:nixl_num_failed_transfers_total"


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """What the probe saw."""

    num_requests: int
    num_agreeing: int | None  # None: this engine's answers cannot be compared (a mocker's are random)
    transfers: int | None  # None: nothing is disaggregated, or the engine does not count
    transferred_bytes: float | None
    pairs: Mapping[tuple[str, str], int] = field(default_factory=dict)  # (prefill, decode) → requests; {}: not told
    same_rack: int | None = None  # of the requests whose pair is known
    problems: tuple[Problem, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether the cluster serves as planned."""
        return not self.problems

    def summary(self) -> str:
        """One line for people."""
        agreeing = f"{self.num_agreeing} of {self.num_requests} answers across prefill and decode agree"
        parts = [f"{self.num_requests} answers, not comparable" if self.num_agreeing is None else agreeing]
        if self.transfers is not None and self.transferred_bytes is not None:
            parts.append(f"{self.transfers} KV transfers, {self.transferred_bytes / 1e6:,.0f} MB")
        if self.same_rack is not None:
            parts.append(f"{self.same_rack} of {sum(self.pairs.values())} pairs in one rack")
        return "; ".join(parts)

    def as_json(self) -> dict[str, object]:
        """Plain data; pairs as a list."""
        pairs = [
            {"prefill": prefill, "decode": decode, "requests": count}
            for (prefill, decode), count in sorted(self.pairs.items())
        ]
        return {
            "passed": self.passed,
            "num_requests": self.num_requests,
            "num_agreeing": self.num_agreeing,
            "transfers": self.transfers,
            "transferred_bytes": self.transferred_bytes,
            "pairs": pairs,
            "same_rack": self.same_rack,
        }


def probe(state: ClusterState, *, num_requests: int = 0, seed: int = 0) -> ProbeReport:
    """Send greedy requests through the cluster and judge the answers, the counters and the pairs.

    Where no instance answers alone, each prompt is sent twice and answers are compared with one another.
    """
    counted = [each for each in state.processes if each.url and each.role != "router"]
    before = {each.name: read_metrics(each.url) for each in counted}
    total = num_requests or max(8, 2 * len(state.processes))
    prompts = make_prompts(total, seed)
    doors = [state.endpoints[number % len(state.endpoints)] for number in range(total)]
    with ThreadPoolExecutor(PARALLEL_REQUESTS) as pool:
        is_dynamo = state.engine.startswith("dynamo")
        answers = list(
            pool.map(lambda door, prompt: _ask(door, state.model, prompt, is_dynamo=is_dynamo), doors, prompts)
        )
    growth = _growth_of(state, counted, before)
    found: list[Problem] = []
    agreeing = None
    if state.extra.get("comparison", "alone") != "none":
        expected, alone = _reference_answers(state, prompts)
        agreeing = sum(_agrees(answer.text, text) for answer, text in zip(answers, expected, strict=True))
        found += [
            *_answer_problems(agreeing, total, _reference(state)),
            *_lone_problems(alone, expected, _reference(state)),
            *_pair_problems(state, prompts, expected),
        ]
    pairs = _named(state, Counter(answer.pair for answer in answers if answer.pair))
    found += [*_work_problems(state, growth), *_transfer_problems(state, growth)]
    decode = [growth[each.name] for each in state.of_role("decode")]
    counts = any(TRANSFER_COUNTER in values for values in decode)
    return ProbeReport(
        num_requests=total,
        num_agreeing=agreeing,
        transfers=int(sum(values.get(TRANSFER_COUNTER, 0) for values in decode)) if counts else None,
        transferred_bytes=sum(values.get(BYTES_COUNTER, 0.0) for values in decode) if counts else None,
        pairs=dict(pairs),
        same_rack=_same_rack(state, pairs) if pairs else None,
        problems=tuple(found),
    )


@dataclass(frozen=True, slots=True)
class _Answer:
    text: str
    pair: tuple[str, str] | None
    transfer: Mapping[str, object] | None = None  # where the KV waits


def make_prompts(count: int, seed: int = 0) -> list[str]:
    """Counting: what comes next is beyond doubt for any model. Each begins with a word of its own, so that no prefix
    cache answers for the transfer.
    """
    source = random.Random(seed)
    numbers = " ".join(f"{number}," for number in range(1, PROMPT_NUMBERS + 1))
    return [f"Exercise {source.getrandbits(48):012x}. Count on: {numbers}" for _ in range(count)]


def _growth_of(
    state: ClusterState, counted: Sequence[Process], before: Mapping[str, Mapping[str, float]]
) -> dict[str, dict[str, float]]:
    """What the counters grew by; where KV should have moved, they get time to say so."""
    deadline_s = time.monotonic() + METRICS_LAG_S
    while True:
        growth = {each.name: _growth(before[each.name], read_metrics(each.url)) for each in counted}
        decode = [growth[each.name] for each in state.of_role("decode")]
        is_seen = not any(decode) or any(values.get(TRANSFER_COUNTER, 0) for values in decode)
        if is_seen or time.monotonic() >= deadline_s or not state.engine.startswith(("vllm", "mock")):
            return growth
        time.sleep(0.5)


def _post(url: str, body: Mapping[str, object], *, patience_s: float) -> tuple[dict[str, Any], Mapping[str, str]]:
    """POST, again while a front end that answers "ready" has yet to hear of its workers (HTTP 503)."""
    give_up_s = time.monotonic() + patience_s
    while True:
        try:
            return post_json(url, body, timeout_s=TIMEOUT_S)
        except urllib.error.HTTPError as error:
            if error.code != 503 or time.monotonic() >= give_up_s:
                raise
        time.sleep(0.5)


def _ask(
    url: str,
    model: str,
    prompt: str,
    *,
    is_dynamo: bool = False,
    transfer: Mapping[str, object] | None = None,
    max_tokens: int = ANSWER_TOKENS,
) -> _Answer:
    body: dict[str, object] = {
        "model": model,
        "prompt": prompt,
        "max_tokens": max_tokens,
        "temperature": 0,
        "seed": 1,
        "ignore_eos": True,
    }
    if transfer is not None:
        body["kv_transfer_params"] = dict(transfer)
    if is_dynamo:
        body["nvext"] = {"extra_fields": ["worker_id"]}
    try:
        document, headers = _post(f"{url}/v1/completions", body, patience_s=DISCOVERY_S if is_dynamo else 0.0)
        workers = (document.get("nvext") or {}).get("worker_id") or {}
        prefill = headers.get(PREFILL_HEADER) or str(workers.get("prefill_worker_id") or "")
        decode = headers.get(DECODE_HEADER) or str(workers.get("decode_worker_id") or "")
        text, pair = str(document["choices"][0]["text"]), (prefill, decode) if prefill and decode else None
        return _Answer(text, pair, document.get("kv_transfer_params"))
    except urllib.error.HTTPError as error:
        detail = shorten(error.read()[:500].decode("utf-8", "replace"), 200)
        raise LaunchError(Problem(f"the probe's request failed with HTTP {error.code}: {detail}", url)) from None
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        raise LaunchError(Problem(f"the probe's request failed: {shorten(error)}", url)) from None


def read_metrics(url: str) -> dict[str, float]:
    """Prometheus counters of an instance, summed over labels; {} when it has none."""
    try:
        text = get(f"{url}/metrics", timeout_s=10).decode("utf-8", "replace")
    except (OSError, ValueError):
        return {}
    totals: dict[str, float] = {}
    for name, value in re.findall(r"^([A-Za-z_:][\w:]*)(?:\{[^\n]*\})? ([-+.\deE]+|NaN)$", text, re.M):
        totals[name] = totals.get(name, 0.0) + float(value)
    return totals


def _growth(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    return {name: value - before.get(name, 0.0) for name, value in after.items()}


def _agrees(answer: str, expected: str) -> bool:
    """Equal, or equal for long enough to exclude wrong KV (words stand for tokens)."""
    common = 0
    for ours, theirs in zip(answer.split(), expected.split(), strict=False):
        if ours != theirs:
            break
        common += 1
    return answer == expected or common >= MIN_AGREEING_WORDS


def _reference(state: ClusterState) -> Process | None:
    """The instance whose answers are right by construction; None where none answers alone."""
    workers = state.of_role("prefill") or state.of_role("colocated")
    return workers[0] if workers and state.extra.get("comparison", "alone") == "alone" else None


def _reference_answers(state: ClusterState, prompts: Sequence[str]) -> tuple[list[str], dict[str, list[str]]]:
    """(what each prompt should answer, what each instance alone answers to the first few)."""
    reference = _reference(state)
    door = reference.url if reference else state.endpoints[0]
    workers = [each for each in state.processes if each.url and each.role != "router"] if reference else []
    with ThreadPoolExecutor(PARALLEL_REQUESTS) as pool:
        expected = list(pool.map(lambda prompt: _ask(door, state.model, prompt).text, prompts))
        asked = [(each, prompt) for each in workers for prompt in prompts[:LONE_PROMPTS]]
        texts = list(pool.map(lambda each: _ask(each[0].url, state.model, each[1]).text, asked))
    alone: dict[str, list[str]] = {each.name: [] for each in workers}
    for (each, _), text in zip(asked, texts, strict=True):
        alone[each.name].append(text)
    return expected, alone


def _answer_problems(agreeing: int, total: int, reference: Process | None) -> list[Problem]:
    if agreeing >= MIN_AGREEING_SHARE * total:
        return []
    other = f"what {reference.name} alone answers: KV arrives wrong" if reference else "the same prompt's second answer"
    return [
        Problem(
            f"{total - agreeing} of {total} answers differ from {other}",
            expected="equal block size, KV dtype, dtype and attention backend on both sides",
            next_step="planner logs PLAN; then launch again with --keep to look at one pair",
        )
    ]


def _lone_problems(
    alone: Mapping[str, Sequence[str]], expected: Sequence[str], reference: Process | None
) -> list[Problem]:
    """An instance that is healthy and answers wrongly, whichever requests the router gave it."""
    if reference is None:
        return []
    wrong = [
        name for name, texts in alone.items() if sum(map(_agrees, texts, expected)) < MIN_AGREEING_SHARE * len(texts)
    ]
    return [
        Problem(
            f"{name} alone answers otherwise than {reference.name} alone",
            expected="the same model, dtype and version on every instance",
            next_step=f"planner logs PLAN {name}",
        )
        for name in wrong
    ]


def _pair_problems(state: ClusterState, prompts: Sequence[str], expected: Sequence[str]) -> list[Problem]:
    """Each decode instance fed by a prefill instance without the router: one wrong among many is found by name."""
    prefill, decode = state.of_role("prefill"), state.of_role("decode")
    if _reference(state) is None or not prefill:
        return []
    pairs = [(prefill[number % len(prefill)], each) for number, each in enumerate(decode)]
    asked = [(pair, prompt) for pair in pairs for prompt in prompts[:LONE_PROMPTS]]
    with ThreadPoolExecutor(PARALLEL_REQUESTS) as pool:
        texts = list(pool.map(lambda each: _across(each[0][0], each[0][1], state.model, each[1]), asked))
    problems = []
    for number, (source, sink) in enumerate(pairs):
        found = texts[number * LONE_PROMPTS : (number + 1) * LONE_PROMPTS]
        if sum(map(_agrees, found, expected)) < MIN_AGREEING_SHARE * len(found):
            problems.append(
                Problem(
                    f"KV from {source.name} arrives wrong at {sink.name}",
                    expected="equal block size, KV dtype, dtype and attention backend on both sides",
                    next_step=f"planner logs PLAN {source.name} {sink.name}",
                )
            )
    return problems


def _across(prefill: Process, decode: Process, model: str, prompt: str) -> str:
    """One answer through a pair, as a router does it: prefill with the promise of a decode, decode with its reply."""
    promise: dict[str, object] = {"do_remote_decode": True, "do_remote_prefill": False}
    promise |= dict.fromkeys(("remote_engine_id", "remote_block_ids", "remote_host", "remote_port"))
    held = _ask(prefill.url, model, prompt, transfer=promise, max_tokens=1).transfer
    return "" if held is None else _ask(decode.url, model, prompt, transfer=held).text  # "": it kept nothing


def _work_problems(state: ClusterState, growth: Mapping[str, Mapping[str, float]]) -> list[Problem]:
    """Each role must have been asked: a router that forgets one still answers."""
    problems = []
    for role in ("prefill", "decode", "colocated"):
        workers = state.of_role(role)
        counted = [growth[each.name][REQUEST_COUNTER] for each in workers if REQUEST_COUNTER in growth[each.name]]
        if counted and sum(counted) == 0:
            problems.append(
                Problem(
                    f"{role} instances handled 0 requests: the router passes them by",
                    next_step="check the router's worker lists: planner logs PLAN router",
                )
            )
    return problems


def _transfer_problems(state: ClusterState, growth: Mapping[str, Mapping[str, float]]) -> list[Problem]:
    decode = [growth[each.name] for each in state.of_role("decode")]
    problems = []
    failed = sum(values.get(FAILED_COUNTER, 0.0) for values in decode)
    if failed:
        problems.append(Problem(f"{failed:g} KV transfers failed", next_step="planner logs PLAN"))
    counted = [values[TRANSFER_COUNTER] for values in decode if TRANSFER_COUNTER in values]
    if counted and sum(counted) == 0:
        problems.append(
            Problem(
                "no KV was transferred: decode instances computed the prompts themselves", next_step="planner logs PLAN"
            )
        )
    return problems


def _named(state: ClusterState, pairs: Mapping[tuple[str, str], int]) -> dict[tuple[str, str], int]:
    """Pairs by instance name: Dynamo tells numbers, which workers write into their own logs and no others."""
    names = {each.instance for each in state.processes}
    unknown = {part for pair in pairs for part in pair} - names
    if not unknown:
        return dict(pairs)
    logs = {each.instance: _text(Path(each.log)) for each in state.processes if each.instance}
    found = {number: name for number in unknown for name, text in logs.items() if number in text}
    named: Counter[tuple[str, str]] = Counter()
    for (prefill, decode), count in pairs.items():
        named[found.get(prefill, prefill), found.get(decode, decode)] += count
    return dict(named)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _same_rack(state: ClusterState, pairs: Mapping[tuple[str, str], int]) -> int:
    racks = {each.instance: each.rack for each in state.processes if each.instance}
    return sum(count for (prefill, decode), count in pairs.items() if racks.get(prefill) == racks.get(decode))
