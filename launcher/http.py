"""Just enough HTTP/1.1 over asyncio streams: requests with a body, replies as JSON, text or server-sent events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

MAX_HEAD_BYTES = 64 * 1024
MAX_BODY_BYTES = 64 * 2**20
REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 500: "Internal Server Error", 503: "Service Unavailable"}


class HttpError(Exception):
    """A reply other than 200."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


@dataclass(frozen=True, slots=True)
class Request:
    """One request; header names in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> dict[str, Any]:
        """The body as a JSON object; HttpError 400 otherwise."""
        try:
            value = json.loads(self.body)
        except ValueError:
            raise HttpError(400, "the body is not JSON") from None
        if not isinstance(value, dict):
            raise HttpError(400, "the body is not a JSON object")
        return value


@dataclass(frozen=True, slots=True)
class Head:
    """The first lines of a reply; header names in lower case."""

    status: int
    headers: Mapping[str, str]


Handler = Callable[[Request, asyncio.StreamWriter], Awaitable[None]]


async def serve(handler: Handler, host: str, port: int, *, share_port: bool = False) -> asyncio.Server:
    """Listen; `handler` writes the reply itself. Connections close after each reply, which keeps streaming simple.

    With `share_port` another process may listen on the same port beside this one.
    """

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = await read_request(reader)
            if request is not None:
                await handler(request, writer)
                await writer.drain()
        except HttpError as error:
            send_json(writer, {"error": {"message": error.message, "code": error.status}}, status=error.status)
        except (ConnectionError, asyncio.IncompleteReadError, TimeoutError):
            pass  # the peer went away
        finally:
            writer.close()

    return await asyncio.start_server(
        connected, host, port, limit=MAX_HEAD_BYTES, backlog=1024, reuse_port=True if share_port else None
    )


async def read_request(reader: asyncio.StreamReader) -> Request | None:
    """The next request, or None when the peer closed without one."""
    try:
        raw = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if not error.partial:
            return None
        raise
    except asyncio.LimitOverrunError:
        raise HttpError(400, "headers too long") from None
    lines = raw.decode("latin-1").split("\r\n")
    parts = lines[0].split(" ")
    if len(parts) != 3:
        raise HttpError(400, "not an HTTP request")
    headers = _headers(lines[1:])
    length = headers.get("content-length", "0")
    if not length.isdigit() or int(length) > MAX_BODY_BYTES:
        raise HttpError(400, "no valid Content-Length")
    return Request(parts[0], parts[1].partition("?")[0], headers, await reader.readexactly(int(length)))


async def read_head(reader: asyncio.StreamReader) -> Head:
    """Status and headers of a reply."""
    raw = await reader.readuntil(b"\r\n\r\n")
    lines = raw.decode("latin-1").split("\r\n")
    parts = lines[0].split(" ", 2)
    if len(parts) < 2 or not parts[1].isdigit():
        raise ConnectionError("not an HTTP reply")
    return Head(int(parts[1]), _headers(lines[1:]))


def send_head(writer: asyncio.StreamWriter, status: int, headers: Mapping[str, str]) -> None:
    """Status line and headers."""
    lines = [f"HTTP/1.1 {status} {REASONS.get(status, 'Status')}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    writer.write(("\r\n".join(lines) + "\r\nConnection: close\r\n\r\n").encode("latin-1", "replace"))


def send_text(writer: asyncio.StreamWriter, text: str, *, status: int = 200, kind: str = "text/plain") -> None:
    """A whole reply."""
    body = text.encode()
    send_head(writer, status, {"Content-Type": kind, "Content-Length": str(len(body))})
    writer.write(body)


def send_json(writer: asyncio.StreamWriter, value: object, *, status: int = 200) -> None:
    """A whole JSON reply."""
    send_text(writer, json.dumps(value), status=status, kind="application/json")


async def post(url_host: str, port: int, path: str, body: object, *, timeout_s: float) -> tuple[int, bytes]:
    """One POST of JSON; returns status and body."""

    async def exchange() -> tuple[int, bytes]:
        reader, writer = await open_request(url_host, port, "POST", path, json.dumps(body).encode())
        try:
            head = await read_head(reader)
            return head.status, await reader.read()
        finally:
            writer.close()

    return await asyncio.wait_for(exchange(), timeout_s)


async def get(url_host: str, port: int, path: str, *, timeout_s: float) -> tuple[int, bytes]:
    """One GET; returns status and body."""

    async def exchange() -> tuple[int, bytes]:
        reader, writer = await open_request(url_host, port, "GET", path, b"")
        try:
            head = await read_head(reader)
            return head.status, await reader.read()
        finally:
            writer.close()

    return await asyncio.wait_for(exchange(), timeout_s)


async def open_request(
    host: str, port: int, method: str, path: str, body: bytes, headers: Mapping[str, str] | None = None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect and send a request; the reply is still to be read."""
    reader, writer = await asyncio.open_connection(host, port, limit=MAX_HEAD_BYTES)
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}:{port}", f"Content-Length: {len(body)}"]
    lines += ["Content-Type: application/json", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    writer.write(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + body)
    return reader, writer


def _headers(lines: list[str]) -> dict[str, str]:
    pairs = (line.partition(":") for line in lines if line)
    return {name.strip().lower(): value.strip() for name, _, value in pairs}
