"""The dtype of a checkpoint and which parts are stored in it, from `quantization_config` or hf_quant_config.json."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from splitplan.catalogs.documents import read_document
from splitplan.catalogs.hf_keys import ConfigKeys
from splitplan.catalogs.parameters import LINEAR_PARTS

PLAIN_DTYPES = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "float32": "fp32",
    "bf16": "bf16",
    "fp16": "fp16",
    "half": "fp16",
}
METHODS = {"fp8": "fp8", "fbgemm_fp8": "fp8", "ptpc_fp8": "fp8", "mxfp4": "mxfp4"}
ALGORITHMS = {
    "FP8": "fp8",
    "FP8_PB_WO": "fp8",
    "FP8_PER_CHANNEL_PER_TOKEN": "fp8",
    "NVFP4": "nvfp4",
    "MXFP4": "mxfp4",
    "INT8_SQ": "int8",
    "W8A8_SQ_PER_CHANNEL": "int8",
    "W4A16_AWQ": "int4",
    "INT4_AWQ": "int4",
    "W4A8_AWQ": "int4",
}
KNOWN = "fp8, fbgemm_fp8, gptq, awq, mxfp4, compressed-tensors, modelopt, bitsandbytes"
PART_MARKS = {
    "attention": ("self_attn", ".attn", "attention"),
    "shared_experts": ("shared_expert",),
    "mamba": ("mixer", "mamba", "linear_attn"),
    "mlp": ("mlp.(gate|up", "mlp\\.(gate|up", "mlp.gate_proj", "mlp.down_proj"),
}


def checkpoint_dtype(
    keys: ConfigKeys, quantization: Mapping[str, Any] | None, folder: Path
) -> tuple[str, tuple[str, ...]]:
    """(dtype, parts stored in it); no parts means the usual ones of that dtype."""
    if quantization is None and (folder / "hf_quant_config.json").is_file():
        found = read_document(folder / "hf_quant_config.json", "quantisation config", finite=False).data.get(
            "quantization"
        )
        quantization = found if isinstance(found, dict) else None
    if not quantization:
        name = keys.text("torch_dtype", "dtype") or "bfloat16"
        dtype = PLAIN_DTYPES.get(name.removeprefix("torch."))
        if dtype is None:
            keys.refuse("torch_dtype", f"is '{name[:40]}'", "bfloat16, float16 or float32")
        return dtype or "bf16", ()
    dtype = _quantized_dtype(quantization)
    if dtype is None:
        method = str(quantization.get("quant_method") or quantization.get("quant_algo"))[:40]
        keys.refuse("quantization_config", f"has a method that is not known: '{method}'", KNOWN)
        return "bf16", ()
    return dtype, _stored_parts(quantization, dtype)


def _quantized_dtype(quantization: Mapping[str, Any]) -> str | None:
    method = str(quantization.get("quant_method", "")).lower()
    algorithm = str(quantization.get("quant_algo", "")).upper()
    if algorithm == "MIXED_PRECISION":
        stated = ALGORITHMS.get(str(quantization.get("moe_quant_algo") or "").upper())
        return stated or _group_dtype(quantization)
    if algorithm in ALGORITHMS:
        return ALGORITHMS[algorithm]
    if method in METHODS:
        return METHODS[method]
    if method in ("gptq", "awq", "gptq_marlin", "awq_marlin", "auto-round"):
        return {4: "int4", 8: "int8"}.get(quantization.get("bits", 4))
    if method == "bitsandbytes":
        return "int4" if quantization.get("load_in_4bit") else "int8"
    if method in ("compressed-tensors", "modelopt"):
        return _group_dtype(quantization)
    return None


def _group_dtype(quantization: Mapping[str, Any]) -> str | None:
    """The dtype of `config_groups`: of several the one with the fewest bits, that of the experts or the MLP."""
    groups = quantization.get("config_groups")
    listed = list(groups.values()) if isinstance(groups, dict) else []
    found = [group["weights"] for group in listed if isinstance(group, dict) and isinstance(group.get("weights"), dict)]
    found = [weights for weights in found if isinstance(weights.get("num_bits"), int)]
    if not found:
        return None
    weights = min(found, key=lambda weights: int(weights["num_bits"]))
    bits, kind = weights.get("num_bits"), weights.get("type")
    if (bits, kind) == (4, "float"):
        return "mxfp4" if weights.get("group_size") == 32 or "mxfp4" in str(quantization.get("format")) else "nvfp4"
    known = {(8, "float"): "fp8", (8, "int"): "int8", (4, "int"): "int4"}
    return known.get((bits, kind)) if isinstance(bits, int) and isinstance(kind, str) else None


def _stored_parts(quantization: Mapping[str, Any], dtype: str) -> tuple[str, ...]:
    """The parts left after those that the checkpoint excludes by pattern or in four layers or more; () for all of them.

    Of mixed precision only the feed-forward parts are counted in the narrow dtype, what is between in 16 bits.
    """
    if str(quantization.get("quant_algo", "")).upper() == "MIXED_PRECISION":
        return ("mlp", "experts", "shared_experts")
    excluded: list[str] = []
    for name in ("ignore", "modules_to_not_convert", "exclude_modules"):
        listed = quantization.get(name)
        excluded += [str(item) for item in listed] if isinstance(listed, list) else []
    names = [item for item in excluded if not any(word in item for word in ("norm", "bias", "indexer", "proj_scale"))]
    parts = tuple(part for part in LINEAR_PARTS if not _is_excluded(part, names))
    return () if parts == LINEAR_PARTS else parts


def _is_excluded(part: str, excluded: list[str]) -> bool:
    marks = PART_MARKS.get(part, ())
    hits = [item for item in excluded if any(mark in item for mark in marks) and not item.endswith("_gate")]
    patterns = [item for item in hits if item.startswith(("re:", "*")) or ".*." in item]
    return bool(patterns) or len(hits) >= 4
