"""Columns kept on disk by content."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from splitplan.planner.columns.build import ColumnSet
from splitplan.planner.columns.cache import cached_columns
from splitplan.planner.columns.column import Column
from splitplan.planner.columns.shapes import Rejections
from tests.planner.columns.test_capacity import step


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPLITPLAN_CACHE", str(tmp_path))
    return tmp_path / "columns"


def column_set() -> ColumnSet:
    shared = step()
    columns = [
        Column(
            name=f"{role} h100-sxm tp2",
            role=role,
            gpu="h100-sxm",
            tensor_parallel=2,
            pipeline_parallel=1,
            expert_parallel=1,
            weight_dtype="bf16",
            kv_dtype="bf16",
            block_tokens=16,
            max_num_seqs=64,
            max_num_batched_tokens=2048,
            max_model_len=8192,
            memory_fraction=0.9,
            kv_capacity_tokens=100_000,
            work_s_per_request=np.array([0.1, 0.2]),
            watts=1190.0,
            step=shared,
        )
        for role in ("prefill", "decode")
    ]
    found = ColumnSet(columns, Rejections(), 12)
    found.rejections.add("TPOT", "decode l40s tp1", "too slow")
    return found


def test_what_is_stored_comes_back_whole() -> None:
    """The second call computes nothing and returns equal columns, tables, and rejections."""
    first = cached_columns("key", column_set)
    second = cached_columns("key", lambda: pytest.fail("computed again"))
    for one, other in zip(first.columns, second.columns, strict=True):
        np.testing.assert_array_equal(one.work_s_per_request, other.work_s_per_request)
        np.testing.assert_array_equal(one.step.token_s, other.step.token_s)
        assert one.step.overhead_s == other.step.overhead_s
        assert (one.name, one.watts, one.transfer_reach) == (other.name, other.watts, other.transfer_reach)
    assert second.columns[0].step is second.columns[1].step
    assert second.rejections == first.rejections
    assert second.considered == 12


def test_other_inputs_are_computed() -> None:
    """Another key never gets this key's columns."""
    cached_columns("key", column_set)
    calls: list[int] = []
    cached_columns("other key", lambda: calls.append(1) or column_set())  # type: ignore[func-returns-value]
    assert calls


def test_a_damaged_file_is_computed_again(own_cache: Path) -> None:
    """Half a file on disk is no error and no answer."""
    cached_columns("key", column_set)
    (file,) = own_cache.glob("*.npz")
    for damage in (file.read_bytes()[:1000], b"", b"garbage"):
        file.write_bytes(damage)
        assert cached_columns("key", column_set).considered == 12


def test_a_folder_that_cannot_be_written_is_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    """A read-only home costs time, not the answer."""
    monkeypatch.setenv("SPLITPLAN_CACHE", "/proc/no-such-place")
    assert cached_columns("key", column_set).considered == 12
