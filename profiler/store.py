"""Profiles as files: an NPZ whose columns are dictionary-encoded, so that a hundred thousand rows load in milliseconds.

Members: `header.json` (kind, version, gpu, engine, provenance, notes, and of each table its rows and SHA-256), and for
each table `<family>.<column>.values` (the distinct values, ascending), `<family>.<column>.codes` (their index, per row)
and `<family>.seconds`. `numpy.load` opens them too. The same content gives the same bytes: rows are sorted, time stamps
fixed. Tables are decoded, and checked against their hash, when first used.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from splitplan.catalogs.errors import Problem, ProfileError, UnknownNameError, shorten
from splitplan.profiler.families import FAMILIES, TEXT_COLUMNS
from splitplan.profiler.profile import OpTable, Profile

PROFILE_VERSION = 1
PROFILE_FOLDER = Path(__file__).parent.parent / "catalogs" / "profiles"
MAX_FILE_BYTES = 256 * 2**20  # far above any real profile: a guard against being given something else
_ZIP_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest a zip can say: files must not depend on when they are written


def make_table(family: str, keys: Mapping[str, Any], seconds: Any) -> OpTable:
    """A table with its columns checked and its rows sorted; equal shapes are merged to their median.

    Rows whose latency is not a positive finite number are an error here: importers drop and count them first.
    """
    columns = FAMILIES.get(family)
    if columns is None:
        raise ProfileError(Problem(f"unknown table '{shorten(family)}'", expected=", ".join(FAMILIES)))
    if set(keys) != set(columns):
        raise ProfileError(Problem(f"table '{family}' has columns {sorted(keys)}", expected=", ".join(columns)))
    times = np.asarray(seconds, dtype=np.float32).astype(np.float64)
    if not bool(np.all(np.isfinite(times) & (times > 0))):
        raise ProfileError(Problem(f"table '{family}' has latencies that are not positive", expected="seconds > 0"))
    ordered = {name: np.asarray(keys[name], dtype=str if name in TEXT_COLUMNS else np.int64) for name in columns}
    if any(len(column) != len(times) for column in ordered.values()):
        raise ProfileError(f"table '{family}': columns differ in length")
    return _merge_equal_rows(family, ordered, times)


def save_profile(profile: Profile, path: Path) -> str:
    """Writes a profile and returns its content hash. The file appears whole or not at all."""
    data, content_hash = encode_profile(profile)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".profile-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            os.chmod(temporary, 0o644)
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        reason = error.strerror or str(error)
        problem = Problem(f"cannot be written ({reason})", shorten(path, 200), next_step="another folder, with -o")
        raise ProfileError(problem) from error
    return content_hash


def encode_profile(profile: Profile) -> tuple[bytes, str]:
    """The file's bytes and the content hash (SHA-256 over header and columns; compression does not enter it)."""
    members: dict[str, bytes] = {}
    tables: dict[str, dict[str, Any]] = {}
    for family in sorted(profile.tables):
        table = profile.tables[family]
        arrays = _encode_table(table)
        tables[family] = {"rows": len(table), "sha256": _hash_arrays(arrays)}
        members |= {f"{family}.{name}.npy": _npy_bytes(array) for name, array in arrays.items()}
    header = {
        "kind": "profile",
        "version": PROFILE_VERSION,
        "gpu": profile.gpu,
        "engine": profile.engine,
        "engine_version": profile.engine_version,
        "provenance": dict(sorted(profile.provenance.items())),
        "notes": list(profile.notes),
        "tables": tables,
    }
    content_hash = _hash_header(header)
    text = json.dumps({**header, "content_hash": content_hash}, indent=1, sort_keys=True, ensure_ascii=False)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, content in {"header.json": text.encode(), **members}.items():
            info = zipfile.ZipInfo(name, _ZIP_EPOCH)
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, content)
    return buffer.getvalue(), content_hash


