"""`python -m benchmarks.scale --racks N --json`: one line with racks, GPUs, seconds and proven gap."""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time

from benchmarks.scale.instance import large_problem
from splitplan.planner.patience import Progress, patience
from splitplan.planner.program.solve import solve_program
from splitplan.planner.program.types import Infeasible


def main() -> int:
    """Solve one instance and print what it took; exit code 1 when there is no plan."""
    options = _options()
    problem = large_problem(
        options.racks, pods=options.pods, uplink_factor=options.uplinks, time_limit_s=options.time_limit
    )
    start = time.perf_counter()
    with patience(report=_print_progress if options.progress else None):
        answer = solve_program(problem)
    elapsed_s = time.perf_counter() - start
    if isinstance(answer, Infeasible):
        sys.stderr.write("".join(f"{reason.message}\n" for reason in answer.reasons))
        return 1
    result = {
        "racks": options.racks,
        "gpus": sum(problem.fleet.num_gpus.values()),
        "time_s": round(elapsed_s, 3),
        "gap_percent": round(answer.gap_percent, 4),
    }
    extra = {
        "pods": options.pods,
        "uplink_factor": options.uplinks,
        "gpus_used": answer.num_gpus,
        "usd_per_hour": round(answer.usd_per_hour, 2),
        "constraints_checked": answer.constraints_checked,
        "peak_memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }
    if options.json:
        print(json.dumps(result | (extra if options.details else {})))
    else:
        print("  ".join(f"{key} {value}" for key, value in (result | extra).items()))
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument("--racks", type=int, default=300, help="racks of about 30 GPUs (2 racks: 64 GPUs)")
    parser.add_argument("--pods", choices=("mixed", "homogeneous"), default="mixed")
    parser.add_argument("--uplinks", type=float, default=1.0, help="factor on every uplink; 0.25 and less bind")
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds")
    parser.add_argument("--json", action="store_true", help="one JSON line on stdout")
    parser.add_argument("--details", action="store_true", help="more keys in the JSON line")
    parser.add_argument("--progress", action="store_true", help="incumbent and bound on stderr")
    return parser.parse_args()


def _print_progress(progress: Progress) -> None:
    incumbent, bound = ("-" if x is None else f"{x:.6g}" for x in (progress.incumbent, progress.bound))
    sys.stderr.write(f"{progress.elapsed_s:7.1f} s  {progress.stage:12}  {incumbent} (bound {bound})\n")


if __name__ == "__main__":
    sys.exit(main())
