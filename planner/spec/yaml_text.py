"""Writing the files that people read: lists of numbers on as few lines as fit, keys in the order given."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from splitplan.catalogs.errors import InputError, Problem


def yaml_text(document: Mapping[str, Any]) -> str:
    """A document as YAML with innermost lists and mappings on one line where they fit; deterministic."""
    return yaml.safe_dump(dict(document), sort_keys=False, width=140, allow_unicode=True, default_flow_style=None)


def write_text(path: Path, text: str) -> None:
    """Write a whole file or none of it. Raises InputError when it cannot be written."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    except (OSError, ValueError) as error:
        partial.unlink(missing_ok=True)
        raise InputError(Problem(f"cannot write: {error}", str(path), next_step="choose another file")) from None
