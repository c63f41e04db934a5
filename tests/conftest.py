"""Helpers for all tests."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

SHARED = next(
    (parent / "shared" for parent in Path(__file__).parents if (parent / "shared" / "data" / "measured").is_dir()),
    Path("/nonexistent"),
)
"""The folder of reference data beside the checkout, where there is one."""

needs_shared = pytest.mark.skipif(
    not (SHARED / "data" / "measured").is_dir(),
    reason="needs the reference data in shared/, which is not part of the project",
)


collect_ignore = [] if os.environ.get("SPLITPLAN_HEAVY") else ["heavy"]
"""`make test-heavy` says where the heavy tools are; without them their tests are not even looked at."""


def _no_skip(report: Any) -> Any:
    """Under SPLITPLAN_TEST_REQUIRE=all a skip is a failure: everything installable is installed there.

    What only the reference data could answer is exempt, since nobody can install it.
    """
    if os.environ.get("SPLITPLAN_TEST_REQUIRE") == "all" and report.skipped and not hasattr(report, "wasxfail"):
        reason = str(report.longrepr[-1]) if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if "reference data" not in reason:
            report.outcome = "failed"
            report.longrepr = f"skipped although SPLITPLAN_TEST_REQUIRE=all: {reason}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """A test that skips where nothing may."""
    return _no_skip((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, Any, Any]:
    """A module that skips where nothing may."""
    return _no_skip((yield))


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Generator[None, None, None]:
    """Tests keep their caches to themselves, and share them among each other."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPLITPLAN_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
        yield


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
