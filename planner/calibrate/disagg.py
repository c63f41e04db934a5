"""Measured runs of disaggregated deployments: reading them, predicting them.

Columns: gpu_prefill, gpu_decode, engine, model, prefill_workers, prefill_parallel ("tp4 …"), decode_workers,
decode_parallel, isl, osl, concurrency or request_rate, kv_transfer, and latencies as in points.py. Rows with the role
"colocated" are the other arm of a comparison and are predicted as ordinary points, `decode_workers` engines side by
side. A worker whose attention runs data parallel ("attn_dp8") is that many engines that share their experts. Rows whose
worker counts are not stated are named as not predicted.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from splitplan.catalogs.links import find_link
from splitplan.planner.calibrate.accuracy import OverheadOf, interval_values, score_point, shipped_overhead
from splitplan.planner.calibrate.points import Point, lenient_point, read_table
from splitplan.planner.calibrate.predict import (
    SEED,
    Prediction,
    latency_statistics,
    make_requests,
    serving_instance,
    serving_mode,
    setup_step_model,
)
from splitplan.planner.calibrate.resolve import NIC, Setup, UnpredictableError, resolve
from splitplan.planner.calibrate.score import Row
from splitplan.planner.latency.overhead import EngineOverhead
from splitplan.planner.latency.transfer import kv_transfer
from splitplan.planner.simulate.deployment import Deployment, Link
from splitplan.planner.simulate.run import simulate

REQUIRED_COLUMNS = ("gpu_prefill", "gpu_decode", "engine", "model", "isl", "osl", "concurrency")


@dataclass(frozen=True, slots=True)
class DisaggPoint:
    """One run: its decode side as a Point, and what the prefill side differs in."""

    point: Point  # gpu, tp of the decode side
    role: str
    prefill_gpu: str
    prefill_workers: int | None
    decode_workers: int | None
    prefill_parallel: str
    transfer_bytes_per_s: float | None


def is_disagg_file(path: str | Path) -> bool:
    """Whether a file has the columns of disaggregated runs; False for one that cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as handle:
            return {"gpu_prefill", "gpu_decode"} <= set(handle.readline(10_000).strip().split(","))
    except OSError:
        return False


def read_disagg(path: str | Path) -> list[DisaggPoint]:
    """Runs of one file; raises DocumentError when it is not such a file. Odd cells make a point with a `problem`."""
    return [_run(row, line) for row, line in read_table(path, REQUIRED_COLUMNS)]


def _run(row: Mapping[str, str | None], line: int) -> DisaggPoint:
    prefill, decode = row.get("prefill_parallel") or "", row.get("decode_parallel") or ""
    users = re.match(r"\d+", row.get("concurrency") or "")
    workers = [int(text) if (text := (row.get(name) or "").strip()).isdigit() else None for name in _WORKERS]
    role = row.get("role") or "disagg"
    adapted = {
        **row,
        "gpu": row.get("gpu_decode") or row.get("gpu_prefill"),
        "batch_or_concurrency": users.group(0) if users else "",
        "mode": "online-concurrency" if users else "online-rate",
        "tp": str(_number(decode or prefill, "tp") or 1),
        "replicas": str(workers[1] or 1) if role == "colocated" else "1",
        "request_rate": "" if users else row.get("request_rate"),
        "source_group": row.get("source_group") or "disaggregated runs",
    }
    bandwidth = re.search(r"([\d.]+) GB/s aggregate", row.get("kv_transfer") or "")
    return DisaggPoint(
        point=_with_ranks(lenient_point(adapted, line), decode or prefill),
        role=role,
        prefill_gpu=row.get("gpu_prefill") or "",
        prefill_workers=workers[0],
        decode_workers=workers[1],
        prefill_parallel=prefill,
        transfer_bytes_per_s=float(bandwidth.group(1)) * 1e9 if bandwidth else None,
    )


def _with_ranks(point: Point, parallel: str) -> Point:
    """A point with the ranks of one side, such as "tp1 pp1 attn_dp8 moe_tp1 moe_ep8 bs16"."""
    tp, dp = _number(parallel, "tp") or 1, _number(parallel, "attn_dp") or 1
    return replace(
        point,
        tp=tp,
        attention_dp=dp,
        expert_parallel=_number(parallel, "moe_ep") or 0,
        num_gpus=tp * dp * point.pp * point.replicas,
    )


