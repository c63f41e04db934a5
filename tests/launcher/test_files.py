"""Generated folders: whole or not there, and nobody else's files are touched."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from splitplan.catalogs.errors import LaunchError
from splitplan.launcher import files as files_module
from splitplan.launcher.files import write_file, write_folder


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_a_second_write_replaces_the_whole_first_one(tmp_path: Path) -> None:
    write_folder({"a.yaml": "1", "hosts/b.sh": "2"}, tmp_path / "out")
    write_folder({"c.yaml": "3"}, tmp_path / "out")
    assert names(tmp_path / "out") == {"c.yaml", ".splitplan-files"}
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_folder_with_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("years of work")
    with pytest.raises(LaunchError, match=r"thesis\.tex"):
        write_folder({"a.yaml": "1"}, tmp_path / "out")
    assert names(tmp_path / "out") == {"thesis.tex"}


def test_a_file_added_to_our_folder_protects_it(tmp_path: Path) -> None:
    write_folder({"a.yaml": "1"}, tmp_path / "out")
    (tmp_path / "out" / "notes.txt").write_text("mine")
    with pytest.raises(LaunchError, match=r"notes\.txt"):
        write_folder({"a.yaml": "2"}, tmp_path / "out")
    assert (tmp_path / "out" / "a.yaml").read_text() == "1"


def test_a_failure_half_way_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a full disk: the second file cannot be written."""
    write_folder({"a.yaml": "old"}, tmp_path / "out")
    real = files_module._write

    def full(path: Path, text: str) -> None:
        if path.name == "b.yaml":
            raise OSError(28, "No space left on device")
        real(path, text)

    monkeypatch.setattr(files_module, "_write", full)
    with pytest.raises(LaunchError, match="No space left"):
        write_folder({"a.yaml": "new", "b.yaml": "new"}, tmp_path / "out")
    assert (tmp_path / "out" / "a.yaml").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_scripts_are_executable_and_folders_readable(tmp_path: Path) -> None:
    write_folder({"hosts/a.sh": "#!/bin/bash\n"}, tmp_path / "deep" / "out")
    assert os.access(tmp_path / "deep" / "out" / "hosts" / "a.sh", os.X_OK)
    assert (tmp_path / "deep" / "out").stat().st_mode & 0o777 == 0o755


def test_a_file_in_the_way_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    with pytest.raises(LaunchError, match="not a folder"):
        write_folder({"a": "1"}, tmp_path / "out")


def test_one_file_is_replaced_whole(tmp_path: Path) -> None:
    write_file(tmp_path / "state.json", "one")
    write_file(tmp_path / "state.json", "two")
    assert (tmp_path / "state.json").read_text() == "two"
    assert [path.name for path in tmp_path.iterdir()] == ["state.json"]
