"""Turns the measured op tables of an installed `aiconfigurator-core` (NVIDIA, Apache-2.0) into Profiles.

Its layout: `systems/data/<gpu>/<family>/<engine>/<version>/<op>_perf.parquet`, latencies in milliseconds (of the
expert all-to-all in microseconds: not read here), collective sizes in elements, decode contexts as tokens already there
(`step`; the new one comes on top), `window_size` 0 for full attention. Each engine has one main version, that of its
newest GEMM table; a table that version lacks comes from the newest one that has it, and the provenance says which.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from splitplan.catalogs.errors import (
    MissingExtraError,
    Problem,
    ProfileError,
    nearest_names,
    shorten,
)
from splitplan.profiler.families import FAMILIES
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

DTYPES: Mapping[str, str] = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "int4_wo": "int4",
    "int8_wo": "int8_wo",
    "w4a16_mxfp4": "mxfp4",
}
"""Their dtype → ours, where it differs."""

ELEMENT_BYTES: Mapping[str, int] = {"half": 2, "float16": 2, "bfloat16": 2, "int8": 1, "float": 4, "float32": 4}

FAST_PCIE_SOURCE = ("l40s", "sglang", "0.5.12")
"""The one L40S table whose host moves data between all eight GPUs at PCIe speed; all others come from a slower host."""

HOST_BOUND_S, HOST_BOUND_MARGIN, TINY_WEIGHTS = 20e-6, 1.3, 1 << 20  # see host_bound_products

SLOW_HOST, FAST_HOST = "pcie-slow-host", "pcie-fast-host"

Columns = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Source:
    """An installed copy of the package."""

    root: Path  # the folder that holds `systems/`
    version: str

    @property
    def data(self) -> Path:
        """The folder of measured tables."""
        return self.root / "systems" / "data"


@dataclass(frozen=True, slots=True)
class Read:
    """What one file gave: rows of our columns, and what was left out."""

    keys: Mapping[str, NDArray[Any]]
    seconds: NDArray[np.float64]
    dropped: int = 0  # latency not positive, or a size that is not
    host_bound: int = 0  # timed the host


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

    Unknown names are found before anything is written.
    """
    source = find_source(root)
    for engine in engines:
        _check_name("engine", engine, ENGINES)
    for gpu in gpus:
        _check_name("GPU", gpu, GPUS)
    wanted = list(gpus) or [gpu for gpu in GPUS if _has_tables(source, gpu, engines)]
    for gpu in wanted:
        for engine in engines:
            profile = import_profile(gpu, engine, source)
            path = profile_path(gpu, engine, folder)
            yield path, replace(profile, content_hash=save_profile(profile, path))


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
    host_gpu: str
    label: str  # for the provenance
    how: str = ""


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
            files.append(_File(reader, path, folder.name, f"{family}/{engine}/{version}/{name}"))
    nccl = newest_version(folder / "comm" / "nccl", "nccl_perf.parquet")
    if nccl is not None:
        path = folder / "comm" / "nccl" / nccl / "nccl_perf.parquet"
        files.append(_File("nccl", path, folder.name, f"comm/nccl/{nccl}/nccl_perf.parquet"))
    gpu, other_engine, version = FAST_PCIE_SOURCE
    fast = folder / "comm" / other_engine / version / "custom_allreduce_perf.parquet"
    if folder.name == gpu and fast.is_file():
        files.append(_File("all_reduce_fast_host", fast, folder.name, f"comm/{other_engine}/{version}/{fast.name}"))
    return files


def _read_all(files: Sequence[_File], gpu: str) -> dict[str, list[Read]]:
    collected: dict[str, list[Read]] = {}
    for file in files:
        for family, read in _READERS[file.reader](_read_parquet(file.path), gpu).items():
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


def _clean(family: str, keys: Mapping[str, Any], latency_ms: NDArray[Any]) -> dict[str, Read]:
    """Rows with a positive finite latency and positive sizes; the others are counted."""
    seconds = np.asarray(latency_ms, dtype=np.float64) * 1e-3
    keep = np.isfinite(seconds) & (seconds > 0)
    rows = len(seconds)
    filled = {name: np.full(rows, keys[name]) if np.ndim(keys[name]) == 0 else keys[name] for name in FAMILIES[family]}
    for name in ("m", "n", "k", "batch", "new", "context", "tokens", "num_bytes", "heads"):
        if name in filled:
            keep &= filled[name] > 0
    return {family: Read({name: col[keep] for name, col in filled.items()}, seconds[keep], int(rows - keep.sum()))}


