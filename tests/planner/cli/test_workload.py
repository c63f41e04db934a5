"""`planner workload` and `planner fleet` as a user types them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from splitplan.catalogs.errors import SplitplanError
from splitplan.planner.cli.main import app
from splitplan.planner.spec.trace.read import read_trace
from splitplan.planner.spec.workload import load_workload, sample

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


def planner(*arguments: str) -> Result:
    result = CliRunner().invoke(app, list(arguments))
    if isinstance(result.exception, SplitplanError):
        raise result.exception
    return result


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    rows = (
        f"2024-05-10 00:{second // 60:02d}:{second % 60:02d},{100 + second % 50},{1 + second % 7}\n"
        for second in range(600)
    )
    path.write_text(AZURE + "".join(rows) + "2024-05-10 01:00:00,0,5\n")
    return path


def test_show_describes_a_shipped_workload() -> None:
    result = planner("workload", "show", "azure-conv", "--rate", "24")
    assert result.exit_code == 0
    assert "24 requests/s, 27713 prompt and 5067 generated tokens/s" in result.stdout
    assert "CV 1.09" in result.stdout


def test_show_keeps_data_on_stdout_and_notes_on_stderr(trace: Path) -> None:
    result = planner("workload", "show", str(trace), "--json")
    summary = json.loads(result.stdout)
    assert (summary["kind"], summary["num_requests"], summary["rate_req_per_s"]) == ("workload", 600, 1.0)
    assert summary["busiest_req_per_s"] == {"1 s": 1.0, "10 s": 1.0, "60 s": 1.0}
    assert "1 rows left out: no prompt tokens (line 602)" in planner("workload", "show", str(trace)).stderr


def test_fit_writes_a_file_that_every_command_reads(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "mine.yaml"
    planner("workload", "fit", str(trace), "--name", "mine", "--out", str(out))
    workload = load_workload(out)
    assert (workload.name, workload.rate_req_per_s) == ("mine", 1.0)
    assert float(workload.input_tokens @ workload.weight) == pytest.approx(124.5, rel=1e-3)
    printed = planner("workload", "fit", str(trace), "--name", "mine").stdout
    assert yaml.safe_load(printed) == yaml.safe_load(out.read_text())


def test_fit_names_the_workload_after_the_file_unless_told(trace: Path) -> None:
    assert yaml.safe_load(planner("workload", "fit", str(trace)).stdout)["name"] == "trace"


def test_fit_keeps_classes_apart(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "mine.yaml"
    planner("workload", "fit", str(trace), "--name", "m", "--out", str(out), "--column", "class=GeneratedTokens")
    assert [each.name for each in load_workload(out).classes] == [str(number) for number in range(1, 8)]


def test_fit_splits_by_prompt_length_and_keeps_hours(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "mine.yaml"
    planner("workload", "fit", str(trace), "--name", "m", "--out", str(out), "--split", "110,130", "--hourly")
    workload = load_workload(out)
    assert [each.name for each in workload.classes] == ["input<=110", "input<=130", "input>130"]
    assert workload.weight[workload.class_index == 0].sum() == pytest.approx(11 / 50)
    assert workload.hourly_req_per_s == pytest.approx([1.0], rel=0.01)
    with pytest.raises(SplitplanError, match="as in 2000,8000"):
        planner("workload", "fit", str(trace), "--name", "m", "--split", "a,b")


def test_samples_read_back_as_the_trace_they_are(tmp_path: Path) -> None:
    out = tmp_path / "requests.jsonl"
    planner("workload", "sample", "mooncake-synthetic", "-n", "50", "--seed", "3", "--out", str(out))
    drawn = sample(load_workload("mooncake-synthetic"), 50, 3)
    again = read_trace(out).requests
    assert again.input_tokens.tolist() == drawn.input_tokens.tolist()
    assert again.cached_tokens.tolist() == drawn.cached_tokens.tolist()
    assert again.arrival_s.tolist() == pytest.approx((drawn.arrival_s - drawn.arrival_s[0]).tolist())
    lines = planner("workload", "sample", "mooncake-synthetic", "-n", "50", "--seed", "3").stdout
    assert lines == out.read_text()


def test_sample_of_a_trace_keeps_prefix_blocks(tmp_path: Path) -> None:
    source = tmp_path / "trace.jsonl"
    rows = [{"timestamp": 100 * i, "input_length": 600, "output_length": 2, "hash_ids": [0, i]} for i in range(10)]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    out = tmp_path / "out.jsonl"
    planner("workload", "sample", str(source), "-n", "10", "--out", str(out))
    prefix = read_trace(out).requests.prefix
    assert prefix is not None
    assert (prefix.block_tokens, sorted(prefix.hashes.tolist())) == (512, sorted([0] * 10 + list(range(10))))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("workload", "show", "azure-cnv"), "did you mean azure-conv"),
        (("workload", "show", "azure-conv", "--rate", "0"), "a finite number above 0"),
        (("workload", "show", "azure-conv", "--start", "5"), "no window to cut"),
        (("workload", "show", "azure-conv", "--column", "input"), "expected ROLE=NAME"),
        (("workload", "fit", "missing.csv", "--name", "x"), "no such trace"),
        (("fleet", "show", "four-rack"), "did you mean four-racks"),
        (("fleet", "check", "four-racks", "--price-kind", "spott"), "did you mean spot"),
    ],
)
def test_mistakes_become_one_message(arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(SplitplanError) as caught:
        planner(*arguments)
    assert message in str(caught.value)


def test_a_file_that_cannot_be_written_leaves_nothing_behind(trace: Path, tmp_path: Path) -> None:
    with pytest.raises(SplitplanError, match="cannot write"):
        planner("workload", "fit", str(trace), "--name", "m", "--out", str(tmp_path / "no" / "such.yaml"))
    assert [path.name for path in tmp_path.iterdir()] == ["trace.csv"]


def test_the_drawing_of_a_fleet_has_identical_racks_once() -> None:
    text = planner("fleet", "show", "64-racks").stdout
    assert "24 racks h[01-24], each  up 1600 Gbit/s" in text
    assert "*-n[1-4]  ■■■■■■■■ h100-sxm on nvlink4, 8 x ib-ndr (3200 Gbit/s)" in text
    assert len(text.splitlines()) < 40


def test_racks_that_alternate_are_drawn_in_two_groups(tmp_path: Path) -> None:
    path = tmp_path / "lab.yaml"
    racks = "".join(
        f"  - {{name: r{number}, nodes: [{{gpu: {'l4' if number % 2 else 'h100'}, gpus: 1}}]}}\n"
        for number in range(1, 41)
    )
    path.write_text(f"kind: Fleet\nversion: 1\nname: lab\nracks:\n{racks}")
    text = planner("fleet", "show", str(path)).stdout
    assert "20 racks r[1,3,5,7,9,11,13,15,17,19,21,23,25,27,29,31,33,35,37,39], each" in " ".join(text.split())


def test_gpus_in_use_are_drawn_hollow(tmp_path: Path) -> None:
    path = tmp_path / "lab.yaml"
    node = "{name: a, gpu: l4, gpus: 4, gpus_in_use: [1]}"
    path.write_text(f"kind: Fleet\nversion: 1\nname: lab\nracks:\n  - name: r\n    nodes: [{node}]\n")
    assert "a  ■□■■ l4 on pcie4-x16, no NIC" in planner("fleet", "show", str(path)).stdout


def test_check_says_what_there_is_and_what_was_assumed(tmp_path: Path) -> None:
    path = tmp_path / "quick.yaml"
    path.write_text("kind: Fleet\nversion: 1\nname: quick\ngpus: {h100: 16}\n")
    result = planner("fleet", "check", str(path))
    assert result.stdout == "quick: 16 h100-sxm in 2 nodes and 1 racks; no problems\n"
    assert "note: h100-sxm: assumed nodes of 8 GPUs" in result.stderr
    assert json.loads(planner("fleet", "check", str(path), "--json").stdout)["gpus"] == {"h100-sxm": 16}


def test_json_of_a_fleet_is_a_fleet_file(tmp_path: Path) -> None:
    shown = json.loads(planner("fleet", "show", "four-racks", "--json").stdout)
    path = tmp_path / "again.json"
    path.write_text(json.dumps(shown["fleet"]))
    again = json.loads(planner("fleet", "check", str(path), "--json").stdout)
    assert again["content_hash"] == shown["content_hash"]
