"""Running the command line inside the test process."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest


@dataclass(frozen=True)
class Ran:
    """What a command did."""

    code: int
    out: str
    err: str


@pytest.fixture
def planner(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """`planner("solve", "--model", …)` → exit code, stdout, stderr. An exception that is no error of ours escapes."""

    def run_planner(*arguments: str) -> Ran:
        from splitplan.planner.cli.main import run

        monkeypatch.setattr(sys, "argv", ["planner", *arguments])
        code = 0
        try:
            run()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return run_planner
