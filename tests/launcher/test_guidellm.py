"""The public load generator: what it is told, and what is read from its report. The real one runs in tests/heavy."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from splitplan.catalogs.errors import LaunchError, UsageError
from splitplan.launcher.bench import bench
from splitplan.launcher.guidellm import replay_with_guidellm, served_of
from tests.launcher.test_bench import requests_at

SUCCESS = {
    "request_start_time": 1000.25,
    "request_dispatch_delay": 0.05,
    "time_to_first_token_ms": 200.0,
    "request_latency": 1.2,
    "prompt_tokens": 64,
    "output_tokens": 11,
}
"""The keys of guidellm 0.8.1 that are read."""

PROGRAM = """#!/usr/bin/env python3
import json, pathlib, sys
spec = json.loads(pathlib.Path(sys.argv[sys.argv.index("-c") + 1]).read_text())["spec"]
rows = [json.loads(line) for line in open(spec["data"][0]["source"]["path"])]
assert pathlib.Path(spec["tokenizer"]["model"], "tokenizer.json").exists()
success = json.loads('''SUCCESS''')
good = [
    dict(success, request_start_time=1000 + row["timestamp"] + 0.05, output_tokens=row["output_length"]) for row in rows
]
report = {"benchmarks": [{"requests": {"successful": good, "errored": []}}]}
pathlib.Path(spec["outputs"][0]["path"]).write_text(json.dumps(report))
"""


def report(successful: list[dict[str, Any]], errored: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    return {"benchmarks": [{"requests": {"successful": successful, "errored": errored or []}}]}


def test_times_count_from_when_a_request_was_due() -> None:
    """Its own lateness is the served one's, as with our client; TPOT is between the first token and the last."""
    second = {**SUCCESS, "request_start_time": 1001.2, "request_dispatch_delay": 0.0}
    first, later = served_of(
        {"benchmarks": [{"requests": {"successful": [SUCCESS, second], "errored": []}}]}, requests_at([0, 1])
    )
    assert (first.due_s, first.ttft_s, first.e2e_s) == (0.0, pytest.approx(0.25), pytest.approx(1.25))
    assert first.tpot_s == pytest.approx(0.1)
    assert later.due_s == pytest.approx(1.0)


def test_what_failed_and_what_is_not_reported_counts_as_failed() -> None:
    errored = [{"info": {"error": "HTTP 503"}}]
    found = served_of(
        {"benchmarks": [{"requests": {"successful": [SUCCESS], "errored": errored}}]}, requests_at([0, 1, 2])
    )
    assert [each.error for each in found] == ["", "HTTP 503", "guidellm did not report it"]


def test_the_trace_is_what_the_program_gets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program in its place reads the scenario as the real one does and answers for each row of the trace."""
    program = tmp_path / "guidellm"
    program.write_text(PROGRAM.replace("SUCCESS", json.dumps(SUCCESS)))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    found = replay_with_guidellm("http://127.0.0.1:9", "m", requests_at([0.0, 0.5]))
    assert [each.due_s for each in found] == [pytest.approx(0.0), pytest.approx(0.5)]
    assert {each.output_tokens for each in found} == {8}


def test_without_the_program_the_way_out_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(LaunchError, match="guidellm is not installed"):
        replay_with_guidellm("http://127.0.0.1:9", "m", requests_at([0.0]))


def test_an_unknown_client_is_wrong_usage() -> None:
    with pytest.raises(UsageError, match="unknown client 'wrk'"):
        bench("http://127.0.0.1:9", workload="fixed:8/8", model="m", client="wrk")
