"""`python -m benchmarks.accuracy FILE… [--held-out] [--json] [--rows]`

Predicts every measured point of CSV files (columns: docs/accuracy.md) and prints errors by GPU, engine and mode.
With --held-out each point is predicted by a calibration fitted without its source group.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from benchmarks.accuracy.table import print_markdown, print_report, row_record
from splitplan.catalogs.errors import SplitplanError
from splitplan.planner.calibrate.accuracy import score_points
from splitplan.planner.calibrate.disagg import is_disagg_file, read_disagg, score_disagg
from splitplan.planner.calibrate.points import Point, read_points
from splitplan.planner.calibrate.run import fit_all, held_out_overhead, usable_cases, with_spreads
from splitplan.planner.calibrate.score import Row, groups, total


def main(arguments: list[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        split = [path for path in options.files if is_disagg_file(path)]
        points = [point for path in options.files if path not in split for point in read_points(path, strict=False)]
        runs = [run for path in split for run in read_disagg(path)]
    except SplitplanError as error:
        for problem in error.problems:
            sys.stderr.write(f"error: {problem}\n")
        return error.exit_code
    rows = held_out_rows(points) if options.held_out else score_points(points)
    rows += [score_disagg(run) for run in runs]
    if options.markdown:
        print_markdown(rows)
    elif options.json:
        _print_json(rows, with_rows=options.rows)
    else:
        print_report(rows, held_out=options.held_out, with_rows=options.rows)
    return 0


def held_out_rows(points: list[Point]) -> list[Row]:
    """Every point by a calibration that never saw its source, with the interval such predictions deserve."""
    cases, _ = usable_cases(points)
    fitted = fit_all(cases, lambda text: print(f"fitting {text}", file=sys.stderr))
    first = score_points(points, held_out_overhead(fitted))
    return score_points(points, held_out_overhead(with_spreads(fitted, first)))


def _print_json(rows: list[Row], *, with_rows: bool) -> None:
    document: dict[str, Any] = {"total": total(rows), "groups": groups(rows)}
    if with_rows:
        for row in rows:
            sys.stdout.write(json.dumps(row_record(row), allow_nan=False) + "\n")
        sys.stdout.write(json.dumps(document, allow_nan=False) + "\n")
    else:
        sys.stdout.write(json.dumps(document, indent=2, allow_nan=False) + "\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accuracy", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="CSV of measured points")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--markdown", action="store_true", help="the tables of docs/accuracy.md")
    parser.add_argument("--rows", action="store_true", help="a line for each row, before the totals")
    parser.add_argument("--held-out", action="store_true", help="predict each source by a fit without it")
    return parser


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BrokenPipeError:  # the reader, such as `head`, has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
