"""docs/cases.md names a test for every published case, and the tests it names exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from tests.conftest import SHARED, needs_shared

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "cases.md").read_text(encoding="utf-8")
ROWS = [line.split("|")[1].strip() for line in PAGE.splitlines() if line.startswith("| ") and "::" in line]
NAMED = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)


def test_every_test_on_the_page_exists() -> None:
    assert len(NAMED) > 35
    for path, name in NAMED:
        assert f"def {name}(" in (ROOT / path).read_text(encoding="utf-8"), (path, name)


@needs_shared
@pytest.mark.parametrize("name", ["reports", "placement"])
def test_every_case_is_on_the_page(name: str) -> None:
    """Nothing of the reference lists is left out."""
    cases = yaml.safe_load((SHARED / "cases" / f"{name}.yaml").read_text(encoding="utf-8"))["cases"]
    missing = [case["id"] for case in cases if f"| {case['id']} |" not in PAGE]
    assert not missing


def test_no_case_stands_there_twice() -> None:
    assert len(ROWS) == len(set(ROWS))
