"""How fast traces are read: `python -m benchmarks.traces [--rows N] [--json]` writes traces and reads them back.

Reports rows per CPU-second and the peak memory of the process, for each format.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np

from splitplan.planner.spec.trace.read import read_trace


def azure_2024(rows: Iterator[tuple[float, int, int]]) -> Iterator[str]:
    """Lines after the layout of the Azure 2024 traces."""
    start = datetime(2024, 5, 10, tzinfo=UTC)
    yield "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    for time_s, prompt, output in rows:
        yield f"{(start + timedelta(seconds=time_s)).isoformat(' ')},{prompt},{output}\n"


def burstgpt(rows: Iterator[tuple[float, int, int]]) -> Iterator[str]:
    """Lines after the layout of BurstGPT."""
    yield "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    for time_s, prompt, output in rows:
        model = "GPT-4" if prompt % 2 else "ChatGPT"
        yield f"{time_s:.1f},{model},{prompt},{output},{prompt + output},Conversation log\n"


def mooncake(rows: Iterator[tuple[float, int, int]]) -> Iterator[str]:
    """Lines after the layout of the Mooncake traces, 24 blocks each."""
    for index, (time_s, prompt, output) in enumerate(rows):
        hashes = list(range(24 * index, 24 * index + 24))
        record = {"timestamp": int(time_s * 1000), "input_length": prompt, "output_length": output, "hash_ids": hashes}
        yield json.dumps(record) + "\n"


FORMATS = {"azure-2024.csv": (azure_2024, 1), "burstgpt.csv": (burstgpt, 1), "mooncake.jsonl": (mooncake, 10)}


def measure(name: str, num_rows: int, folder: Path) -> dict[str, float | str]:
    """Write one trace and time reading it."""
    layout, divisor = FORMATS[name]
    rng = np.random.default_rng(0)
    count = num_rows // divisor
    columns = (np.cumsum(rng.exponential(0.1, count)), rng.integers(1, 8000, count), rng.integers(1, 900, count))
    path = folder / name
    with open(path, "w") as handle:
        handle.writelines(layout(zip(*(column.tolist() for column in columns), strict=True)))
    start_s = time.process_time()
    trace = read_trace(path)
    spent_s = time.process_time() - start_s
    megabytes = path.stat().st_size / 1e6
    path.unlink()
    return {
        "format": name,
        "rows": len(trace.requests),
        "megabytes": round(megabytes, 1),
        "rows_per_cpu_s": round(count / spent_s),
        "megabytes_per_cpu_s": round(megabytes / spent_s, 1),
        "peak_memory_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3),
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000, help="rows of the CSV traces")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        results = [measure(name, options.rows, Path(folder)) for name in FORMATS]
    if options.json:
        print(json.dumps(results))
        return
    for result in results:
        print("  ".join(f"{key} {value}" for key, value in result.items()))


if __name__ == "__main__":
    main()
