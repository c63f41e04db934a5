"""Columns on disk, by the content they were computed from: a second question on the same fleet starts at once.

The key is a hash of everything that goes in, this code included; the file holds arrays and JSON, nothing executable. A
file that cannot be read is computed again; a folder that cannot be written is done without.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import tempfile
import zipfile
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np

from splitplan.planner.columns.build import ColumnSet
from splitplan.planner.columns.column import Column, Stage
from splitplan.planner.columns.shapes import Rejections
from splitplan.planner.latency.step import StepModel

MOST_FILES = 64
ROOMS = ("catalogs", "profiler", "planner/latency", "planner/columns", "planner/spec")


def cached_columns(key_parts: object, compute: Callable[[], ColumnSet]) -> ColumnSet:
    """The columns for these inputs, from disk where they are. `key_parts` must print the same for the same inputs."""
    folder = _folder()
    if folder is None:
        return compute()
    path = folder / f"{_key(key_parts)}.npz"
    try:
        return _load(path)
    except (OSError, EOFError, ValueError, KeyError, TypeError, zipfile.BadZipFile):
        found = compute()
        _save(path, found)
        return found


def _folder() -> Path | None:
    """The user's cache folder; None when SPLITPLAN_CACHE is set to nothing."""
    base = os.environ.get("SPLITPLAN_CACHE")
    if base == "":
        return None
    home = Path(base) if base else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "splitplan"
    return home / "columns"


def _key(key_parts: object) -> str:
    return hashlib.sha256(f"{_source_hash()}\n{key_parts!r}".encode()).hexdigest()[:32]


@functools.cache
def _source_hash() -> str:
    """A hash of the sources that columns depend on."""
    root = Path(__file__).parents[2]
    digest = hashlib.sha256()
    for room in ROOMS:
        for source in sorted((root / room).rglob("*.py")) + sorted((root / room).glob("*.yaml")):
            digest.update(str(source.relative_to(root)).encode())
            digest.update(source.read_bytes())
    return digest.hexdigest()


def _save(path: Path, found: ColumnSet) -> None:
    steps: list[StepModel] = []
    numbers: dict[int, int] = {}
    for column in found.columns:
        for step in (*column.step.stages, column.step):  # stages before the pipeline that they make
            if id(step) not in numbers:
                numbers[id(step)] = len(steps)
                steps.append(step)
    arrays: dict[str, Any] = {}
    head = {
        "columns": [_column_head(column, numbers[id(column.step)]) for column in found.columns],
        "steps": [_step_head(step, number, numbers, arrays) for number, step in enumerate(steps)],
        "rejections": dict(found.rejections.counts),
        "examples": found.rejections.examples,
        "considered": found.considered,
    }
    arrays["head"] = np.frombuffer(json.dumps(head).encode(), dtype=np.uint8)
    staging = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _drop_oldest(path.parent)
        handle, staging = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(handle, "wb") as stream:
            np.savez(stream, **arrays)
        os.replace(staging, path)
    except OSError:
        Path(staging).unlink(missing_ok=True) if staging else None


def _drop_oldest(folder: Path) -> None:
    files = sorted(folder.glob("*.npz"), key=lambda file: file.stat().st_mtime)
    for file in files[: max(0, len(files) - MOST_FILES + 1)]:
        file.unlink(missing_ok=True)


def _column_head(column: Column, step_number: int) -> dict[str, Any]:
    head = {field.name: getattr(column, field.name) for field in fields(Column)}
    stages = [asdict(stage) for stage in column.stages]
    return {**head, "work_s_per_request": column.work_s_per_request.tolist(), "step": step_number, "stages": stages}


def _step_head(step: StepModel, number: int, numbers: dict[int, int], arrays: dict[str, Any]) -> dict[str, Any]:
    """Plain values of a step model; its arrays go into `arrays`, its stages are steps of their own."""
    head: dict[str, Any] = {}
    for field in fields(StepModel):
        value = getattr(step, field.name)
        if isinstance(value, np.ndarray):
            arrays[f"{number}.{field.name}"] = value
        else:
            head[field.name] = value
    return {**head, "stages": [numbers[id(stage)] for stage in step.stages]}


def _load(path: Path) -> ColumnSet:
    with open(path, "rb") as stream, np.load(stream, allow_pickle=False) as stored:
        head = json.loads(stored["head"].tobytes())
        steps: list[StepModel] = []
        for number, step in enumerate(head["steps"]):
            steps.append(_step({**step, "stages": [steps[stage] for stage in step["stages"]]}, number, stored))
    columns = [
        Column(
            **{
                **entry,
                "work_s_per_request": np.array(entry["work_s_per_request"], dtype=np.float64),
                "step": steps[entry["step"]],
                "stages": tuple(Stage(**stage) for stage in entry["stages"]),
            }
        )
        for entry in head["columns"]
    ]
    return ColumnSet(columns, Rejections(Counter(head["rejections"]), head["examples"]), head["considered"])


def _step(head: dict[str, Any], number: int, stored: Any) -> StepModel:
    values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in head.items()}
    for field in fields(StepModel):
        if field.name not in head:
            values[field.name] = stored[f"{number}.{field.name}"]
    return StepModel(**values)
