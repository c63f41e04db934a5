"""How well the shipped tables predict their own rows, beside what another tool reports for its interpolation.

    python -m benchmarks.interpolation                      every GPU under vLLM, both protocols (several minutes)
    python -m benchmarks.interpolation --gpu h100-sxm       one GPU
    python -m benchmarks.interpolation --fractions          the achieved fractions that the rooflines use

*point*: one point of each line is missing (what the other tool's figures are of). *value*: a whole value of an axis is
missing from every line, as it is for a real model's n or a context between two measured ones.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator

import numpy as np

from splitplan.catalogs.gpus import find_gpu
from splitplan.profiler.leave_one_out import AXES, HeldOut, leave_points_out, leave_values_out
from splitplan.profiler.profile import Profile
from splitplan.profiler.store import find_profile, list_profiles

RIVAL_MEDIAN_PERCENT = {"gemm": 4.9, "prefill_attention": 2.0, "decode_attention": 1.1}
"""aiconfigurator 0.12 on its H100 tables, one point out per line, as measured for this project (November 2026)."""

Row = dict[str, object]


def rows(gpus: list[str], engine: str, passes: int) -> Iterator[Row]:
    """One row per GPU, family, axis and protocol."""
    for name in gpus:
        gpu, profile = find_gpu(name), find_profile(find_gpu(name).name, engine)
        for family in AXES:
            if family in profile.tables:
                for position, axis in enumerate(AXES[family]):
                    rival = RIVAL_MEDIAN_PERCENT.get(family) if position == 0 and gpu.name == "h100-sxm" else None
                    if family != "gemm" or axis == "m":  # one point missing in a GEMM grid is always read along m
                        points = leave_points_out(profile, gpu, family, axis, passes=passes)
                        yield _row(gpu.name, family, axis, "point", points, rival)
                    yield _row(gpu.name, family, axis, "value", leave_values_out(profile, gpu, family, axis), None)


def _row(gpu: str, family: str, axis: str, protocol: str, held_out: HeldOut, rival: float | None) -> Row:
    return {
        "gpu": gpu,
        "family": family,
        "left_out": axis,
        "protocol": protocol,
        "points": len(held_out.errors),
        "median_percent": round(100 * held_out.median, 2),
        "p90_percent": round(100 * held_out.p90, 1),
        "bias_percent": round(100 * float(np.median(held_out.errors)), 2),
        "rival_median_percent": rival,
    }


def fractions(profile: Profile) -> Iterator[tuple[str, float]]:
    """Medians of achieved over datasheet rates, at shapes clearly bound by one of the two."""
    gpu = find_gpu(profile.gpu)
    bandwidth, rates = gpu.memory_bandwidth_bytes_per_s, gpu.flops_per_s
    table = profile.tables["gemm"]
    m, n, k = (table.keys[name].astype(float) for name in ("m", "n", "k"))
    for dtype, num_bytes in (("bf16", 2.0), ("fp8", 1.0)):
        rate = rates.get(dtype, 0.0)
        of_dtype = table.keys["dtype"] == dtype
        computes = of_dtype & (m >= 4096) & (n >= 2048) & (k >= 2048)
        moves = of_dtype & (m <= 16) & (n * k * num_bytes > 100e6)
        if rate and computes.any():
            yield f"gemm {dtype} compute", float(np.median((2 * m * n * k / table.seconds / rate)[computes]))
            yield f"gemm {dtype} bandwidth", float(np.median((n * k * num_bytes / table.seconds / bandwidth)[moves]))
    yield from _attention_fractions(profile, bandwidth, rates["bf16"])


def _attention_fractions(profile: Profile, bandwidth: float, rate: float) -> Iterator[tuple[str, float]]:
    table = profile.tables["prefill_attention"]
    keys = {name: column.astype(float) for name, column in table.keys.items() if name != "kv_dtype"}
    long = (keys["head_dim"] == 128) & (keys["window"] == 0) & (keys["new"] >= 4096) & (keys["heads"] >= 8)
    flop = 2 * keys["batch"] * keys["heads"] * keys["head_dim"] * keys["new"] ** 2
    plain = table.keys["kv_dtype"] == "bf16"
    yield "prefill attention compute", float(np.median((flop / table.seconds / rate)[long & plain]))
    table = profile.tables["decode_attention"]
    keys = {name: column.astype(float) for name, column in table.keys.items() if name != "kv_dtype"}
    cached = keys["batch"] * keys["context"] * keys["kv_heads"]
    large = (keys["head_dim"] == 128) & (keys["window"] == 0) & (cached >= 1e6) & (table.keys["kv_dtype"] == "bf16")
    yield "decode attention bandwidth", float(np.median((4 * cached * 128 / table.seconds / bandwidth)[large]))


def main() -> None:
    """Prints the table, or with --json one object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--gpu", action="append", help="catalog name; repeat for several; default: all under the engine"
    )
    parser.add_argument("--engine", default="vllm")
    parser.add_argument("--passes", type=int, default=6, help="points out per line")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--fractions", action="store_true")
    arguments = parser.parse_args()
    gpus = arguments.gpu or [name.split("/")[0] for name in list_profiles() if name.endswith(f"/{arguments.engine}")]
    if arguments.fractions:
        for gpu in gpus:
            for name, value in fractions(find_profile(find_gpu(gpu).name, arguments.engine)):
                print(f"{gpu:12} {name:28} {value:.2f}")
        return
    found = []
    for row in rows(gpus, arguments.engine, arguments.passes):
        found.append(row)
        if not arguments.json:
            rival = "" if row["rival_median_percent"] is None else f"  rival {row['rival_median_percent']} %"
            print(
                f"{row['gpu']:12} {row['family']:18} {row['left_out']:10} {row['protocol']:6} {row['points']:>7,}  "
                f"median {row['median_percent']:5.2f} %  p90 {row['p90_percent']:5.1f} %{rival}",
                flush=True,
            )
    if arguments.json:
        json.dump({"kind": "interpolation", "schema_version": 1, "rows": found}, sys.stdout, indent=2)
        sys.stdout.write("\n")


if __name__ == "__main__":
    main()
