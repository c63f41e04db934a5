"""A mock engine: the OpenAI completions API, streamed, with prefill, KV transfer and decode at the planned times.

    python -m splitplan.launcher.mock.engine --config '{"name": "decode-0", "role": "decode", …}'

It speaks vLLM's side of the contract: `kv_transfer_params` in requests and replies, `/health`, `/v1/models`, and the
NIXL counters under their names in `/metrics`. It computes nothing: answers are derived from the KV it was given.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from splitplan.launcher import http
from splitplan.launcher.mock.kv import KvStore, answer_token, kv_digest, prompt_tokens, pull
from splitplan.launcher.mock.scheduler import Scheduler, Sequence
from splitplan.launcher.mock.timing import StepTimes

DEFAULT_MAX_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Faults:
    """What may be wrong with an instance on purpose."""

    never_ready: bool = False
    start_delay_s: float = 0.0
    wrong_answers: bool = False
    exit_after_requests: int = 0  # 0: never
    exit_after_s: float = 0.0  # 0: never
    ignore_sigterm: bool = False
    log_bytes_per_request: int = 0


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """One instance."""

    name: str
    role: str
    host: str
    port: int
    kv_port: int
    model: str
    block_tokens: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    kv_capacity_tokens: int
    kv_bytes_per_token: float
    num_stages: int
    timing: Mapping[str, Any]
    transfer: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # prefill → (base s, s per token)
    faults: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Counters:
    """What /metrics reports."""

    prompt_tokens: int = 0
    generation_tokens: int = 0
    requests: int = 0
    transfers: int = 0
    transferred_bytes: float = 0.0
    transfer_s: float = 0.0
    failed_transfers: int = 0


class MockEngine:
    """One instance: HTTP in front, a step loop behind."""

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.faults = Faults(**config.faults)
        self.store = KvStore(config.name, config.block_tokens)
        self.counters = Counters()
        self.is_ready = False
        self.scheduler = Scheduler(
            StepTimes.from_json(config.timing),
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            kv_capacity_tokens=config.kv_capacity_tokens,
            num_stages=config.num_stages,
        )

    async def run(self) -> None:
        """Serve until cancelled."""
        server = await http.serve(self.handle, self.config.host, self.config.port)
        tasks = [asyncio.create_task(self.scheduler.run())]
        if self.config.role == "prefill":
            kv_server = await asyncio.start_server(self.store.connected, self.config.host, self.config.kv_port)
            tasks.append(asyncio.create_task(kv_server.serve_forever()))
        _log(f"{self.config.name} ({self.config.role}) listens on {self.config.host}:{self.config.port}")
        if self.faults.exit_after_s:
            asyncio.get_running_loop().call_later(self.faults.exit_after_s, _exit_as_asked)
        if self.faults.ignore_sigterm:
            asyncio.get_running_loop().remove_signal_handler(signal.SIGTERM)
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        await asyncio.sleep(self.faults.start_delay_s)
        self.is_ready = not self.faults.never_ready
        async with server:
            await asyncio.gather(server.serve_forever(), *tasks)

    async def handle(self, request: http.Request, writer: asyncio.StreamWriter) -> None:
        """One HTTP request."""
        path = request.path
        if path == "/health":
            http.send_text(writer, "")
        elif path == "/metrics":
            http.send_text(writer, self.metrics())
        elif path == "/v1/models":
            if not self.is_ready:
                raise http.HttpError(503, "still loading")
            http.send_json(writer, {"object": "list", "data": [{"id": self.config.model, "object": "model"}]})
        elif path in ("/v1/completions", "/v1/chat/completions") and request.method == "POST":
            await self.complete(request.json(), writer, is_chat=path.endswith("chat/completions"))
        else:
            raise http.HttpError(404, f"no {path} here")

    async def complete(self, body: Mapping[str, Any], writer: asyncio.StreamWriter, *, is_chat: bool) -> None:
        """A completion: admit, prefill or pull, decode, answer."""
        if not self.is_ready:
            raise http.HttpError(503, "still loading")
        tokens = _tokens(body, is_chat=is_chat)
        max_tokens = body.get("max_tokens") or body.get("max_completion_tokens") or DEFAULT_MAX_TOKENS
        if not isinstance(max_tokens, int) or max_tokens < 1:
            raise http.HttpError(400, "max_tokens must be a positive number")
        if len(tokens) + max_tokens > self.config.max_model_len:
            raise http.HttpError(400, f"{len(tokens)} + {max_tokens} tokens exceed {self.config.max_model_len}")
        self._count_request(len(tokens))
        transfer = body.get("kv_transfer_params") or {}
        pulled = await self._pull(transfer) if transfer.get("do_remote_prefill") else None
        digest = pulled or kv_digest(tokens, self.config.block_tokens)
        if self.faults.wrong_answers:
            digest = digest[::-1]
        reply = _Reply(self, writer, digest, len(tokens), max_tokens, body, is_chat)
        sequence = Sequence(len(tokens), max_tokens, reply.emit, lambda: writer.transport.is_closing())
        if not self.scheduler.fits(sequence):
            raise http.HttpError(400, "the KV cache cannot hold this request")
        if pulled is not None:
            sequence.done_tokens, sequence.remote_kv = sequence.prompt_tokens, True
        reply.start()
        self.scheduler.submit(sequence)
        await reply.finished.wait()
        if not reply.is_streamed:
            kept = self._hold(digest, len(tokens)) if transfer.get("do_remote_decode") else None
            http.send_json(writer, reply.document(kept))

    def _count_request(self, num_tokens: int) -> None:
        self.counters.requests += 1
        self.counters.prompt_tokens += num_tokens
        if self.faults.log_bytes_per_request:
            _log("x" * self.faults.log_bytes_per_request)
        if self.faults.exit_after_requests and self.counters.requests >= self.faults.exit_after_requests:
            _exit_as_asked()

    def _hold(self, digest: bytes, num_tokens: int) -> dict[str, Any]:
        key = self.store.hold(digest, num_tokens, asyncio.get_running_loop().time())
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_engine_id": self.config.name,
            "remote_block_ids": [key],
            "remote_host": self.config.host,
            "remote_port": self.config.kv_port,
        }

    async def _pull(self, transfer: Mapping[str, Any]) -> bytes:
        """The KV from a prefill instance, in no less than the planned time."""
        await self.scheduler.boundary()
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        try:
            key = str(transfer["remote_block_ids"][0])
            host, port = str(transfer["remote_host"]), int(transfer["remote_port"])
            digest, num_tokens = await asyncio.wait_for(pull(host, port, key, self.config.block_tokens), 10)
        except (OSError, KeyError, IndexError, TypeError, ValueError, TimeoutError) as error:
            self.counters.failed_transfers += 1
            raise http.HttpError(500, f"KV transfer failed: {error}") from None
        base_s, per_token_s = self.config.transfer.get(str(transfer.get("remote_engine_id")), (0.0, 0.0))
        planned_s = base_s + per_token_s * num_tokens
        await asyncio.sleep(max(0.0, began_s + planned_s - loop.time()))
        self.counters.transfers += 1
        self.counters.transferred_bytes += num_tokens * self.config.kv_bytes_per_token
        self.counters.transfer_s += loop.time() - began_s
        return digest

    def metrics(self) -> str:
        """Prometheus text, under vLLM's names."""
        counters, scheduler = self.counters, self.scheduler
        values = {
            "vllm:num_requests_running": len(scheduler.running),
            "vllm:num_requests_waiting": len(scheduler.waiting),
            "vllm:prompt_tokens_total": counters.prompt_tokens,
            "vllm:generation_tokens_total": counters.generation_tokens,
            "vllm:request_success_total": counters.requests,
            "vllm:nixl_bytes_transferred_count": counters.transfers,
            "vllm:nixl_bytes_transferred_sum": counters.transferred_bytes,
            "vllm:nixl_xfer_time_seconds_count": counters.transfers,
            "vllm:nixl_xfer_time_seconds_sum": counters.transfer_s,
            "vllm:nixl_num_failed_transfers_total": counters.failed_transfers,
            "vllm:nixl_num_kv_expired_reqs_total": self.store.expired,
        }
        return "".join(f"{name} {value:.17g}\n" for name, value in values.items())


