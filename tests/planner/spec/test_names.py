"""Host names in ranges."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitplan.catalogs.errors import InputError, SplitplanError
from splitplan.planner.spec.names import compress_names, expand_names


def test_ranges_lists_and_leading_zeros() -> None:
    assert expand_names("srv[08-10,3]") == ("srv08", "srv09", "srv10", "srv3")
    assert expand_names("r[1-2]n[1-2]") == ("r1n1", "r1n2", "r2n1", "r2n2")
    assert expand_names("plain") == ("plain",)


@pytest.mark.parametrize("pattern", ["a[", "a]", "a[]", "a[1-]", "a[2-1]", "a[x]", "a[[1]]", "a[1-99999999]"])
def test_bad_patterns_are_refused(pattern: str) -> None:
    with pytest.raises(InputError, match=r"gpu\[01-04,7\]"):
        expand_names(pattern)


def test_too_many_names_are_refused_before_they_are_made() -> None:
    with pytest.raises(InputError, match="more than"):
        expand_names("[0-999][0-999][0-999]")


@given(st.lists(st.from_regex(r"[a-c]?[0-9]{0,3}", fullmatch=True).filter(bool), min_size=1, max_size=8))
def test_compressing_names_loses_nothing(names: list[str]) -> None:
    pattern = compress_names(names)
    assert pattern is None or expand_names(pattern) == tuple(names)


def test_a_run_of_names_becomes_one_pattern() -> None:
    assert compress_names(["h01", "h02", "h03", "h7"]) == "h[01-03,7]"


@given(st.text(max_size=30))
def test_any_pattern_expands_or_is_refused_politely(pattern: str) -> None:
    with contextlib.suppress(SplitplanError):
        assert expand_names(pattern)
