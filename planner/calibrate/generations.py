"""Engine generations: what an engine did by default at a time, as far as it decides latency. Facts, none fitted.

Published runs rarely state scheduler settings; these are the defaults of the version or date that a row names.
Sources: vLLM's EngineArgs and scheduler at 0.2, 0.6, 0.8, 0.11 and 0.14; SGLang's server_args at 0.5; TensorRT-LLM's
build and serve defaults at 0.9 to 1.0 and its performance guide; LMDeploy's TurboMind configuration at 0.1.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal

from splitplan.catalogs.gpus import Gpu
from splitplan.planner.latency.calibration import version_key

SchedulerKind = Literal["chunked", "prefill-first", "whole-prompts"]


@dataclass(frozen=True, slots=True)
class Generation:
    """Defaults of one engine generation on one GPU."""

    key: str  # "vllm-v1"
    from_version: str  # of `engine`: how calibration entries name the generation
    engine: str  # whose kernels: profile name
    version: str
    scheduler: (
        SchedulerKind  # "chunked": chunks share steps with decodes; "prefill-first": prompts alone, decodes wait;
    )
    # "whole-prompts": prompts share steps with decodes but are not cut
    max_num_seqs: int
    max_num_batched_tokens: int
    memory_fraction: float
    memory_of: Literal["total", "free", "cache"]  # what the fraction is of: all; what weights leave; KV alone, of all
    block_tokens: int
    reserves_output: bool  # a sequence holds blocks for its whole output from admission on
    whole_batch_prefill: bool = False  # a static batch's prompts run in one step, however long
    late_first_token: bool = False  # the first token is sent with the first decode step


_VLLM_EARLY = Generation("vllm-early", "0", "vllm", "0.1", "prefill-first", 256, 8192, 0.9, "total", 16, False, True)
_VLLM_V0 = replace(_VLLM_EARLY, key="vllm-v0", from_version="0.2", version="0.6", whole_batch_prefill=False)
_VLLM_V1 = replace(
    _VLLM_V0, key="vllm-v1", from_version="0.8", version="0.11", scheduler="chunked", max_num_batched_tokens=2048
)
_VLLM_V1_ASYNC = replace(_VLLM_V1, key="vllm-v1-async", from_version="0.14", version="0.19")
_SGLANG = Generation("sglang", "0", "sglang", "0.5", "prefill-first", 2048, 8192, 0.88, "total", 1, False)
_TRTLLM = Generation("trtllm", "0.8", "trtllm", "1.0", "whole-prompts", 2048, 8192, 0.9, "free", 32, True)
_TRTLLM_STATIC = replace(_TRTLLM, key="trtllm-static", from_version="0", version="0.6", whole_batch_prefill=True)
_LMDEPLOY = Generation(
    "lmdeploy", "0", "lmdeploy", "0.1", "prefill-first", 256, 65536, 0.5, "cache", 64, False, False, True
)

ENGINE_NAMES = (
    (r"vllmearly", "vllm-early"),
    (r"sglang", "sglang"),
    (r"tensorrt|trtllm|^trt$|^nim|nvidianim|triton", "trtllm"),
    (r"lmdeploy|turbomind", "lmdeploy"),
    (r"vllm", "vllm"),
)
"""How people write engines, letters only, first match first: a Dynamo or router in front of one serves as it does."""

OTHER_ENGINE = "vllm"
"""What an engine that is none of these is taken as: continuous batching with the same public kernels."""


def find_generation(engine: str, version: str, date: str, gpu: Gpu, *, offline: bool, static: bool) -> Generation:
    """The generation of an engine by version, or by date where no version is stated.

    Versions of an engine that is not modelled say nothing of those of its stand-in (`engine_name`): its date decides.
    """
    name = engine_name(engine)
    version = version if name else ""
    name = name or OTHER_ENGINE
    if name in ("vllm", "vllm-early"):
        return _vllm(name, version, date, gpu, offline=offline)
    if name == "sglang":
        return replace(_SGLANG, version=version or _SGLANG.version)
    if name == "lmdeploy":
        later = version_key(version) >= (0, 2)
        return replace(_LMDEPLOY, memory_fraction=0.8, memory_of="free") if later else _LMDEPLOY
    early = version_key(version) < (0, 8) if version_key(version) else date[:4] in ("2022", "2023")
    found = _TRTLLM_STATIC if early or static else _TRTLLM
    return found if found is _TRTLLM_STATIC else replace(found, version=version or found.version)


def engine_name(text: str) -> str:
    """The modelled engine that a benchmark's label means; "" for another one."""
    letters = re.sub(r"[^a-z]", "", text.lower())
    return next((name for pattern, name in ENGINE_NAMES if re.search(pattern, letters)), "")


def _vllm(name: str, version: str, date: str, gpu: Gpu, *, offline: bool) -> Generation:
    key = version_key(version)
    if name == "vllm-early" or (key and key < (0, 2)) or (not key and date[:4] in ("2022", "2023")):
        return _VLLM_EARLY
    if (key and key < (0, 8)) or (not key and date and date[:7] < "2025-03"):
        return replace(_VLLM_V0, version=version or _VLLM_V0.version)
    ahead = key >= (0, 14) if key else date[:4] >= "2026"  # schedules the next step while the device works
    generation = _VLLM_V1_ASYNC if ahead else _VLLM_V1
    large = gpu.memory_bytes >= 70 * 2**30 and not gpu.name.startswith("a100")
    budget = (16384 if offline else 8192) if large else (8192 if offline else 2048)
    return replace(
        generation,
        version=version or generation.version,
        max_num_batched_tokens=budget,
        max_num_seqs=1024 if large else 256,
    )


_STEP_TOKENS = r"max[-_ ]num[-_ ](?:batched[-_ ])?tokens[=: ]+(\d+)"
_SLOTS = r"max[-_ ](?:num[-_ ]seqs|running[-_ ]requests|batch[-_ ]size)[=: ]+(\d+)"
_FRACTION = (
    r"(?:gpu[-_ ]memory[-_ ]utilization|kv fraction|memory[-_ ]fraction|mem[-_ ]fraction[-_ ]static)[a-z=: ]*(0\.\d+)"
)


def with_stated_settings(generation: Generation, notes: str) -> Generation:
    """The generation's defaults with what a source says of its engine's settings: limits, memory fraction, chunking."""
    text = notes.lower()
    step_tokens, slots, fraction = (re.search(pattern, text) for pattern in (_STEP_TOKENS, _SLOTS, _FRACTION))
    chunked = re.search(r"chunked[-_ ]prefill[=: ]+(?:true|on)", text) and generation.scheduler == "prefill-first"
    return replace(
        generation,
        max_num_batched_tokens=_limit(step_tokens, generation.max_num_batched_tokens),
        max_num_seqs=_limit(slots, generation.max_num_seqs),
        memory_fraction=float(fraction.group(1)[:6]) if fraction else generation.memory_fraction,
        scheduler="chunked" if chunked else generation.scheduler,
    )


def _limit(stated: re.Match[str] | None, default: int) -> int:
    return max(1, int(stated.group(1)[:7])) if stated else default
