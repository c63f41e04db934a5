"""The public load generator `guidellm` in place of our own: it replays the same requests at the same times.

    planner bench PLAN --client guidellm --tokenizer FOLDER

It makes up text of the asked number of tokens, and so needs the model's tokenizer. Tried with guidellm 0.8.1.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from splitplan.catalogs.errors import LaunchError, Problem, shorten
from splitplan.launcher.loadtest import Served
from splitplan.planner.spec.workload import Requests

PROGRAM = "guidellm"
START_AND_END_S = 600.0
"""What it takes besides the load: it makes its prompts first and writes a report at the end."""

WORD = "word"


def replay_with_guidellm(url: str, model: str, requests: Requests, *, tokenizer: str = "") -> list[Served]:
    """Send `requests` with guidellm; returns one result for each that it reports, failed ones for the rest.

    `tokenizer` is a folder or repository; "" for one that takes every word for a token, as mock engines count.
    """
    if shutil.which(PROGRAM) is None:
        raise LaunchError(Problem("guidellm is not installed", next_step="pip install guidellm, or --client own"))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if not tokenizer:
            _write_tokenizer(folder / "words")
        _write_trace(folder / "trace.jsonl", requests)
        document = scenario(url, model, tokenizer or str(folder / "words"), folder)
        (folder / "scenario.json").write_text(json.dumps(document), encoding="utf-8")
        _run(folder, float(requests.arrival_s[-1]) + START_AND_END_S)
        try:
            report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
            return served_of(report, requests)
        except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
            raise LaunchError(Problem(f"guidellm's report cannot be read: {shorten(error)}")) from None


def scenario(url: str, model: str, tokenizer: str, folder: Path) -> dict[str, Any]:
    """What guidellm is told: an open-loop replay of the trace beside it, a report in JSON."""
    source = {"kind": "json_file", "path": str(folder / "trace.jsonl")}
    spec = {
        "backend": {"kind": "openai_http", "target": url, "model": model, "request_format": "/v1/completions"},
        "profile": {"kind": "replay", "schedule_turn": "timestamp"},
        "tokenizer": {"kind": "hf_auto", "model": tokenizer},
        "data": [{"kind": "trace_synthetic", "source": source}],
        "outputs": [{"kind": "json", "path": str(folder / "report.json")}],
    }
    return {"spec": spec}


def served_of(report: Mapping[str, Any], requests: Requests) -> list[Served]:
    """One result a request. Its times count from when a request was due: guidellm's own delay is added."""
    found: Mapping[str, Any] = report["benchmarks"][0]["requests"]
    good = [_served(each) for each in found["successful"] or []]
    first_s = min((each.due_s for each in good), default=0.0)
    good = [_moved(each, -first_s) for each in good]
    reasons = [str((each.get("info") or {}).get("error") or "failed") for each in found["errored"] or []]
    lost = len(requests) - len(good) - len(reasons)
    reasons += ["guidellm did not report it"] * max(0, lost)
    return good + [Served(0.0, 0, 0, 0.0, 0.0, (), 0.0, reason) for reason in reasons]


def _served(each: Mapping[str, Any]) -> Served:
    lag_s = float(each["request_dispatch_delay"] or 0.0)
    started_s = float(each["request_start_time"])
    return Served(
        due_s=started_s - lag_s,
        input_tokens=int(each["prompt_tokens"] or 0),
        output_tokens=int(each["output_tokens"] or 0),
        ttft_s=float(each["time_to_first_token_ms"]) / 1e3 + lag_s,
        e2e_s=float(each["request_latency"]) + lag_s,
        gaps_s=(),  # it keeps their mean only
        lag_s=lag_s,
    )


def _moved(each: Served, by_s: float) -> Served:
    return Served(
        each.due_s + by_s, each.input_tokens, each.output_tokens, each.ttft_s, each.e2e_s, each.gaps_s, each.lag_s
    )


def _write_trace(path: Path, requests: Requests) -> None:
    rows = zip(requests.arrival_s, requests.input_tokens, requests.output_tokens, strict=True)
    lines = [
        json.dumps({"timestamp": float(at), "input_length": int(prompt), "output_length": int(answer)})
        for at, prompt, answer in rows
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _write_tokenizer(folder: Path) -> None:
    """Every word is one token, the same one: what is sent has as many words as tokens were asked for."""
    folder.mkdir()
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [{"id": number, "content": text, **special} for number, text in enumerate(("<s>", "</s>"))],
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {"type": "WordLevel", "vocab": {"<s>": 0, "</s>": 1, WORD: 2}, "unk_token": WORD},
    }
    names = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(names), encoding="utf-8")


def _run(folder: Path, timeout_s: float) -> None:
    words = [PROGRAM, "run", "-c", str(folder / "scenario.json"), "--disable-console"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        raise LaunchError(Problem(f"guidellm did not end within {timeout_s:.0f} s")) from None
    if done.returncode != 0:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
        raise LaunchError(Problem(f"guidellm failed: {shorten(' '.join(last), 300)}"))
