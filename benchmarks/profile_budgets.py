"""How much a short profile gives away: its predictions against those of a longer one of the same device.

    planner profile --device cpu --model qwen3-0.6b --budget-s 60 -o short.npz
    planner profile --device cpu --model qwen3-0.6b --budget-s 600 -o long.npz
    python benchmarks/profile_budgets.py short.npz long.npz

Both answer, through the look-ups that planning uses, for every shape that the longer one has measured. The two runs are
minutes apart, so on a machine that does other things the difference holds its restlessness too.
"""

from __future__ import annotations

import sys

import numpy as np

from splitplan.catalogs.errors import SplitplanError
from splitplan.catalogs.gpus import find_gpu
from splitplan.profiler.leave_one_out import predict
from splitplan.profiler.query import OpTimes
from splitplan.profiler.store import load_profile

FAMILIES = ("gemm", "prefill_attention", "decode_attention", "elementwise")


def differences(short_path: str, long_path: str) -> dict[str, np.ndarray]:
    """By family, |short / long − 1| at each shape of the longer profile."""
    short, long = load_profile(short_path), load_profile(long_path)
    ours, theirs = (OpTimes(profile, find_gpu(profile.gpu)) for profile in (short, long))
    found = {}
    for family in FAMILIES:
        if family in short.tables and family in long.tables:
            table = long.tables[family]
            if family == "elementwise":
                sizes = table.keys["num_bytes"]
                predictions = [ops.elementwise(sizes).seconds for ops in (ours, theirs)]
            else:
                predictions = [predict(ops, family, table) for ops in (ours, theirs)]
            found[family] = np.abs(predictions[0] / predictions[1] - 1)
    return found


def main() -> int:
    """Prints the median difference by family and over all; 1 when it is 10 % or more."""
    try:
        found = differences(sys.argv[1], sys.argv[2])
    except SplitplanError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    for family, shares in found.items():
        middle, high = np.quantile(shares, [0.5, 0.9])
        print(f"{family:18s} {len(shares):4d} shapes  median {middle:6.1%}  p90 {high:6.1%}")
    everything = np.concatenate(list(found.values()))
    print(f"{'all':18s} {len(everything):4d} shapes  median {np.median(everything):6.1%}")
    return int(np.median(everything) >= 0.10)


if __name__ == "__main__":
    sys.exit(main())
