"""Blocking HTTP to a cluster's own processes, never through a proxy."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Mapping
from typing import Any

_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def get(url: str, *, timeout_s: float) -> bytes:
    """The body of a 200 reply; OSError (urllib's HTTPError and URLError among them) otherwise."""
    with _opener.open(url, timeout=timeout_s) as reply:
        return bytes(reply.read())


def answers(url: str, *, timeout_s: float = 2.0) -> bool:
    """Whether a URL answers 200; a list of models must not be empty (a frontend lists what its workers brought)."""
    try:
        body = get(url, timeout_s=timeout_s)
        return not url.endswith("/v1/models") or bool(json.loads(body)["data"])
    except (OSError, ValueError, KeyError, TypeError):
        return False


def post_json(url: str, body: object, *, timeout_s: float) -> tuple[Any, Mapping[str, str]]:
    """POST JSON; returns the JSON reply and its headers (names in lower case)."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with _opener.open(request, timeout=timeout_s) as reply:
        return json.load(reply), {name.lower(): value for name, value in reply.headers.items()}
