"""The little of HTTP that measuring an engine takes: streamed completions, what is served, and Prometheus counters."""

from __future__ import annotations

import http.client
import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from splitplan.catalogs.errors import InputError, Problem, ProfileError, shorten

TIMEOUT_S = 120.0
MAX_BODY_BYTES = 16 * 2**20


@dataclass(slots=True)
class Stream:
    """When the tokens of one request arrived, on this machine's monotonic clock."""

    sent_s: float
    arrivals_s: list[float] = field(default_factory=list)
    tokens: int = 0  # as the engine counts them
    error: str = ""


class EngineClient:
    """One OpenAI-compatible server. `check` must come first: it finds out model, engine and version."""

    def __init__(self, url: str, *, model: str = "", timeout_s: float = TIMEOUT_S) -> None:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in ("http", "https") or not parts.hostname or port == -1:
            raise InputError(Problem(f"is '{shorten(url)}'", "", "--url", "http://HOST:PORT"))
        self.url = f"{parts.scheme}://{parts.netloc}"
        self.model = model
        self.engine = ""
        self.version = ""
        self._secure = parts.scheme == "https"
        self._host, self._port = parts.hostname, port
        self._base = parts.path.rstrip("/").removesuffix("/v1")
        self._timeout_s = timeout_s

    def check(self) -> None:
        """Finds the served model, the engine and its version; ProfileError where nothing answers as it should."""
        served = self._json("/v1/models")
        names = [entry.get("id", "") for entry in served.get("data", [])] if isinstance(served, dict) else []
        if not names:
            problem = Problem("no model is served here", self.url, expected="an OpenAI-compatible endpoint")
            raise ProfileError(problem)
        if self.model and self.model not in names:
            expected = ", ".join(shorten(name) for name in names)
            raise ProfileError(Problem(f"'{shorten(self.model)}' is not served here", self.url, "--served", expected))
        self.model = self.model or str(names[0])
        self.engine, self.version = self._engine()

    def complete(self, prompt: Sequence[int], max_tokens: int) -> Stream:
        """Runs one request of exactly `max_tokens` tokens to its end; what goes wrong is in `error`."""
        body = {
            "model": self.model,
            "prompt": list(prompt),
            "max_tokens": max_tokens,
            "min_tokens": max_tokens,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        stream = Stream(time.monotonic())
        try:
            connection = self._connect()
            try:
                headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
                payload = json.dumps(body)
                stream.sent_s = time.monotonic()
                connection.request("POST", f"{self._base}/v1/completions", payload, headers)
                response = connection.getresponse()
                if response.status != 200:
                    text = response.read(2000).decode("utf-8", "replace")
                    stream.error = f"HTTP {response.status}: {shorten(text, 160)}"
                    return stream
                _read_events(response, stream)
            finally:
                connection.close()
        except (OSError, http.client.HTTPException, ValueError) as error:
            stream.error = f"{type(error).__name__}: {shorten(error)}"
        return stream

    def counters(self, wanted: Mapping[str, Sequence[str]]) -> dict[str, float]:
        """Sums of Prometheus counters under /metrics by our name for them; empty where there are none."""
        try:
            text = self._get("/metrics")
        except ProfileError:
            return {}
        found: dict[str, float] = {}
        for name, candidates in wanted.items():
            pattern = rf"^(?:{'|'.join(map(re.escape, candidates))})(?:\{{[^}}]*\}})?\s+(\S+)"
            values = [float(value) for value in re.findall(pattern, text, re.MULTILINE)]
            if values:
                found[name] = sum(values)
        return found

    def _engine(self) -> tuple[str, str]:
        """vLLM answers /version, SGLang /get_server_info; anything else stays "unknown"."""
        for path, engine in (("/version", "vllm"), ("/get_server_info", "sglang")):
            try:
                version = self._json(path).get("version", "")
            except (ProfileError, AttributeError):
                continue
            if version:
                return engine, str(version)
        return "unknown", ""

    def _json(self, path: str) -> Any:
        text = self._get(path)
        try:
            return json.loads(text)
        except ValueError:
            raise ProfileError(Problem("did not answer in JSON", self.url + path)) from None

    def _get(self, path: str) -> str:
        try:
            connection = self._connect()
            try:
                connection.request("GET", self._base + path)
                response = connection.getresponse()
                content = response.read(MAX_BODY_BYTES)
            finally:
                connection.close()
        except (OSError, http.client.HTTPException) as error:
            problem = Problem(f"does not answer ({shorten(error)})", self.url + path, next_step="check host and port")
            raise ProfileError(problem) from None
        if response.status != 200:
            raise ProfileError(Problem(f"answers HTTP {response.status}", self.url + path))
        return content.decode("utf-8", "replace")

    def _connect(self) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        return kind(self._host, self._port, timeout=self._timeout_s)


def _read_events(response: http.client.HTTPResponse, stream: Stream) -> None:
    """Server-sent events until [DONE]; an event with text or a token counts when its line has arrived."""
    for line in response:
        now_s = time.monotonic()
        if not line.startswith(b"data:"):
            continue
        content = line[5:].strip()
        if content == b"[DONE]":
            return
        event = json.loads(content)
        if "error" in event:
            stream.error = shorten(event["error"], 160)
            return
        if event.get("choices"):
            stream.arrivals_s.append(now_s)
            stream.tokens = max(stream.tokens, len(stream.arrivals_s))
        usage = event.get("usage") or {}
        stream.tokens = int(usage.get("completion_tokens") or stream.tokens)
