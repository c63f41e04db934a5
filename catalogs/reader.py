"""The one reader of the shipped catalogs, and the one rule by which names are matched."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from splitplan.catalogs.errors import InputError, Problem

CATALOG_DIR = Path(__file__).parent
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_catalog(path: Path, kind: str) -> dict[str, Any]:
    """A shipped catalog file as plain data. Its schema is checked by the tests, not at every start."""
    data = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)  # the loader is the safe one
    if not isinstance(data, dict) or data.get("kind") != kind or data.get("version") != 1:
        raise InputError(Problem("not a catalog of this version", str(path), expected=f"kind: {kind}, version: 1"))
    return data


def fold(name: str) -> str:
    """The form in which names are compared: case, spaces and underscores do not count, everything else does."""
    return re.sub(r"[\s_]+", "-", name.strip().casefold())


def index_names(entries: Mapping[str, Iterable[str]]) -> dict[str, str]:
    """Folded name or alias → canonical name. Whole names only: "H200" contains "H20", "L40S" contains "L40"."""
    index: dict[str, str] = {}
    for canonical, aliases in entries.items():
        for name in (canonical, *aliases):
            other = index.setdefault(fold(name), canonical)
            if other != canonical:
                raise InputError(f"catalog name '{name}' stands for both {other} and {canonical}")
    return index


def cite(text: str, sources: Mapping[str, Mapping[str, str]]) -> str:
    """Replace the bracketed source keys of a catalog line by their addresses."""

    def expand(match: re.Match[str]) -> str:
        keys = match.group(1).split(", ")
        return "[" + "; ".join(sources[key]["address"] if key in sources else key for key in keys) + "]"

    return re.sub(r"\[([A-Z0-9_]+(?:, [A-Z0-9_]+)*)\]", expand, text)
