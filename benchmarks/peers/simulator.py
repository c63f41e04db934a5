"""`python -m benchmarks.peers.simulator --peer-python PATH`: our simulator and vllm-sr-sim on the same requests.

PATH is the interpreter of an environment that has `vllm-sr-sim` installed (PyPI, Apache-2.0; it pulls in SciPy, so it
gets its own). 1,024 tokens in, 256 out, Poisson, four colocated H100 instances, requests per second of user CPU time.
The two do not model the same: theirs gives a request one service time by a formula from the batch at its start, and
has no engine steps, KV blocks or transfers. What is compared is speed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys

from benchmarks.simulator.__main__ import RATE_PER_INSTANCE, colocated, h100_step, measure, poisson
from splitplan.planner.simulate import simulate
from splitplan.planner.simulate.run import Form

PEER = """
import importlib.metadata, json, random, sys, time
from fleet_sim import Fleet, FleetConfig, H100_80GB, PoolConfig, Request
count, rate = int(sys.argv[1]), float(sys.argv[2])
draw, now, arrivals = random.Random(0), 0.0, []
for number in range(count):
    now += draw.expovariate(rate)
    arrivals.append((now, Request(number, now, 1024, 256)))
pool = PoolConfig("all", H100_80GB, 4, 8192)
fleet = Fleet(FleetConfig([pool], router_type="LeastLoadedRouter"))
start = time.process_time()
result = fleet.run(arrivals)
spent = time.process_time() - start
print(json.dumps({"version": importlib.metadata.version("vllm-sr-sim"), "requests_per_cpu_s": round(count / spent),
                  "completed": len(result.completed)}))
"""


def main() -> None:
    """Measure both and print one JSON list."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers.simulator", description=__doc__)
    parser.add_argument("--peer-python", required=True, help="interpreter with vllm-sr-sim installed")
    parser.add_argument("--requests", type=int, default=5_000, help="for the peer and our plain form")
    options = parser.parse_args()
    rate = 4 * RATE_PER_INSTANCE
    command = [options.peer_python, "-c", PEER, str(options.requests), str(rate)]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        sys.exit(f"the peer failed:\n{answer.stderr[-2000:]}")
    rows = [{"case": "1024/256 Poisson 4 instances, vllm-sr-sim", **json.loads(answer.stdout)}]
    rows += [_ours("numba", 40 * options.requests), _ours("python", options.requests)]
    sys.stdout.write(json.dumps(rows, indent=2) + "\n")


def _ours(form: Form, count: int) -> dict[str, object]:
    deployment = colocated(4, h100_step())
    simulate(deployment, poisson(100, 1.0, 1024, 256), form=form)
    per_cpu_s, results = measure(deployment, poisson(count, 4 * RATE_PER_INSTANCE, 1024, 256), form)
    finished = results.runs[0].num_finished
    case = f"1024/256 Poisson 4 instances, splitplan {form}"
    return {"case": case, "requests_per_cpu_s": round(per_cpu_s), "completed": finished}


if __name__ == "__main__":
    main()
