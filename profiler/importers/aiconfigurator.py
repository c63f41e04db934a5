"""Turns the measured op tables of an installed `aiconfigurator-core` (NVIDIA, Apache-2.0) into Profiles.

Its layout: `systems/data/<gpu>/<family>/<engine>/<version>/<op>_perf.parquet`, latencies in milliseconds (of the
expert all-to-all in microseconds: not read here), collective sizes in elements, decode contexts as tokens already there
(`step`; the new one comes on top), `window_size` 0 for full attention. Each engine has one main version, that of its
newest GEMM table; a table that version lacks comes from the newest one that has it, and the provenance says which.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from splitplan.catalogs.errors import (
    MissingExtraError,
    Problem,
    ProfileError,
    UnknownNameError,
    nearest_names,
    shorten,
)
from splitplan.catalogs.gpus import find_gpu
from splitplan.profiler.families import FAMILIES
from splitplan.profiler.importers.aiconfigurator_tables import FAST_HOST, READERS, SLOW_HOST, Columns
from splitplan.profiler.importers.cleaning import Read
from splitplan.profiler.profile import OpTable, Profile
from splitplan.profiler.store import make_table, profile_path, save_profile

GPUS: Mapping[str, str] = {
    "a100-sxm-80": "a100_sxm",
    "b200": "b200_sxm",
    "b300": "b300_sxm",
    "gb200": "gb200",
    "h100-sxm": "h100_sxm",
    "h200-sxm": "h200_sxm",
    "l40s": "l40s",
}
"""Catalog name → folder of the package (0.12.0). Its H100 and A100 PCIe, A30 and L4 have no measured GEMM tables."""

ENGINES = ("vllm", "sglang", "trtllm")

FAST_PCIE_SOURCE = ("l40s", "sglang", "0.5.12")
"""The one L40S table whose host moves data between all eight GPUs at PCIe speed; all others come from a slower host."""


@dataclass(frozen=True, slots=True)
class Source:
    """An installed copy of the package."""

    root: Path  # the folder that holds `systems/`
    version: str

    @property
    def data(self) -> Path:
        """The folder of measured tables."""
        return self.root / "systems" / "data"


def find_source(root: Path | None = None) -> Source:
    """The installed package, or the copy at `root` (the package's folder or the one above it)."""
    if root is None:
        spec = importlib.util.find_spec("aiconfigurator_core")
        if spec is None or not spec.submodule_search_locations:
            raise ProfileError(
                Problem(
                    "aiconfigurator-core is not installed here",
                    expected="version 0.12 in this environment, or an unpacked copy",
                    next_step="pip install aiconfigurator-core==0.12.0, or planner profile import aiconfigurator "
                    "--root DIR",
                )
            )
        root = Path(next(iter(spec.submodule_search_locations)))
    for candidate in (root, root / "aiconfigurator_core"):
        if (candidate / "systems" / "data").is_dir():
            return Source(candidate, _package_version(candidate))
    raise ProfileError(Problem("no systems/data below this folder", where=str(root), expected="aiconfigurator_core"))


def import_profile(gpu: str, engine: str, source: Source) -> Profile:
    """The measured tables of one GPU (catalog name) under one engine ("vllm", "sglang", "trtllm")."""
    _check_name("GPU", gpu, GPUS)
    _check_name("engine", engine, ENGINES)
    folder = source.data / GPUS[gpu]
    main_version = newest_version(folder / "gemm" / engine, "gemm_perf.parquet")
    if main_version is None:
        problem = Problem(f"no GEMM table of {engine} for {gpu}", where=str(folder), expected="measured tables")
        raise ProfileError(problem)
    files = _find_files(folder, engine, main_version)
    collected = _read_all(files, gpu)
    tables = {family: _join(family, reads) for family, reads in sorted(collected.items())}
    reads = [read for family in collected.values() for read in family]
    provenance = _provenance(source, gpu, [file.label for file in files], reads)
    return Profile(gpu, engine, main_version, tables, provenance, notes=_notes(tables, reads))


def import_profiles(
    root: Path | None, gpus: Sequence[str], engines: Sequence[str], folder: Path | None
) -> Iterator[tuple[Path, Profile]]:
    """Imports and writes one profile per (GPU, engine), in the order asked; no GPU means every one that has tables.

    Unknown names are found before anything is written; any of a GPU's catalog names will do.
    """
    source = find_source(root)
    for engine in engines:
        _check_name("engine", engine, ENGINES)
    names = [_catalog_name(gpu) for gpu in gpus]
    for name in names:
        _check_name("GPU", name, GPUS)
    wanted = names or [gpu for gpu in GPUS if _has_tables(source, gpu, engines)]
    for gpu in wanted:
        for engine in engines:
            profile = import_profile(gpu, engine, source)
            path = profile_path(gpu, engine, folder)
            yield path, replace(profile, content_hash=save_profile(profile, path))


def _catalog_name(gpu: str) -> str:
    """The canonical name of what may be an alias; itself where the catalog does not know it."""
    try:
        return find_gpu(gpu).name
    except UnknownNameError:
        return gpu


def _check_name(kind: str, name: str, known: Iterable[str]) -> None:
    if name in known:
        return
    near = nearest_names(name, known)
    raise ProfileError(
        Problem(
            f"the package has no tables of the {kind} '{shorten(name)}'",
            expected=", ".join(known),
            next_step=f"did you mean {' or '.join(near)}?" if near else "planner profile, on a machine that has it",
        )
    )


def _has_tables(source: Source, gpu: str, engines: Sequence[str]) -> bool:
    folder = source.data / GPUS[gpu] / "gemm"
    return all(newest_version(folder / engine, "gemm_perf.parquet") for engine in engines)


def newest_version(folder: Path, file_name: str, preferred: str = "") -> str | None:
    """The preferred version if it has the file, else the newest released one that has it."""
    found = [path.parent.name for path in folder.glob(f"*/{file_name}") if "dev" not in path.parent.name]
    if preferred in found:
        return preferred
    return max(found, key=_version_order, default=None)


def _version_order(version: str) -> tuple[tuple[int, int], ...]:
    """1.3.0rc20 after 1.3.0rc10, before 1.3.0; 0.5.6.post2 after 0.5.6."""
    rank = {"rc": -1, "post": 1}
    parts = re.findall(r"(rc|post)?(\d+)", version)
    return (*((rank.get(kind, 0), int(number)) for kind, number in parts), (0, 0))


@dataclass(frozen=True, slots=True)
class _File:
    reader: str
    path: Path
    label: str  # for the provenance


_READ_FILES: Sequence[tuple[str, str, str]] = (
    ("gemm", "gemm_perf.parquet", "gemm"),
    ("attention", "context_attention_perf.parquet", "prefill_attention"),
    ("attention", "generation_attention_perf.parquet", "decode_attention"),
    ("mla", "mla_context_module_perf.parquet", "mla_prefill"),
    ("mla", "mla_generation_module_perf.parquet", "mla_decode"),
    ("mla_bmm", "mla_bmm_perf.parquet", "mla_bmm"),
    ("moe", "moe_perf.parquet", "moe"),
    ("comm", "custom_allreduce_perf.parquet", "all_reduce"),
    ("quantize", "computescale_perf.parquet", "quantize_scale"),
    ("quantize", "scale_matrix_perf.parquet", "quantize_cast"),
)


def _find_files(folder: Path, engine: str, main_version: str) -> list[_File]:
    files = []
    for family, name, reader in _READ_FILES:
        version = newest_version(folder / family / engine, name, main_version)
        if version is not None:
            path = folder / family / engine / version / name
            files.append(_File(reader, path, f"{family}/{engine}/{version}/{name}"))
    nccl = newest_version(folder / "comm" / "nccl", "nccl_perf.parquet")
    if nccl is not None:
        path = folder / "comm" / "nccl" / nccl / "nccl_perf.parquet"
        files.append(_File("nccl", path, f"comm/nccl/{nccl}/nccl_perf.parquet"))
    gpu, other_engine, version = FAST_PCIE_SOURCE
    fast = folder / "comm" / other_engine / version / "custom_allreduce_perf.parquet"
    if folder.name == gpu and fast.is_file():
        files.append(_File("all_reduce_fast_host", fast, f"comm/{other_engine}/{version}/{fast.name}"))
    return files


def _read_all(files: Sequence[_File], gpu: str) -> dict[str, list[Read]]:
    collected: dict[str, list[Read]] = {}
    for file in files:
        for family, read in READERS[file.reader](_read_parquet(file.path), gpu).items():
            collected.setdefault(family, []).append(read)
    return collected


def _read_parquet(path: Path) -> Columns:
    try:
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise MissingExtraError("importing measured tables", "import") from error
    try:
        table = parquet.read_table(path, partitioning=None)
        return {name: table.column(name).to_numpy(zero_copy_only=False) for name in table.column_names}
    except (OSError, ValueError) as error:
        raise ProfileError(Problem("not a readable Parquet table", where=str(path))) from error


def _join(family: str, reads: Sequence[Read]) -> OpTable:
    keys = {name: np.concatenate([read.keys[name] for read in reads]) for name in FAMILIES[family]}
    return make_table(family, keys, np.concatenate([read.seconds for read in reads]))


def _provenance(source: Source, gpu: str, used: Sequence[str], reads: Sequence[Read]) -> dict[str, str]:
    left_out = {
        "rows_dropped_host_bound": sum(read.host_bound for read in reads),
        "rows_dropped_spikes": sum(read.spikes for read in reads),
    }
    return {
        "how": "imported from published measurements",
        "source": f"aiconfigurator-core {source.version} (PyPI), systems/data/{GPUS[gpu]}",
        "licence": "Apache-2.0, Copyright NVIDIA CORPORATION & AFFILIATES; see NOTICE",
        "files": "; ".join(used),
        "rows_dropped": str(sum(read.dropped for read in reads)),
        **{name: str(count) for name, count in left_out.items() if count},
        "changes": "milliseconds to seconds, elements to bytes, columns renamed, equal shapes merged to their median, "
        "stored as float32",
    }


def _notes(tables: Mapping[str, OpTable], reads: Sequence[Read]) -> tuple[str, ...]:
    notes = []
    if any(read.host_bound for read in reads):
        notes.append(
            "block-scaled fp8 products that timed their launch by the host are left out; per-tensor fp8 stands in, "
            "times the factor between the two where both time the device"
        )
    all_reduce = tables.get("all_reduce")
    if all_reduce is not None and FAST_HOST in all_reduce.keys["host"]:
        notes.append(
            f"all-reduce over PCIe was published from two kinds of host that differ tenfold from 4 GPUs up; they are "
            f"kept apart as {SLOW_HOST} and {FAST_HOST}, and a host's own link bandwidth chooses"
        )
    gemm = tables["gemm"]
    if set(np.unique(gemm.keys["dtype"])) == {"bf16"}:
        notes.append("only bf16 was measured: fp8 and int4 weights are scaled from it")
    return tuple(notes)


def _package_version(root: Path) -> str:
    for info in sorted(root.parent.glob("aiconfigurator_core-*.dist-info")):
        return info.name.removeprefix("aiconfigurator_core-").removesuffix(".dist-info")
    return "of unknown version"
