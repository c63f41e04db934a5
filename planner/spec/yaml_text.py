"""Writing the files that people read: lists of numbers on as few lines as fit, keys in the order given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml


def yaml_text(document: Mapping[str, Any]) -> str:
    """A document as YAML with innermost lists and mappings on one line where they fit; deterministic."""
    return yaml.safe_dump(dict(document), sort_keys=False, width=140, allow_unicode=True, default_flow_style=None)