def _dtype(column: NDArray[Any]) -> NDArray[Any]:
    names, codes = np.unique(column.astype(str), return_inverse=True)
    return np.array([DTYPES.get(name, name) for name in names])[codes]


def _read_gemm(columns: Columns, gpu: str) -> dict[str, Read]:
    keys = {"dtype": _dtype(columns["gemm_dtype"]), "m": columns["m"], "n": columns["n"], "k": columns["k"]}
    read = _clean("gemm", keys, columns["latency"])["gemm"]
    host_bound = host_bound_products(read.keys, read.seconds)
    kept = {name: column[~host_bound] for name, column in read.keys.items()}
    return {"gemm": Read(kept, read.seconds[~host_bound], read.dropped, int(host_bound.sum()))}


def host_bound_products(keys: Mapping[str, NDArray[Any]], seconds: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Rows that say how long a host takes to launch a product, not how long the device takes to compute it.

    vLLM's block-scaled fp8 products were launched eagerly: the smallest take 55 µs on H100 and 290 µs on L40S, where a
    replayed graph takes 5, and none takes less however small. A dtype whose small products (n and k 256 to 1,024, up
    to 128 rows: under 5 µs of work anywhere) take over 20 µs is launched by a host; its rows within 1.3 of what nine
    in ten small ones take are of that kind, and so is every row of the same n and k with fewer m, however slow.
    """
    n, k, m = keys["n"], keys["k"], keys["m"]
    small = (n >= 256) & (n <= 1024) & (k >= 256) & (k <= 1024) & (m <= 128)
    _, line = np.unique(n.astype(np.int64) << 32 | k, return_inverse=True)
    host_bound = np.zeros(len(seconds), dtype=bool)
    for dtype in np.unique(keys["dtype"]):
        rows = keys["dtype"] == dtype
        if np.any(rows & small) and np.median(seconds[rows & small]) > HOST_BOUND_S:
            usual_s = np.full(line.max() + 1, np.quantile(seconds[rows & small], 0.9))
            for tiny in np.unique(line[rows & (n * k <= TINY_WEIGHTS)]):  # some of these took a slower way still
                usual_s[tiny] = max(usual_s[tiny], np.quantile(seconds[rows & (line == tiny) & (m <= 128)], 0.9))
            slow = rows & (seconds < HOST_BOUND_MARGIN * usual_s[line])
            last_m = np.zeros(line.max() + 1, dtype=np.int64)
            np.maximum.at(last_m, line[slow], m[slow])
            host_bound |= rows & (m <= last_m[line])
    return host_bound


def _attention_keys(columns: Columns) -> dict[str, Any]:
    return {
        "kv_dtype": _dtype(columns["kv_cache_dtype"]),
        "head_dim": columns["head_dim"],
        "window": columns.get("window_size", 0),
        "heads": columns["num_heads"],
        "kv_heads": columns["num_key_value_heads"],
        "batch": columns["batch_size"],
    }


def _read_prefill_attention(columns: Columns, gpu: str) -> dict[str, Read]:
    keys = {**_attention_keys(columns), "past": columns["step"], "new": columns["isl"]}
    return _clean("prefill_attention", keys, columns["latency"])


def _read_decode_attention(columns: Columns, gpu: str) -> dict[str, Read]:
    """`step` counts the tokens already cached; the one being decoded attends to itself too."""
    keys = {**_attention_keys(columns), "context": columns["step"] + columns["isl"]}
    return _clean("decode_attention", keys, columns["latency"])


def _mla_keys(columns: Columns) -> dict[str, Any]:
    return {
        "dtype": _dtype(columns["gemm_type"]),
        "kv_dtype": _dtype(columns["kv_cache_dtype"]),
        "heads": columns["num_heads"] // columns["tp_size"],
        "batch": columns["batch_size"],
    }


def _read_mla_prefill(columns: Columns, gpu: str) -> dict[str, Read]:
    keys = {**_mla_keys(columns), "past": columns["step"], "new": columns["isl"]}
    return _clean("mla_prefill", keys, columns["latency"])


def _read_mla_decode(columns: Columns, gpu: str) -> dict[str, Read]:
    """Unlike plain attention's, this table's `step` is the whole context, a power of two."""
    return _clean("mla_decode", {**_mla_keys(columns), "context": columns["step"]}, columns["latency"])


def _read_mla_bmm(columns: Columns, gpu: str) -> dict[str, Read]:
    stages = np.char.replace(columns["op_name"].astype(str), "mla_gen_", "")
    keys = {
        "dtype": _dtype(columns["bmm_dtype"]),
        "stage": stages,
        "heads": columns["num_heads"],
        "m": columns["num_tokens"],
    }
    return _clean("mla_bmm", keys, columns["latency"])


def _read_moe(columns: Columns, gpu: str) -> dict[str, Read]:
    keys = {
        "dtype": _dtype(columns["moe_dtype"]),
        "distribution": columns["distribution"].astype(str),
        "hidden": columns["hidden_size"],
        "inter": columns["inter_size"],
        "topk": columns["topk"],
        "num_experts": columns["num_experts"],
        "tp": columns["moe_tp_size"],
        "ep": columns["moe_ep_size"],
        "tokens": columns["num_tokens"],
    }
    return _clean("moe", keys, columns["latency"])


def _num_bytes(sizes: NDArray[Any], dtypes: NDArray[Any]) -> NDArray[Any]:
    """Sizes come in elements of the row's dtype."""
    width = np.array([ELEMENT_BYTES.get(str(dtype), 2) for dtype in dtypes], dtype=np.int64)
    bytes_: NDArray[Any] = sizes * width
    return bytes_


def _link_of(gpu: str) -> str:
    return "pcie" if gpu == "l40s" else "nvlink"


def _host_of(gpu: str) -> str:
    return SLOW_HOST if _link_of(gpu) == "pcie" else ""


def _read_all_reduce(columns: Columns, gpu: str, host: str | None = None) -> dict[str, Read]:
    how = np.full(len(columns["latency"]), "graph")
    if "backend" in columns:
        how = np.where(np.char.endswith(columns["backend"].astype(str), "eager"), "eager", "graph")
    keys = {
        "link": _link_of(gpu),
        "host": _host_of(gpu) if host is None else host,
        "how": how,
        "ranks": columns["num_gpus"],
        "num_bytes": _num_bytes(columns["message_size"], columns["allreduce_dtype"]),
    }
    return _clean("all_reduce", keys, columns["latency"])


def _read_all_reduce_fast_host(columns: Columns, gpu: str) -> dict[str, Read]:
    return _read_all_reduce(columns, gpu, FAST_HOST)


def _read_nccl(columns: Columns, gpu: str) -> dict[str, Read]:
    reads: dict[str, Read] = {}
    for theirs in ("all_reduce", "all_gather", "reduce_scatter", "alltoall"):
        family = "all_to_all" if theirs == "alltoall" else theirs
        rows = columns["op_name"] == theirs
        keys = {
            "link": _link_of(gpu),
            "host": _host_of(gpu),
            "how": "nccl",
            "ranks": columns["num_gpus"][rows],
            "num_bytes": _num_bytes(columns["message_size"][rows], columns["nccl_dtype"][rows]),
        }
        reads |= _clean(family, keys, columns["latency"][rows])
    return reads


def _read_quantize(columns: Columns, stage: str) -> dict[str, Read]:
    return _clean("quantize", {"stage": stage, "k": columns["k"], "m": columns["m"]}, columns["latency"])


_READERS: Mapping[str, Callable[[Columns, str], dict[str, Read]]] = {
    "gemm": _read_gemm,
    "prefill_attention": _read_prefill_attention,
    "decode_attention": _read_decode_attention,
    "mla_prefill": _read_mla_prefill,
    "mla_decode": _read_mla_decode,
    "mla_bmm": _read_mla_bmm,
    "moe": _read_moe,
    "all_reduce": _read_all_reduce,
    "all_reduce_fast_host": _read_all_reduce_fast_host,
    "nccl": _read_nccl,
    "quantize_scale": lambda columns, gpu: _read_quantize(columns, "scale"),
    "quantize_cast": lambda columns, gpu: _read_quantize(columns, "cast"),
}


def _join(family: str, reads: Sequence[Read]) -> OpTable:
    keys = {name: np.concatenate([read.keys[name] for read in reads]) for name in FAMILIES[family]}
    return make_table(family, keys, np.concatenate([read.seconds for read in reads]))


def _provenance(source: Source, gpu: str, used: Sequence[str], reads: Sequence[Read]) -> dict[str, str]:
    host_bound = sum(read.host_bound for read in reads)
    return {
        "how": "imported from published measurements",
        "source": f"aiconfigurator-core {source.version} (PyPI), systems/data/{GPUS[gpu]}",
        "licence": "Apache-2.0, Copyright NVIDIA CORPORATION & AFFILIATES; see NOTICE",
        "files": "; ".join(used),
        "rows_dropped": str(sum(read.dropped for read in reads)),
        **({"rows_dropped_host_bound": str(host_bound)} if host_bound else {}),
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