class _Reply:
    """One answer on its way: token by token when streamed, else at the end."""

    def __init__(
        self,
        engine: MockEngine,
        writer: asyncio.StreamWriter,
        digest: bytes,
        num_prompt: int,
        max_tokens: int,
        body: Mapping[str, Any],
        is_chat: bool,
    ) -> None:
        self.engine, self.writer, self.digest = engine, writer, digest
        self.num_prompt, self.max_tokens, self.is_chat = num_prompt, max_tokens, is_chat
        self.is_streamed = bool(body.get("stream"))
        self.wants_usage = bool((body.get("stream_options") or {}).get("include_usage"))
        self.words: list[str] = []
        self.finished = asyncio.Event()
        name = "chat.completion.chunk" if is_chat else "text_completion"
        self.prefix = json.dumps(
            {"id": f"cmpl-{engine.counters.requests}", "object": name, "model": engine.config.model}
        )

    def start(self) -> None:
        """Headers of a stream go out at once."""
        if self.is_streamed:
            http.send_head(self.writer, 200, {"Content-Type": "text/event-stream"})

    def emit(self, position: int, last: bool) -> None:
        """One token, from the step loop."""
        word = f" w{answer_token(self.digest, position)}"
        self.engine.counters.generation_tokens += 1
        if last:
            self.finished.set()
        if not self.is_streamed:
            self.words.append(word)
            return
        delta = f'"delta": {{"content": "{word}"}}' if self.is_chat else f'"text": "{word}"'
        reason = '"length"' if last else "null"
        choice = f'{{"index": 0, {delta}, "finish_reason": {reason}}}'
        text = f'data: {self.prefix[:-1]}, "choices": [{choice}]}}\n\n'
        if last and self.wants_usage:
            text += f'data: {self.prefix[:-1]}, "choices": [], "usage": {json.dumps(self._usage())}}}\n\n'
        self.writer.write((text + "data: [DONE]\n\n" if last else text).encode())

    def document(self, kv_transfer_params: Mapping[str, Any] | None) -> dict[str, Any]:
        """The whole answer."""
        text = "".join(self.words)
        choice: dict[str, Any] = {"index": 0, "finish_reason": "length"}
        choice |= {"message": {"role": "assistant", "content": text}} if self.is_chat else {"text": text}
        kept = {"kv_transfer_params": dict(kv_transfer_params)} if kv_transfer_params else {}
        return {**json.loads(self.prefix), "choices": [choice], "usage": self._usage(), **kept}

    def _usage(self) -> dict[str, int]:
        total = self.num_prompt + self.max_tokens
        return {"prompt_tokens": self.num_prompt, "completion_tokens": self.max_tokens, "total_tokens": total}


