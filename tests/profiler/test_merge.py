"""Measured here before published: the measured rows win, and the published ones are fitted to them."""

from __future__ import annotations

import numpy as np
import pytest

from splitplan.catalogs.errors import ProfileError
from splitplan.catalogs.gpus import find_gpu
from splitplan.profiler.merge import merge_profiles
from splitplan.profiler.profile import Basis, Profile
from splitplan.profiler.query import OpTimes
from splitplan.profiler.store import find_profile, make_table

A100 = find_gpu("a100-sxm-80")
N, K = [14336, 14336, 4096], [8192, 8192, 4096]
M = [64, 1024, 64]


def measured(slower: float) -> Profile:
    """Three products of a model's own shapes, all `slower` times what the published table says, and a copy."""
    published = OpTimes(find_profile("a100-sxm-80", "vllm"), A100).gemm(M, N, K).seconds
    gemm = make_table("gemm", {"dtype": ["bf16"] * 3, "m": M, "n": N, "k": K}, slower * published)
    copies = make_table("elementwise", {"kind": ["copy"], "num_bytes": [1 << 20]}, [3e-6])
    provenance = {"device": "NVIDIA A100-SXM4-80GB", "date": "2026-11-29"}
    return Profile("a100-sxm-80", "splitplan", "0.1", {"gemm": gemm, "elementwise": copies}, provenance)


def test_measured_rows_win_and_published_ones_are_scaled_to_meet_them() -> None:
    base = find_profile("a100-sxm-80", "vllm")
    merged = merge_profiles(base, measured(1.2), A100)
    before, after = OpTimes(base, A100), OpTimes(merged, A100)
    own = after.gemm(M, N, K)
    np.testing.assert_allclose(own.seconds, 1.2 * before.gemm(M, N, K).seconds, rtol=1e-6)
    assert np.all(own.basis == Basis.MEASURED)
    elsewhere = (np.array([100, 3000]), 10000, 5000)
    np.testing.assert_allclose(after.gemm(*elsewhere).seconds, 1.2 * before.gemm(*elsewhere).seconds, rtol=1e-6)
    context = (8, np.array([1024, 3000]))
    shape = {"heads": 8, "kv_heads": 2, "head_dim": 128}
    np.testing.assert_array_equal(
        after.decode_attention(*context, **shape).seconds, before.decode_attention(*context, **shape).seconds
    )


def test_a_merged_profile_says_what_it_is_made_of() -> None:
    base = find_profile("a100-sxm-80", "vllm")
    merged = merge_profiles(base, measured(1.2), A100)
    assert merged.provenance["merged (gemm)"] == "3 rows measured; base times 1.20–1.20"
    assert merged.provenance["measured device"] == "NVIDIA A100-SXM4-80GB"
    assert merged.provenance["base source"] == base.provenance["source"]
    assert len(merged.tables["gemm"]) == len(base.tables["gemm"]) + 2
    assert len(merged.tables["elementwise"]) == 1
    assert len(base.tables["gemm"]) == 9240


def test_profiles_of_different_gpus_are_not_merged() -> None:
    with pytest.raises(ProfileError, match="cannot be merged"):
        merge_profiles(find_profile("h100-sxm", "vllm"), measured(1.0), A100)
