"""Where output goes: data on stdout, the rest on stderr; JSON with a schema version; colour only on a terminal."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

JSON_SCHEMA_VERSION = 1
PIPED_WIDTH = 120
NARROWEST = 40
INTERRUPTED = 130
"""Exit code after Ctrl-C: as a shell reports a process that SIGINT ended."""

JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON on stdout instead of text.")]


ParallelOption = Annotated[
    str,
    typer.Option(metavar="N|ray://HOST:PORT", help="Processes (-1: one per core), or a Ray cluster's client port."),
]


def print_json(kind: str, data: Mapping[str, Any]) -> None:
    """One JSON object on stdout: `{"kind": …, "schema_version": 1, …}`; deterministic key order."""
    document = {"kind": kind, "schema_version": JSON_SCHEMA_VERSION, **data}
    sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def stdout_console() -> Console:
    """A rich console on stdout for tables; as wide as the terminal, 120 columns when piped; NO_COLOR is honoured."""
    return _console(stderr=False)


def stderr_console() -> Console:
    """A rich console on stderr for progress and notes."""
    return _console(stderr=True)


def note(message: str) -> None:
    """A line for people, on stderr."""
    sys.stderr.write(message + "\n")


def _console(*, stderr: bool) -> Console:
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else PIPED_WIDTH
    if os.environ.get("COLUMNS", "").isdecimal():
        width = max(int(os.environ["COLUMNS"]), NARROWEST)
    return Console(stderr=stderr, width=width, highlight=False, soft_wrap=not stream.isatty())
