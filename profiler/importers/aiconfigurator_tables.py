"""The columns of aiconfigurator-core's tables, file by file, as ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from splitplan.profiler.importers.cleaning import Read, clean

Columns = dict[str, NDArray[Any]]

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

SLOW_HOST, FAST_HOST = "pcie-slow-host", "pcie-fast-host"


def _dtype(column: NDArray[Any]) -> NDArray[Any]:
    names, codes = np.unique(column.astype(str), return_inverse=True)
    return np.array([DTYPES.get(name, name) for name in names])[codes]


def _read_gemm(columns: Columns, gpu: str) -> dict[str, Read]:
    keys = {"dtype": _dtype(columns["gemm_dtype"]), "m": columns["m"], "n": columns["n"], "k": columns["k"]}
    return clean("gemm", keys, columns["latency"])


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
    return clean("prefill_attention", keys, columns["latency"])


def _read_decode_attention(columns: Columns, gpu: str) -> dict[str, Read]:
    """`step` counts the tokens already cached; the one being decoded attends to itself too."""
    keys = {**_attention_keys(columns), "context": columns["step"] + columns["isl"]}
    return clean("decode_attention", keys, columns["latency"])


def _mla_keys(columns: Columns) -> dict[str, Any]:
    return {
        "dtype": _dtype(columns["gemm_type"]),
        "kv_dtype": _dtype(columns["kv_cache_dtype"]),
        "heads": columns["num_heads"] // columns["tp_size"],
        "batch": columns["batch_size"],
    }


def _read_mla_prefill(columns: Columns, gpu: str) -> dict[str, Read]:
    keys = {**_mla_keys(columns), "past": columns["step"], "new": columns["isl"]}
    return clean("mla_prefill", keys, columns["latency"])


def _read_mla_decode(columns: Columns, gpu: str) -> dict[str, Read]:
    """Unlike plain attention's, this table's `step` is the whole context, a power of two."""
    return clean("mla_decode", {**_mla_keys(columns), "context": columns["step"]}, columns["latency"])


def _read_mla_bmm(columns: Columns, gpu: str) -> dict[str, Read]:
    stages = np.char.replace(columns["op_name"].astype(str), "mla_gen_", "")
    keys = {
        "dtype": _dtype(columns["bmm_dtype"]),
        "stage": stages,
        "heads": columns["num_heads"],
        "m": columns["num_tokens"],
    }
    return clean("mla_bmm", keys, columns["latency"])


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
    return clean("moe", keys, columns["latency"])


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
    return clean("all_reduce", keys, columns["latency"])


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
        reads |= clean(family, keys, columns["latency"][rows])
    return reads


def _read_quantize(columns: Columns, stage: str) -> dict[str, Read]:
    return clean("quantize", {"stage": stage, "k": columns["k"], "m": columns["m"]}, columns["latency"])


READERS: Mapping[str, Callable[[Columns, str], dict[str, Read]]] = {
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
"""Reads one kind of file: its columns and the GPU's catalog name → rows by family."""