def load_profile(path: Path | str) -> Profile:
    """Reads a profile. What is torn, foreign or of another version is a ProfileError that names the file."""
    path = Path(path)
    data = _read_bytes(path)
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            header = json.loads(_read_member(archive, "header.json"))
    except (zipfile.BadZipFile, KeyError, ValueError, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise ProfileError(_not_a_profile(path, f"not a readable profile ({type(error).__name__})")) from error
    _check_header(path, header)
    return Profile(
        gpu=header["gpu"],
        engine=header["engine"],
        engine_version=header["engine_version"],
        tables=StoredTables(data, header["tables"], str(path)),
        provenance=header["provenance"],
        content_hash=header["content_hash"],
        notes=tuple(header["notes"]),
    )


def list_profiles(folder: Path | None = None) -> list[str]:
    """Names of the stored profiles, "<gpu>/<engine>"."""
    folder = folder or PROFILE_FOLDER
    return sorted("/".join(path.stem.rsplit(".", 1)) for path in folder.glob("*.npz") if "." in path.stem)


def profile_path(gpu: str, engine: str, folder: Path | None = None) -> Path:
    """Where the profile of a GPU under an engine is kept."""
    return (folder or PROFILE_FOLDER) / f"{gpu}.{engine}.npz"


def find_profile(gpu: str, engine: str, folder: Path | None = None) -> Profile:
    """The stored profile of a GPU (catalog name) under an engine ("vllm", or "vllm@0.24.0": the version is ignored)."""
    path = profile_path(gpu, engine.partition("@")[0], folder)
    if not _is_plain_name(path.stem) or not path.is_file():
        raise UnknownNameError("profile", f"{gpu}/{engine}", list_profiles(folder))
    return load_profile(path)


class StoredTables(Mapping[str, OpTable]):
    """The tables of a profile file, decoded one by one when first used."""

    def __init__(self, data: bytes, listed: Mapping[str, Mapping[str, Any]], where: str) -> None:
        self._data = data
        self._listed = listed
        self._where = where
        self._decoded: dict[str, OpTable] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(self._listed)

    def __len__(self) -> int:
        return len(self._listed)

    def __contains__(self, family: object) -> bool:
        return family in self._listed

    def rows(self, family: str) -> int:
        """How many rows a table has, without decoding it."""
        return int(self._listed[family]["rows"])

    def __getitem__(self, family: str) -> OpTable:
        if family not in self._decoded:
            self._decoded[family] = self._decode(family, self._listed[family])
        return self._decoded[family]

    def _decode(self, family: str, listed: Mapping[str, Any]) -> OpTable:
        names = [f"{column}.{part}" for column in FAMILIES[family] for part in ("values", "codes")] + ["seconds"]
        try:
            with zipfile.ZipFile(io.BytesIO(self._data)) as archive:
                arrays = {name: _read_npy(_read_member(archive, f"{family}.{name}.npy")) for name in names}
            if _hash_arrays(arrays) != listed["sha256"]:
                raise ValueError("hash")
            keys = {column: arrays[f"{column}.values"][arrays[f"{column}.codes"]] for column in FAMILIES[family]}
            table = OpTable(family, keys, arrays["seconds"].astype(np.float64))
            if not all(column.shape == (listed["rows"],) for column in (*keys.values(), table.seconds)):
                raise ValueError("rows")
        except (zipfile.BadZipFile, KeyError, ValueError, IndexError, zlib.error, EOFError) as error:
            problem = _not_a_profile(Path(self._where), f"table '{family}' is damaged")
            raise ProfileError(problem) from error
        return table


def _merge_equal_rows(family: str, keys: Mapping[str, NDArray[Any]], seconds: NDArray[np.float64]) -> OpTable:
    order = np.lexsort(tuple(keys[name] for name in reversed(FAMILIES[family])))
    keys = {name: column[order] for name, column in keys.items()}
    seconds = seconds[order]
    new_shape = np.ones(len(seconds), dtype=bool)
    if len(seconds) > 1:
        new_shape[1:] = np.any([column[1:] != column[:-1] for column in keys.values()], axis=0)
    starts = np.flatnonzero(new_shape)
    if len(starts) < len(seconds):
        groups = np.split(seconds, starts[1:])
        seconds = np.array([np.median(group) for group in groups], dtype=np.float32).astype(np.float64)
        keys = {name: column[starts] for name, column in keys.items()}
    return OpTable(family, keys, seconds)


def _encode_table(table: OpTable) -> dict[str, NDArray[Any]]:
    arrays: dict[str, NDArray[Any]] = {}
    for name in FAMILIES[table.family]:
        values, codes = np.unique(table.keys[name], return_inverse=True)
        arrays[f"{name}.values"] = values
        arrays[f"{name}.codes"] = codes.astype("u1" if len(values) <= 256 else "<u2" if len(values) <= 65536 else "<u4")
    arrays["seconds"] = table.seconds.astype("<f4")
    return arrays


def _hash_arrays(arrays: Mapping[str, NDArray[Any]]) -> str:
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def _hash_header(header: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(header, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def _npy_bytes(array: NDArray[Any]) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array, version=(1, 0), allow_pickle=False)
    return buffer.getvalue()


def _read_member(archive: zipfile.ZipFile, name: str) -> bytes:
    if archive.getinfo(name).file_size > MAX_FILE_BYTES:
        raise ValueError("a member is too large")  # a small file must not unpack to fill the memory
    return archive.read(name)


def _read_npy(content: bytes) -> NDArray[Any]:
    array: NDArray[Any] = np.lib.format.read_array(io.BytesIO(content), allow_pickle=False)
    return array


def _read_bytes(path: Path) -> bytes:
    try:
        if path.is_dir():
            raise ProfileError(_not_a_profile(path, "is a folder"))
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ProfileError(_not_a_profile(path, f"larger than {MAX_FILE_BYTES // 2**20} MiB"))
        return path.read_bytes()
    except OSError as error:
        raise ProfileError(_not_a_profile(path, f"cannot be read ({error.strerror or error})")) from error


def _check_header(path: Path, header: Any) -> None:
    if not isinstance(header, dict) or header.get("kind") != "profile":
        raise ProfileError(_not_a_profile(path, "not a profile"))
    if header.get("version") != PROFILE_VERSION:
        found = shorten(header.get("version"))
        raise ProfileError(_not_a_profile(path, f"profile version {found}, this release reads {PROFILE_VERSION}"))
    texts = ("gpu", "engine", "engine_version", "content_hash")
    shaped = (
        all(isinstance(header.get(name), str) for name in texts)
        and isinstance(header.get("provenance"), dict)
        and isinstance(header.get("notes"), list)
        and isinstance(header.get("tables"), dict)
        and all(isinstance(table, dict) and {"rows", "sha256"} <= set(table) for table in header["tables"].values())
    )
    unhashed = {name: value for name, value in header.items() if name != "content_hash"}
    if not shaped or _hash_header(unhashed) != header["content_hash"]:
        raise ProfileError(_not_a_profile(path, "the header is damaged or was edited"))
    unknown = sorted(set(header["tables"]) - set(FAMILIES))
    if unknown:
        raise ProfileError(_not_a_profile(path, f"unknown tables {', '.join(unknown)}"))


def _is_plain_name(name: str) -> bool:
    return re.fullmatch(r"[A-Za-z0-9._-]+", name) is not None


def _not_a_profile(path: Path, message: str) -> Problem:
    return Problem(
        message,
        where=shorten(path, 200),
        expected=f"a profile written by splitplan (NPZ, version {PROFILE_VERSION})",
        next_step="planner profile import aiconfigurator, or planner profile on a machine with the GPU",
    )