def prompt_length(body: Mapping[str, Any], *, is_chat: bool) -> int:
    """Tokens of a request's prompt, as the mock counts them."""
    return len(_tokens(body, is_chat=is_chat))


def _tokens(body: Mapping[str, Any], *, is_chat: bool) -> list[int]:
    return prompt_tokens(_prompt(body) if is_chat else body.get("prompt", ""))


def _prompt(body: Mapping[str, Any]) -> str:
    messages = body.get("messages")
    if not isinstance(messages, list):
        raise http.HttpError(400, "messages must be a list")
    return " ".join(str(message.get("content", "")) for message in messages if isinstance(message, dict))


def _log(message: str) -> None:
    with contextlib.suppress(OSError):  # a disk full of logs must not stop an engine
        sys.stderr.write(message + "\n")
        sys.stderr.flush()


def _exit_as_asked() -> None:
    _log("ends as its faults ask")
    os._exit(9)


def run_until_terminated(main: Any) -> None:
    """Run a coroutine; SIGTERM and SIGINT end it quietly."""

    async def guarded() -> None:
        task = asyncio.ensure_future(main)
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        await asyncio.wait([task])
        if not task.cancelled() and task.exception():
            _log(f"ends: {task.exception()}")
            os._exit(1)
        os._exit(0)  # open streams are not waited for

    asyncio.run(guarded())


def config_argument() -> dict[str, Any]:
    """The JSON object given with --config."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", required=True, help="JSON")
    value = json.loads(parser.parse_args().config)
    if not isinstance(value, dict):
        parser.error("--config is not a JSON object")
    return value


if __name__ == "__main__":
    run_until_terminated(MockEngine(EngineConfig(**config_argument())).run())
