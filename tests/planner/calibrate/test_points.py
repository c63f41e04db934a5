"""Reading measured points: what is known, what is unknown, what is wrong."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from splitplan.catalogs.errors import DocumentError
from splitplan.planner.calibrate.points import group_names, read_points
from tests.planner.calibrate.rows import COLUMNS, PUBLISHED, one_row


def written(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "measured.csv"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_empty_cells_are_unknown_and_milliseconds_become_seconds() -> None:
    points = read_points(PUBLISHED)
    assert len(points) == 9
    assert group_names(points) == ["argonne", "splitwise", "issues", "lmdeploy", "nvidia-aic-silicon"]
    early = points[3]
    assert early.ttft.p50_s == pytest.approx(0.0943)
    assert early.ttft.mean_s is None
    assert early.output_tokens_per_s is None
    assert points[6].rate_req_per_s == math.inf


def test_the_mean_is_scored_where_both_are_given(tmp_path: Path) -> None:
    text = one_row(ttft_ms_mean=20, ttft_ms_p50=10)
    assert read_points(written(tmp_path, text))[0].ttft.central == ("mean", 0.02)


def test_missing_columns_are_named_with_the_nearest_found(tmp_path: Path) -> None:
    with pytest.raises(DocumentError) as caught:
        read_points(written(tmp_path, "gpu,engine,mode,model,tp,isl,oslen\nH100,vllm,offline,x,1,1,1\n"))
    assert "missing column osl" in str(caught.value.problems[0])
    assert ":1" in str(caught.value.problems[0])


def test_every_bad_cell_is_reported_with_its_line_and_column(tmp_path: Path) -> None:
    rows = [one_row(isl=cell).splitlines()[1] for cell in ("", "-5", "many", "nan")]
    with pytest.raises(DocumentError) as caught:
        read_points(written(tmp_path, "\n".join([COLUMNS, *rows]) + "\n"))
    messages = [str(problem) for problem in caught.value.problems]
    assert len(messages) == 4
    assert all(f":{line} `isl`" in message for line, message in enumerate(messages, start=2))


def test_a_lenient_reader_keeps_bad_rows_as_unpredictable(tmp_path: Path) -> None:
    rows = [one_row().splitlines()[1], one_row(osl="?").splitlines()[1]]
    points = read_points(written(tmp_path, "\n".join([COLUMNS, *rows]) + "\n"), strict=False)
    assert [bool(point.problem) for point in points] == [False, True]
    assert "osl" in points[1].problem


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00garbage", COLUMNS.encode() + b"\n", b"kind: Fleet\n"])
def test_what_is_no_table_of_points_is_one_clear_error(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(DocumentError) as caught:
        read_points(written(tmp_path, content))
    assert len(caught.value.problems) == 1
    assert "measured.csv" in str(caught.value.problems[0])


def test_replicas_and_ranks_follow_from_the_number_of_gpus(tmp_path: Path) -> None:
    """Eight GPUs at TP 2 are four replicas where nothing else is said; at an unstated TP they are one engine."""

    def only(**cells: object) -> tuple[int, int]:
        found = read_points(written(tmp_path, one_row(**cells)))[0]
        return found.tp, found.replicas

    assert only(num_gpus=8, tp=2) == (2, 4)
    assert only(num_gpus=8, tp="") == (8, 1)
    assert only(num_gpus=8, tp="", replicas=2) == (4, 2)
    assert only(num_gpus="", tp=4) == (4, 1)
    assert only(num_gpus=8, tp=1, notes="attn_dp=8") == (1, 1)
