"""A mock router: prefill first, then decode with the KV's address, on the plan's own routes and shares.

    python -m splitplan.launcher.mock.router --config '{"host": …, "port": …, "routes": […], "colocated": […]}'

The entry (a prefill or colocated instance) with the least load for its planned share is next, then the decode side of
its planned routes with the least: what the plan's own simulation assumes of a router. Where instances take prompts of
some lengths only, the prompt's tokens decide among which. An instance that does not answer
is left out for a while. Replies name the pair that served them.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from splitplan.launcher import http
from splitplan.launcher.mock.engine import config_argument, prompt_length, run_until_terminated

RETRY_AFTER_S = 3.0
ACCEPTED_S = 0.1
PREFILL_TIMEOUT_S = 600.0
PREFILL_HEADER, DECODE_HEADER = "x-splitplan-prefill", "x-splitplan-decode"


@dataclass(frozen=True, slots=True)
class Worker:
    """Where an instance listens."""

    name: str
    host: str
    port: int


@dataclass(slots=True)
class Path:
    """A pair, or a colocated instance alone, with the share of requests it was planned for."""

    prefill: Worker | None
    decode: Worker
    share: float
    above: int = 0  # prompts it takes: more than so many tokens,
    up_to: int = 0  # and at most so many; 0: no bound
    taken: int = 0

    @property
    def title(self) -> tuple[str, str]:
        """(prefill, decode) names; a colocated instance is both."""
        return (self.prefill or self.decode).name, self.decode.name

    def takes(self, num_tokens: int) -> bool:
        """Whether a prompt of this length is for it."""
        return num_tokens > self.above and (not self.up_to or num_tokens <= self.up_to)


@dataclass(frozen=True, slots=True)
class RouterConfig:
    """All a router needs."""

    host: str
    port: int
    model: str
    workers: Mapping[str, tuple[str, int]]  # name → (host, port)
    paths: list[tuple[str, str, float]]  # (prefill or "", decode, share)
    prompts: Mapping[str, tuple[int, int]] = field(
        default_factory=dict
    )  # worker → it takes (above, up to] tokens; 0: any
    faults: Mapping[str, Any] = field(default_factory=dict)  # {"ignore": "prefill" | "decode"}


class MockRouter:
    """The front door."""

    def __init__(self, config: RouterConfig) -> None:
        self.config = config
        self.workers = {name: Worker(name, host, port) for name, (host, port) in config.workers.items()}
        self.paths = [
            Path(
                self.workers[prefill] if prefill else None, self.workers[decode], share, *self._bounds(prefill, decode)
            )
            for prefill, decode, share in config.paths
        ]
        self.down_until_s: dict[str, float] = {}
        self.load: Counter[str] = Counter()  # requests assigned and not done, by instance
        self.taken: Counter[str] = Counter()
        self.share: dict[str, float] = {}
        for path in self.paths:
            for name in set(path.title):
                self.share[name] = self.share.get(name, 0.0) + path.share
        self.ready: set[str] = set()
        self.failed_requests = 0
        self.active = 0

    async def run(self) -> None:
        """Serve until cancelled; on SIGUSR1 take nothing new and end after the last stream."""
        server = await http.serve(self.handle, self.config.host, self.config.port, share_port=True)
        draining = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, draining.set)
        watch = asyncio.create_task(self._watch())
        await draining.wait()
        await asyncio.sleep(ACCEPTED_S)  # what the kernel has accepted for us by now is still ours
        server.close()
        while self.active:
            await asyncio.sleep(0.02)
        watch.cancel()

    async def handle(self, request: http.Request, writer: asyncio.StreamWriter) -> None:
        """One HTTP request."""
        if request.path == "/health":
            http.send_text(writer, str(os.getpid()))  # which of two routers on one port this is
        elif request.path == "/metrics":
            http.send_text(writer, self.metrics())
        elif request.path == "/v1/models":
            ready = {(path.above, path.up_to) for path in self.paths if self._is_ready(path)}
            if ready != {(path.above, path.up_to) for path in self.paths}:
                raise http.HttpError(503, "no pair of instances is ready for some prompts")
            http.send_json(writer, {"object": "list", "data": [{"id": self.config.model, "object": "model"}]})
        elif request.path in ("/v1/completions", "/v1/chat/completions") and request.method == "POST":
            await self.forward(request, writer)
        else:
            raise http.HttpError(404, f"no {request.path} here")

    async def forward(self, request: http.Request, writer: asyncio.StreamWriter) -> None:
        """Try paths until one serves; a stream that began is never tried again."""
        self.active += 1
        try:
            await self._forward(request, writer)
        finally:
            self.active -= 1

    async def _forward(self, request: http.Request, writer: asyncio.StreamWriter) -> None:
        body = request.json()
        length = prompt_length(body, is_chat=request.path.endswith("chat/completions")) if self.config.prompts else 1
        tried: set[tuple[str, str]] = set()
        while path := self._next_path(tried, length):
            tried.add(path.title)
            path.taken += 1  # now, so that requests that arrive together are spread
            self.taken.update(set(path.title))
            self.load.update(set(path.title))
            held = _Held(self.load, path)
            try:
                await self._serve(path, request.path, body, writer, held)
                return
            except _WorkerDownError as down:
                path.taken -= 1
                self.taken.subtract(set(path.title))
                self.down_until_s[down.name] = asyncio.get_running_loop().time() + RETRY_AFTER_S
            finally:
                held.release_all()
        self.failed_requests += 1
        raise http.HttpError(503, "no instance answers")

    async def _serve(
        self, path: Path, url: str, body: dict[str, Any], writer: asyncio.StreamWriter, held: _Held
    ) -> None:
        ignored = self.config.faults.get("ignore")
        asked = body
        if path.prefill and ignored != "prefill":
            asked = {**body, "kv_transfer_params": await self._prefill(path.prefill, url, body)}
            held.release(path.prefill.name)
        target = path.prefill if path.prefill and ignored == "decode" else path.decode
        try:
            reader, upstream = await http.open_request(
                target.host, target.port, "POST", url, json.dumps(asked).encode()
            )
        except OSError:
            raise _WorkerDownError(target.name) from None
        try:
            await _relay(path, target.name, reader, writer)
        finally:
            upstream.close()

    async def _prefill(self, worker: Worker, url: str, body: Mapping[str, Any]) -> dict[str, Any]:
        remote = {"do_remote_decode": True, "do_remote_prefill": False}
        asked = {key: value for key, value in body.items() if key not in ("stream_options", "min_tokens")}
        asked |= {"stream": False, "max_tokens": 1, "kv_transfer_params": remote}
        asked.pop("max_completion_tokens", None)
        try:
            status, raw = await http.post(worker.host, worker.port, url, asked, timeout_s=PREFILL_TIMEOUT_S)
        except (OSError, asyncio.IncompleteReadError, TimeoutError):
            raise _WorkerDownError(worker.name) from None
        reply = json.loads(raw)
        if status != 200:
            raise http.HttpError(status, str(reply.get("error", {}).get("message", "prefill failed")))
        params: dict[str, Any] = reply["kv_transfer_params"]
        return params

    def _bounds(self, *names: str) -> tuple[int, int]:
        """(above, up to) of the prompts that all of these take."""
        ours = [self.config.prompts[name] for name in names if name in self.config.prompts]
        return max((low for low, _ in ours), default=0), min((high for _, high in ours if high), default=0)

    def _next_path(self, tried: set[tuple[str, str]], num_tokens: int) -> Path | None:
        """The usable path for such a prompt whose entry, then whose decode side, has the least load for its share."""
        now_s = asyncio.get_running_loop().time()
        fitting = [path for path in self.paths if path.title not in tried and path.takes(num_tokens)]
        usable = [path for path in fitting if self._is_up(path, now_s)] or fitting
        return min(usable, key=lambda path: (*self._rank(path.title[0]), *self._rank(path.title[1])), default=None)

    def _rank(self, name: str) -> tuple[float, float]:
        """(load for its share, requests so far for its share)."""
        share = self.share[name] or 1e-9
        return (self.load[name] / share, self.taken[name] / share)

    def _is_up(self, path: Path, now_s: float) -> bool:
        return all(self.down_until_s.get(name, 0.0) <= now_s for name in path.title)

    def _is_ready(self, path: Path) -> bool:
        return set(path.title) <= self.ready

    async def _watch(self) -> None:
        """Learn which instances serve; often until all do, then now and then."""
        while True:
            for worker in self.workers.values():
                try:
                    status, _ = await http.get(worker.host, worker.port, "/v1/models", timeout_s=2)
                except (OSError, asyncio.IncompleteReadError, TimeoutError):
                    status = 0
                (self.ready.add if status == 200 else self.ready.discard)(worker.name)
            await asyncio.sleep(0.1 if len(self.ready) < len(self.workers) else 2.0)

    def metrics(self) -> str:
        """Prometheus text: requests by pair."""
        lines = [f"splitplan_router_failed_requests_total {self.failed_requests}\n"]
        for path in self.paths:
            labels = ",".join(
                f"{key}={json.dumps(name)}" for key, name in zip(("prefill", "decode"), path.title, strict=True)
            )
            lines.append(f"splitplan_router_requests_total{{{labels}}} {path.taken}\n")
        return "".join(lines)


class _Held:
    """The load that one request is on its instances, until it is done there."""

    def __init__(self, load: Counter[str], path: Path) -> None:
        self._load, self._names = load, set(path.title)

    def release(self, name: str) -> None:
        """Done at one instance."""
        if name in self._names:
            self._names.discard(name)
            self._load[name] -= 1

    def release_all(self) -> None:
        """Done everywhere."""
        for name in list(self._names):
            self.release(name)


class _WorkerDownError(Exception):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


async def _relay(path: Path, served_by: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        head = await http.read_head(reader)
    except (OSError, asyncio.IncompleteReadError):
        raise _WorkerDownError(served_by) from None
    names = {PREFILL_HEADER: path.title[0], DECODE_HEADER: served_by}
    kept = {name: value for name, value in head.headers.items() if name in ("content-type", "content-length")}
    http.send_head(writer, head.status, {**kept, **{key: json.dumps(name)[1:-1] for key, name in names.items()}})
    while data := await reader.read(65536):
        if writer.transport.is_closing():
            return
        writer.write(data)
        await writer.drain()


if __name__ == "__main__":
    run_until_terminated(MockRouter(RouterConfig(**config_argument())).run())