_WORKERS = ("prefill_workers", "decode_workers")


def _number(text: str, name: str) -> int | None:
    found = re.search(rf"\b{name}(\d+)", text)
    return int(found.group(1)) if found else None


def score_disagg(run: DisaggPoint, overhead_of: OverheadOf = shipped_overhead) -> Row:
    """Predict and score one run."""
    if run.role == "colocated":
        return score_point(run.point, overhead_of)
    if not run.prefill_workers or not run.decode_workers:
        return _refused(run, "worker counts are not stated")
    try:
        decode = resolve(run.point)
        prefill = resolve(replace(_with_ranks(run.point, run.prefill_parallel), gpu=run.prefill_gpu))
        overhead = overhead_of(run.point, decode)
        prediction = predict_disagg(run, prefill, decode, overhead)
    except UnpredictableError as error:
        return _refused(run, str(error))
    values = interval_values(run.point, prediction, overhead)
    dense = decode.model.moe is None
    name = f"{decode.generation.key} {run.prefill_workers}P{run.decode_workers}D"
    return Row(
        run.point, decode.gpu.name, name, dense, values, notes=decode.notes, basis_shares=prediction.basis_shares
    )


def _refused(run: DisaggPoint, reason: str) -> Row:
    values = interval_values(run.point, None, EngineOverhead())
    return Row(run.point, run.point.gpu, f"{run.point.engine} disaggregated", False, values, reason)


def predict_disagg(run: DisaggPoint, prefill: Setup, decode: Setup, overhead: EngineOverhead) -> Prediction:
    """Simulate a disaggregated run: prefill instances, decode instances, a NIC per GPU between them."""
    point = run.point
    deployment = _deployment(run, prefill, decode, overhead)
    requests = make_requests(point)
    arrivals, users = serving_mode(point, len(requests))
    front_end_s = overhead.request_s + overhead.request_token_s * point.input_tokens
    think_s = front_end_s if arrivals == "closed" else 0.0
    results = simulate(
        deployment, requests, seed=SEED, arrivals=arrivals, concurrency=users, think_s=think_s, warmup_share=0.0
    )
    found = results.runs[0]
    if found.num_finished < len(requests):
        raise UnpredictableError(f"{len(requests) - found.num_finished} requests would not fit into KV memory")
    return Prediction(
        ttft=latency_statistics(found.ttft_s + front_end_s),
        tpot=latency_statistics(found.tpot_s),
        output_tokens_per_s=found.output_tokens / found.end_s,
        basis_shares=deployment.instances[-1].step.basis_shares,
        notes=decode.notes,
    )


def _deployment(run: DisaggPoint, prefill: Setup, decode: Setup, overhead: EngineOverhead) -> Deployment:
    workers = ((run.prefill_workers or 1) * prefill.dp, (run.decode_workers or 1) * decode.dp)
    nic = find_link(NIC)
    rates = [run.transfer_bytes_per_s or setup.tp * nic.achievable_bytes_per_s for setup in (prefill, decode)]
    links = [Link(f"prefill NIC {i}", rates[0]) for i in range(workers[0])]
    links += [Link(f"decode NIC {i}", rates[1]) for i in range(workers[1])]
    prefill_instance = serving_instance(run.point, prefill, setup_step_model(run.point, prefill, overhead))
    decode_instance = serving_instance(run.point, decode, setup_step_model(run.point, decode, overhead))
    instances = [replace(prefill_instance, name=f"prefill-{i}", role="prefill", egress=(i,)) for i in range(workers[0])]
    instances += [
        replace(decode_instance, name=f"decode-{i}", role="decode", ingress=(workers[0] + i,))
        for i in range(workers[1])
    ]
    tokens, block = max(1, round(run.point.input_tokens)), decode.engine.block_tokens
    kv_dtype = "fp8" if decode.kv_dtype.startswith("fp8") else decode.kv_dtype
    moved = kv_transfer(decode.model, kv_dtype, tokens, prefill_tp=prefill.tp, decode_tp=decode.tp, block_tokens=block)
    return Deployment(
        tuple(instances),
        tuple(links),
        kv_bytes_per_token=moved.num_bytes / tokens,
        transfer_latency_s=nic.latency_s,
        descriptor_s=nic.per_descriptor_s,
        descriptors_per_block=moved.num_descriptors / math.ceil(tokens / block) / moved.parallel_ranks,
    )
