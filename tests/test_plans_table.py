"""docs/plans.md is what the tool answers: one of its rows, made again."""

from __future__ import annotations

from pathlib import Path

from benchmarks.plans import Row, result, rows

PAGE = (Path(__file__).parent.parent / "docs" / "plans.md").read_text(encoding="utf-8")


def test_the_page_has_every_fleet_workload_and_target() -> None:
    """Four fleets × three workloads × two targets."""
    titles = [f"## {row.fleet}: {row.workload}, {row.target}" for row in rows()]
    assert len(titles) == 24
    assert all(title in PAGE for title in titles)


def test_one_row_comes_out_again() -> None:
    """The chosen plan and each alternative of a row stand in the page word for word."""
    row = Row("a100-l40s", "chat", "loose")
    section = PAGE.split(f"## {row.fleet}: {row.workload}, {row.target}\n")[1].split("\n## ")[0]
    found = result(row)
    assert f"| **chosen** | **{found['plan']}** |" in section
    alternatives = found["alternatives"]
    assert isinstance(alternatives, dict)
    for label, text in alternatives.items():
        assert f"| {label} | {text} |" in section
