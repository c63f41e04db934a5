"""Profiles as files: round trip, the same bytes each time, one clear error for anything else."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest

from splitplan.catalogs.errors import ProfileError, UnknownNameError
from splitplan.profiler import store
from splitplan.profiler.profile import Profile


def small_profile(**changes: object) -> Profile:
    gemm = store.make_table(
        "gemm", {"dtype": ["fp8", "bf16", "bf16"], "m": [1, 64, 2], "n": [32] * 3, "k": [64] * 3}, [3e-6, 2e-6, 1e-6]
    )
    fields = {
        "gpu": "h100-sxm",
        "engine": "vllm",
        "engine_version": "0.24.0",
        "tables": {"gemm": gemm},
        "provenance": {"how": "made up for a test"},
        "notes": ("first", "second"),
    }
    return Profile(**{**fields, **changes})  # type: ignore[arg-type]


def test_a_saved_profile_reads_back_the_same(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "h100-sxm.vllm.npz"
    content_hash = store.save_profile(small_profile(), path)
    read = store.load_profile(path)
    assert (read.gpu, read.engine, read.engine_version) == ("h100-sxm", "vllm", "0.24.0")
    assert read.content_hash == content_hash
    assert read.notes == ("first", "second")
    assert read.provenance == {"how": "made up for a test"}
    table = read.tables["gemm"]
    assert table.keys["dtype"].tolist() == ["bf16", "bf16", "fp8"]
    assert table.keys["m"].tolist() == [2, 64, 1]
    np.testing.assert_allclose(table.seconds, [1e-6, 2e-6, 3e-6], rtol=1e-7)


def test_the_same_content_gives_the_same_bytes(tmp_path: Path) -> None:
    """Neither the order of rows, nor when or where a file is written, shows in it."""
    rows = {"dtype": ["bf16", "fp8"], "m": [1, 2], "n": [32, 32], "k": [64, 64]}
    swapped = {name: column[::-1] for name, column in rows.items()}
    one = store.encode_profile(small_profile(tables={"gemm": store.make_table("gemm", rows, [1e-6, 2e-6])}))
    other = store.encode_profile(small_profile(tables={"gemm": store.make_table("gemm", swapped, [2e-6, 1e-6])}))
    assert one == other


def test_loading_and_saving_again_keeps_the_hash(tmp_path: Path) -> None:
    path = tmp_path / "a.b.npz"
    content_hash = store.save_profile(small_profile(), path)
    assert store.save_profile(store.load_profile(path), tmp_path / "c.d.npz") == content_hash
    assert (tmp_path / "c.d.npz").read_bytes() == path.read_bytes()


def test_the_hash_covers_times_and_provenance() -> None:
    first = store.encode_profile(small_profile())[1]
    changed_rows = {"dtype": ["bf16"], "m": [1], "n": [32], "k": [64]}
    assert first != store.encode_profile(small_profile(provenance={"how": "otherwise"}))[1]
    assert first != store.encode_profile(small_profile(tables={"gemm": store.make_table("gemm", changed_rows, [1])}))[1]


def test_equal_shapes_become_their_median() -> None:
    rows = {"dtype": ["bf16"] * 4, "m": [1, 1, 1, 2], "n": [32] * 4, "k": [64] * 4}
    table = store.make_table("gemm", rows, [5.0, 1.0, 2.0, 9.0])
    assert table.keys["m"].tolist() == [1, 2]
    assert table.seconds.tolist() == [2.0, 9.0]


@pytest.mark.parametrize("latency", [0.0, -1.0, float("nan"), float("inf")])
def test_a_table_takes_only_positive_latencies(latency: float) -> None:
    with pytest.raises(ProfileError, match="not positive"):
        store.make_table("gemm", {"dtype": ["bf16"], "m": [1], "n": [1], "k": [1]}, [latency])


def test_a_table_takes_only_its_columns() -> None:
    with pytest.raises(ProfileError, match="columns"):
        store.make_table("gemm", {"m": [1]}, [1.0])
    with pytest.raises(ProfileError, match="unknown table"):
        store.make_table("gmm", {"m": [1]}, [1.0])


def _edit_header(data: bytes, **changes: object) -> bytes:
    source = zipfile.ZipFile(io.BytesIO(data))
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as target:
        for name in source.namelist():
            content = source.read(name)
            if name == "header.json":
                content = json.dumps({**json.loads(content), **changes}).encode()
            target.writestr(name, content)
    return buffer.getvalue()


def _numpy_archive() -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, a=np.arange(3))
    return buffer.getvalue()


GOOD = store.encode_profile(small_profile())[0]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a readable profile"),
        (b"gpu: h100\n", "not a readable profile"),
        (GOOD[: len(GOOD) // 2], "not a readable profile"),
        (_numpy_archive(), "not a readable profile"),
        (_edit_header(GOOD, kind="plan"), "not a profile"),
        (_edit_header(GOOD, version=2), "profile version 2, this release reads 1"),
        (_edit_header(GOOD, gpu="l40s"), "damaged or was edited"),
        (_edit_header(GOOD, tables=[]), "damaged or was edited"),
    ],
)
def test_anything_else_is_one_error_that_names_the_file(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "wrong.npz"
    path.write_bytes(content)
    with pytest.raises(ProfileError, match=message) as caught:
        store.load_profile(path)
    assert "wrong.npz" in str(caught.value)
    assert "planner profile" in str(caught.value)


def test_a_flipped_byte_in_a_table_is_found_when_the_table_is_used(tmp_path: Path) -> None:
    """The header reads, the table does not: the checksum of the archive or our own hash tells."""
    path = tmp_path / "flipped.npz"
    data = bytearray(GOOD)
    data[data.index(b"gemm.seconds.npy") + 60] ^= 0x10
    path.write_bytes(bytes(data))
    profile = store.load_profile(path)
    with pytest.raises(ProfileError, match="'gemm' is damaged"):
        profile.tables["gemm"]


def test_a_file_that_unpacks_to_too_much_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "bomb.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("header.json", b" " * 2_000_000)
    assert path.stat().st_size < 10_000
    monkeypatch.setattr(store, "MAX_FILE_BYTES", 1_000_000)
    with pytest.raises(ProfileError, match="not a readable profile"):
        store.load_profile(path)


def test_rows_that_do_not_match_the_header_are_found(tmp_path: Path) -> None:
    """An honest hash over columns of different lengths is still no table."""
    header = json.loads(zipfile.ZipFile(io.BytesIO(GOOD)).read("header.json"))
    header["tables"]["gemm"]["rows"] = 2
    unhashed = {name: value for name, value in header.items() if name != "content_hash"}
    path = tmp_path / "rows.npz"
    path.write_bytes(_edit_header(GOOD, **unhashed, content_hash=store._hash_header(unhashed)))
    with pytest.raises(ProfileError, match="'gemm' is damaged"):
        store.load_profile(path).tables["gemm"]


def test_a_missing_file_and_a_folder_are_said(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="cannot be read"):
        store.load_profile(tmp_path / "none.npz")
    with pytest.raises(ProfileError, match="is a folder"):
        store.load_profile(tmp_path)


def test_a_failed_save_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(store.os, "replace", fail)
    with pytest.raises(ProfileError, match=r"a\.b\.npz: cannot be written \(disk full\)"):
        store.save_profile(small_profile(), tmp_path / "a.b.npz")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_a_file_is_said(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(ProfileError, match="cannot be written"):
        store.save_profile(small_profile(), tmp_path / "taken" / "a.b.npz")


def test_profiles_are_found_by_gpu_and_engine(tmp_path: Path) -> None:
    store.save_profile(small_profile(), store.profile_path("h100-sxm", "vllm", tmp_path))
    assert store.list_profiles(tmp_path) == ["h100-sxm/vllm"]
    assert store.find_profile("h100-sxm", "vllm@0.24.0", tmp_path).engine_version == "0.24.0"
    with pytest.raises(UnknownNameError, match="did you mean h100-sxm/vllm"):
        store.find_profile("h100-sxm", "vlm", tmp_path)
    with pytest.raises(UnknownNameError, match="unknown profile"):
        store.find_profile("../../etc/passwd", "vllm", tmp_path)


def test_the_shipped_profiles_are_whole_and_small() -> None:
    """Every shipped table decodes to its hash; all of them together stay under 10 MB."""
    assert {"a100-sxm-80/vllm", "h100-sxm/vllm", "h200-sxm/vllm", "l40s/vllm"} <= set(store.list_profiles())
    assert sum(path.stat().st_size for path in store.PROFILE_FOLDER.glob("*.npz")) < 10e6
    for name in store.list_profiles():
        gpu, engine = name.split("/")
        profile = store.find_profile(gpu, engine)
        assert {"gemm", "prefill_attention", "decode_attention", "all_reduce", "moe"} <= set(profile.tables)
        assert all(len(profile.tables[family]) == profile.tables.rows(family) for family in profile.tables)  # type: ignore[attr-defined]
        assert "Apache-2.0" in profile.provenance["licence"]
