"""`planner calibrate`: fits the engine overheads to measured points."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from splitplan.planner.cli.output import JsonFlag, note, print_json


def calibrate(
    files: Annotated[list[Path], typer.Argument(metavar="FILE…", help="CSV files of measured points.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Where to write the calibration.")] = None,
    json: JsonFlag = False,
) -> None:
    """Fit the overheads of engines to measurements of your own.

    The columns of the CSV files are in docs/accuracy.md. For every engine generation and GPU family among the points a
    handful of parameters is fitted, each with a physical meaning, and the interval that holds 90 % of held-out points.

    Example: planner calibrate measured.csv --output calibration.yaml
    """
    from splitplan.planner.calibrate.points import read_points
    from splitplan.planner.calibrate.run import calibrate as fit
    from splitplan.planner.calibrate.run import entries_text, write_entries

    points = [point for path in files for point in read_points(path)]
    entries = fit(points, "planner calibrate " + " ".join(path.name for path in files), note)
    if output is not None:
        write_entries(entries, output)
        note(f"wrote {len(entries)} entries to {output}")
    if json:
        print_json("calibration", {"entries": [entry.model_dump(mode="json") for entry in entries]})
    elif output is None:
        typer.echo(entries_text(entries), nl=False)
