"""Fleets and workloads that ship with the project, by name."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from splitplan.catalogs.errors import UnknownNameError

CATALOGS = Path(__file__).resolve().parents[2] / "catalogs"
MAX_PATH_BYTES = 4096
Kind = Literal["fleet", "workload"]


def shipped_names(kind: Kind) -> tuple[str, ...]:
    """Names of what ships, sorted."""
    return tuple(sorted(path.stem for path in (CATALOGS / f"{kind}s").glob("*.yaml")))


def file_of(kind: Kind, path_or_name: str | Path) -> Path:
    """The file meant by a path or a shipped name. Raises UnknownNameError for a bare name that nothing has."""
    path, name = Path(path_or_name), str(path_or_name)
    if _can_be_path(name) and (_exists(path) or path.suffix or len(path.parts) != 1):
        return path
    if name not in shipped_names(kind):
        raise UnknownNameError(kind, name, shipped_names(kind))
    return CATALOGS / f"{kind}s" / f"{name}.yaml"


def _can_be_path(name: str) -> bool:
    """Whether the operating system takes the text for a path at all."""
    try:
        return 0 < len(os.fsencode(name)) < MAX_PATH_BYTES and "\0" not in name
    except UnicodeEncodeError:
        return False


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a part longer than the file system allows
        return False
