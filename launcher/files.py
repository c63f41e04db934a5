"""Writing a set of generated files: all of them or none, and never over somebody else's files."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from splitplan.catalogs.errors import LaunchError, Problem

MARKER = ".splitplan-files"
"""Lists what we wrote into a folder, so that the next run may replace it and nothing else."""


def write_folder(files: Mapping[str, str], folder: str | Path) -> None:
    """Write `files` (relative path → text) as the whole content of `folder`.

    The folder is built beside its place and renamed, so that a full disk or a Ctrl-C leaves no half-written one. A
    folder that holds anything we did not write is left alone: LaunchError. Scripts (`*.sh`) become executable.
    """
    target = Path(folder)
    _check_replaceable(target)
    staging: Path | None = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
        for name, text in files.items():
            _write(staging / name, text)
        _write(staging / MARKER, "\n".join(sorted(files)) + "\n")
        staging.chmod(0o755)
        _swap(staging, target)
    except OSError as error:
        raise LaunchError(Problem(f"cannot write: {error.strerror or error}", str(target))) from None
    finally:
        if staging is not None and staging.exists():
            shutil.rmtree(staging, ignore_errors=True)


def write_file(path: str | Path, text: str, *, mode: int = 0o644) -> None:
    """Write one file so that readers see the old text or the new one, never a part."""
    target = Path(path)
    staging = ""
    try:
        handle, staging = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
        os.chmod(staging, mode)
        os.replace(staging, target)
    except OSError as error:
        if staging:
            Path(staging).unlink(missing_ok=True)
        raise LaunchError(Problem(f"cannot write: {error.strerror or error}", str(target))) from None


def as_stream(files: Mapping[str, str]) -> str:
    """The files as one text for stdout, each under a line that names it."""
    return "".join(f"# ==== {name}\n{text.rstrip()}\n\n" for name, text in files.items())


def _check_replaceable(target: Path) -> None:
    if not target.exists() and not target.is_symlink():
        return
    if not target.is_dir() or target.is_symlink():
        raise LaunchError(Problem("is not a folder", str(target), next_step="choose another folder with -o"))
    present = {str(path.relative_to(target)) for path in target.rglob("*") if not path.is_dir() or path.is_symlink()}
    marker = target / MARKER
    ours = set(marker.read_text(encoding="utf-8").splitlines()) if marker.is_file() else set()
    strange = sorted(present - ours - {MARKER})
    if strange:
        raise LaunchError(
            Problem(
                f"holds files that splitplan did not write, for instance {strange[0]!r}",
                str(target),
                next_step="choose an empty or new folder with -o",
            )
        )


def _swap(staging: Path, target: Path) -> None:
    if not target.exists():
        staging.rename(target)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{target.name}.old.", dir=target.parent))
    target.rename(old / "was")
    try:
        staging.rename(target)
    except OSError:
        (old / "was").rename(target)
        raise
    finally:
        shutil.rmtree(old, ignore_errors=True)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    if path.suffix == ".sh":
        path.chmod(0o755)
