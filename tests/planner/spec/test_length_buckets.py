"""Length buckets: how they are asked for, where they are cut, and which runs of them there are."""

from __future__ import annotations

import numpy as np
import pytest

from splitplan.catalogs.errors import UsageError
from splitplan.planner.spec.length_buckets import (
    PromptRange,
    buckets,
    length_edges,
    parse_length_buckets,
    runs_of_buckets,
    work_shares,
)
from splitplan.planner.spec.workload import load_workload


@pytest.mark.parametrize(
    ("text", "wanted"), [("", 0), ("auto", 3), ("2", 2), ("2000", (2000,)), (" 2000, 8_000 ", (2000, 8000))]
)
def test_buckets_are_a_number_or_edges(text: str, wanted: int | tuple[int, ...]) -> None:
    """A small number counts buckets, a large one is an edge."""
    assert parse_length_buckets(text) == wanted


@pytest.mark.parametrize("text", ["1", "7", "two", "8000,2000", "-5", "2000,2000", "1,2,3,4,5,6,7", "0", "²"])
def test_other_words_are_refused(text: str) -> None:
    """With what is expected instead."""
    with pytest.raises(UsageError, match="length buckets"):
        parse_length_buckets(text)


@pytest.mark.parametrize("name", ["mooncake-conversation", "azure-code"])
@pytest.mark.parametrize("number", [2, 3])
def test_buckets_hold_about_the_same_work(name: str, number: int) -> None:
    """Edges are rounded to two digits, so the parts are not quite equal."""
    workload = load_workload(name)
    edges = length_edges(workload, str(number))
    share = work_shares(workload)
    parts = [float(share[prompts.holds(workload.input_tokens)].sum()) for prompts in buckets(edges)]
    assert len(parts) == number
    assert sum(parts) == pytest.approx(1.0)
    assert all(part == pytest.approx(1 / number, abs=0.05) for part in parts)
    assert edges == length_edges(workload.at_rate(3 * workload.rate_req_per_s), str(number))


def test_edges_without_requests_on_both_sides_are_dropped() -> None:
    """Prompts of one length are one bucket, whatever was asked for."""
    workload = load_workload("fixed:1024/200", rate_req_per_s=1.0)
    assert length_edges(workload, "auto") == ()
    assert length_edges(workload, "2000") == ()
    assert length_edges(load_workload("azure-code"), "100,1000000") == (100,)


def test_runs_are_all_neighbours_together() -> None:
    """All prompts first, then what is left of them; three buckets make six runs."""
    assert [str(run) for run in runs_of_buckets((2000, 8000))] == [
        "all prompts",
        "prompts up to 8,000",
        "prompts over 2,000",
        "prompts up to 2,000",
        "prompts of 2,001–8,000",
        "prompts over 8,000",
    ]


def test_every_prompt_is_in_one_bucket() -> None:
    """An edge belongs to the bucket below it."""
    parts = buckets((2000, 8000))
    lengths = np.array([1, 2000, 2001, 8000, 8001])
    held = np.array([prompts.holds(lengths) for prompts in parts])
    assert held.sum(axis=0).tolist() == [1] * 5
    assert held.argmax(axis=0).tolist() == [0, 0, 1, 1, 2]


def test_ranges_cover_and_meet() -> None:
    """A range covers what lies in it and meets what it shares prompts with."""
    low, middle, high, everything = PromptRange(0, 10), PromptRange(5, 15), PromptRange(10, 0), PromptRange()
    assert everything.covers(low)
    assert everything.covers(high)
    assert not low.covers(everything)
    assert low.meets(middle)
    assert middle.meets(high)
    assert not low.meets(high)
    assert not middle.covers(high)
    assert high.meets(everything)
