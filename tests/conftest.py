"""Helpers for all tests."""

from __future__ import annotations

from pathlib import Path

import pytest

SHARED = next(
    (parent / "shared" for parent in Path(__file__).parents if (parent / "shared" / "data" / "measured").is_dir()),
    Path("/nonexistent"),
)
"""The folder of reference data beside the checkout, where there is one."""

needs_shared = pytest.mark.skipif(
    not SHARED.is_dir(), reason="needs the reference data in shared/, which is not part of the project"
)
