"""Bad input gets one clear message with place, expectation and next step; exit code 1, 2 or 3; nothing is written."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

GOOD = {
    "--model": "llama-3.1-8b",
    "--fleet": "all-h100",
    "--workload": "azure-conv",
    "--rate": "5",
    "--slo": "ttft=2s@p95,tpot=60ms@p95",
}

FLEET = """\
kind: Fleet
version: 1
name: small
racks:
  - name: r1
    nodes:
      - {name: n1, gpu: h100, gpus: 8, nics: {link: infiniband-ndr-400, count: 8}}
"""


def ask(planner: Callable[..., object], tmp_path: Path, **changes: str) -> object:
    options = GOOD | {f"--{name}": value for name, value in changes.items()}
    out = tmp_path / "plan.yaml"
    ran = planner("solve", *[part for pair in options.items() for part in pair], "-o", str(out))
    assert not out.exists(), "a plan was written although there is none"
    assert not list(tmp_path.glob(".plan*")), "a half-written file was left"
    return ran


@pytest.mark.parametrize(
    ("changes", "code", "needles"),
    [
        ({"model": "llama-3.1-8"}, 1, ["unknown model", "did you mean", "llama-3.1-8b"]),
        ({"fleet": "al-h100"}, 1, ["al-h100", "all-h100"]),
        ({"workload": "azure-con"}, 1, ["azure-con", "azure-conv"]),
        ({"rate": "0"}, 1, ["rate", "above 0"]),
        ({"rate": "-3"}, 1, ["rate", "above 0"]),
        ({"rate": "nan"}, 1, ["rate"]),
        ({"slo": "ttft=fast"}, 1, ["ttft", "fast"]),
        ({"slo": "ttft=-1s"}, 1, ["ttft"]),
        ({"slo": "tttf=1s"}, 1, ["tttf", "ttft"]),
        ({"slo": "ttft=1s@p101"}, 1, ["101"]),
        ({"slo": ""}, 2, ["slo"]),
        ({"engine": "vlm"}, 1, ["vlm", "vllm"]),
        ({"connector": "nixxl"}, 1, ["nixxl", "expected"]),
        ({"weight-dtype": "fp7"}, 1, ["fp7"]),
        ({"kv-dtype": "fp99"}, 1, ["fp99"]),
        ({"mode": "colocate"}, 2, ["colocate"]),
        ({"slo": "ttft=1ms@p99,tpot=60ms@p99"}, 3, ["ttft"]),
        ({"slo": "ttft=2s@p95,tpot=1ms@p95"}, 3, ["tpot"]),
        ({"model": "llama-3.1-405b", "fleet": "{l40s}"}, 3, ["405b"]),
        ({"rate": "100000"}, 3, ["100000"]),
    ],
)
def test_solve_says_what_is_wrong(
    planner: Callable[..., object], tmp_path: Path, changes: dict[str, str], code: int, needles: list[str]
) -> None:
    fleet = tmp_path / "l40s.yaml"
    fleet.write_text(FLEET.replace("h100", "l40s").replace("gpus: 8", "gpus: 4"))
    changes = {name: value.replace("{l40s}", str(fleet)) for name, value in changes.items()}
    ran = ask(planner, tmp_path, **changes)
    assert ran.code == code, ran
    text = ran.err.casefold()
    for needle in needles:
        assert needle.casefold() in text, (needle, ran.err)
    assert "traceback" not in text
    assert ran.out == ""


@pytest.mark.parametrize(
    ("old", "new", "needles"),
    [
        ("gpu: h100", "gpu: h10", ["fleet.yaml:7", "gpu", "h100"]),
        ("gpus: 8", "gpus: -8", ["fleet.yaml:7", "gpus"]),
        ("gpus: 8", "gpus: 0", ["fleet.yaml:7", "gpus"]),
        (", gpus: 8", ", gpuss: 8", ["fleet.yaml:7", "gpuss", "gpus"]),
        ("infiniband-ndr-400", "infinband-ndr-400", ["fleet.yaml:7", "infinband", "infiniband"]),
        ("kind: Fleet", "kind: Fleat", ["fleet.yaml:1", "kind"]),
        ("racks:", "rakcs:", ["rakcs", "racks"]),
        ("version: 1", "version: [", ["fleet.yaml", "yaml"]),
        (FLEET, "- just\n- a list\n", ["fleet.yaml:1", "mapping"]),
        (FLEET, "", ["fleet.yaml", "mapping"]),
        ("      - {name: n1", "      - {name: n1, gpu: h100, gpus: 8}\n      - {name: n1", ["twice", "fleet.yaml:6"]),
    ],
)
def test_a_fleet_file_is_named_with_line_and_key(
    planner: Callable[..., object], tmp_path: Path, old: str, new: str, needles: list[str]
) -> None:
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(FLEET.replace(old, new, 1))
    ran = ask(planner, tmp_path, fleet=str(fleet))
    assert ran.code == 1, ran
    for needle in needles:
        assert needle.casefold() in ran.err.casefold(), (needle, ran.err)


def test_ten_megabytes_of_garbage(planner: Callable[..., object], tmp_path: Path) -> None:
    """A huge binary file is refused at once, as fleet, as workload and as model."""
    garbage = tmp_path / "garbage.yaml"
    garbage.write_bytes(random.Random(0).randbytes(10_000_000))
    for option in ("fleet", "workload", "model"):
        ran = ask(planner, tmp_path, **{option: str(garbage)})
        assert ran.code == 1, ran
        assert "garbage.yaml" in ran.err
        assert len(ran.err) < 2000


def test_a_torn_trace(planner: Callable[..., object], tmp_path: Path) -> None:
    """A trace without a single whole request is an error, never zero demand."""
    trace = tmp_path / "trace.csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:0")
    ran = ask(planner, tmp_path, workload=str(trace))
    assert ran.code == 1, ran
    assert "trace.csv" in ran.err


def test_a_fleet_without_nics_still_plans_inside_its_nodes(planner: Callable[..., object], tmp_path: Path) -> None:
    """Without a NIC no KV leaves a node: a plan may still be found, and the note says so."""
    fleet = tmp_path / "fleet.yaml"
    text = FLEET.replace(", nics: {link: infiniband-ndr-400, count: 8}", "")
    fleet.write_text(text + "      - {name: n2, gpu: h100, gpus: 8}\n")
    options = GOOD | {"--fleet": str(fleet)}
    ran = planner("solve", *[part for pair in options.items() for part in pair], "--json")
    assert ran.code == 0, ran
    assert '"cross-rack"' not in ran.out
    assert "NIC" in ran.out


def test_requests_longer_than_the_context_are_refused(planner: Callable[..., object], tmp_path: Path) -> None:
    """A model of 2,048 tokens cannot serve prompts of 3,000, however many GPUs there are."""
    ran = ask(planner, tmp_path, model="opt-13b", workload="fixed:3000/10")
    assert ran.code == 1
    assert "longer than" in ran.err
    assert "2,048" in ran.err


def test_a_folder_that_is_not_there_is_said_before_anything_is_solved(planner: Callable[..., object]) -> None:
    ran = planner("solve", *[part for pair in GOOD.items() for part in pair], "-o", "/no/such/folder/plan.yaml")
    assert ran.code == 1
    assert "mkdir -p /no/such/folder" in ran.err


def test_an_option_that_is_missing_is_usage(planner: Callable[..., object]) -> None:
    ran = planner("solve", "--model", "llama-3.1-8b")
    assert ran.code == 2
    assert "--fleet" in ran.err
