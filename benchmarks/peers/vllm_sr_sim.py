"""`python -m benchmarks.peers.vllm_sr_sim --peer-python PATH [--json]`: vllm-sr-sim's plans, a negative control.

PATH is the interpreter of an environment with `vllm-sr-sim` (PyPI, a development release, Apache-2.0). It sizes prefill
and decode pools by a formula in which one prefill worker takes any number of prompt tokens a second, so it always buys
one. Its GPU profiles name no model; Llama-3.1-8B on one GPU each is the smallest that its KV size fits.

*By its numbers*: this program gets its worker rates and prices as columns; enumeration and program must agree for one
pair of types, and the program may mix them. *By our simulator*: the highest rate at which its plan keeps 90 % of the
requests within the targets, against the rate that was asked; and the cheapest plan of ours that does keep them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.judged import Arm, build, sustained
from benchmarks.published.answers import colocated, inventory
from splitplan.planner.columns.column import Column, Role
from splitplan.planner.inputs import load_inputs
from splitplan.planner.program.solve import solve_program
from splitplan.planner.program.types import Infeasible, ProgramInput, ProgramOptions
from splitplan.planner.question import Question
from splitplan.planner.solve import solve

PEER = """
import importlib.metadata, json, sys
from fleet_sim import A100_80GB, H100_80GB
from fleet_sim.optimizer.disagg import DisaggFleetOptimizer
asked = json.loads(sys.argv[1])
gpus = {"h100-sxm": H100_80GB, "a100-sxm-80": A100_80GB}
rows = []
for prefill in gpus:
    for decode in gpus:
        search = DisaggFleetOptimizer(gpus[prefill], gpus[decode], asked["isl"], asked["osl"], 500.0, 100.0, 8192)
        fit = [point for point in search.sweep(32, 128) if point.slo_met and point.system_rate >= asked["rate"]]
        best = min(fit, key=lambda point: point.cost_per_hr) if fit else None
        rows.append({"prefill": prefill, "decode": decode, "num_prefill": best.n_prefill if best else 0,
                     "num_decode": best.n_decode if best else 0, "usd_per_hour": best.cost_per_hr if best else None,
                     "prefill_req_per_s": search._prefill_thru() * search.alpha_pre,
                     "decode_req_per_s": search._decode_thru() * search.alpha_dec})
print("ANSWER " + json.dumps({"version": importlib.metadata.version("vllm-sr-sim"), "rows": rows}))
"""

USD_PER_HOUR = {"h100-sxm": 4.02, "a100-sxm-80": 2.21}  # its own prices
MODEL = "llama-3.1-8b"


@dataclass(frozen=True, slots=True)
class Case:
    """One of its shipped traces, by mean lengths, at a rate; `fleet` is what both may buy."""

    trace: str
    isl: int
    osl: int
    rate_req_per_s: float
    fleet: int = 64  # of each type


CASES = (Case("azure", 1450, 483, 100.0), Case("lmsys", 619, 206, 100.0), Case("lmsys", 619, 206, 400.0))


def main() -> None:
    """Put every case to both and print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers.vllm_sr_sim", description=__doc__)
    parser.add_argument("--peer-python", required=True, help="interpreter with vllm-sr-sim installed")
    parser.add_argument("--json", action="store_true", help="a JSON list on stdout")
    options = parser.parse_args()
    rows = [compare(case, options.peer_python) for case in CASES]
    if options.json:
        sys.stdout.write(json.dumps(rows, indent=2, ensure_ascii=False) + "\n")
        return
    for row in rows:
        print(f"{row['case']}")
        for plan in row["peer"]:
            print(f"  peer {plan['plan']:32} {plan['usd_per_hour']:7.2f} $/h, sustains {plan['sustains']:6.1f} req/s")
        print(f"  ours, by its numbers {row['ours_by_its_numbers']} {row['ours_by_its_numbers_usd_per_hour']:.2f} $/h")
        print(f"  ours {row['ours']} {row['ours_usd_per_hour']:.2f} $/h, sustains {row['ours_sustains']:.1f} req/s")


def compare(case: Case, peer_python: str) -> dict[str, Any]:
    """Its plans for every pair of types, and ours, with what each sustains by our simulator."""
    answer = ask(case, peer_python)
    with tempfile.TemporaryDirectory() as folder:
        question = _question(case, Path(folder))
        inputs = load_inputs(question)
        plans = []
        for row in answer["rows"]:
            if not row["num_prefill"]:
                continue
            arms = [
                Arm("prefill", row["prefill"], 1, 1, row["num_prefill"], 64),
                Arm("decode", row["decode"], 1, 1, row["num_decode"], 256),
            ]
            words = f"{row['num_prefill']} {row['prefill']} + {row['num_decode']} {row['decode']}"
            rate = sustained(inputs, build(inputs, arms))
            plans.append({"plan": words, "usd_per_hour": row["usd_per_hour"], "sustains": round(rate, 1)})
        plan = solve(question)
        words = " + ".join(
            f"{len(pool.instances)} x {pool.role} {pool.gpu} TP{pool.tensor_parallel}" for pool in plan.pools
        )
        assert plan.verification is not None
        cost, own = by_its_numbers(case, answer)
    return {
        "case": f"{case.trace}, {case.isl}/{case.osl}, {case.rate_req_per_s:g} req/s, 500/100 ms",
        "version": answer["version"],
        "peer": plans,
        "ours": words,
        "ours_usd_per_hour": round(plan.usd_per_hour, 2),
        "ours_sustains": plan.verification.rate_req_per_s,
        "ours_by_its_numbers": own,
        "ours_by_its_numbers_usd_per_hour": round(cost, 2),
    }


def ask(case: Case, peer_python: str) -> dict[str, Any]:
    """The peer's answers for every pair of types."""
    asked = {"isl": case.isl, "osl": case.osl, "rate": case.rate_req_per_s}
    command = [peer_python, "-c", PEER, json.dumps(asked)]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    found = [line for line in answer.stdout.splitlines() if line.startswith("ANSWER ")]
    if not found:
        sys.exit(f"the peer failed:\n{answer.stderr[-2000:]}")
    parsed: dict[str, Any] = json.loads(found[0].removeprefix("ANSWER "))
    return parsed


def _question(case: Case, folder: Path) -> Question:
    path = folder / "fleet.yaml"
    counts = ", ".join(f"{gpu}: {case.fleet}" for gpu in USD_PER_HOUR)
    prices = ", ".join(f"{gpu}: {{on_demand: {usd}}}" for gpu, usd in USD_PER_HOUR.items())
    path.write_text(f"kind: Fleet\nversion: 1\nname: counts\ngpus: {{{counts}}}\nprices: {{{prices}}}\n")
    slo = "ttft=500ms@p90,tpot=100ms@p90"
    return Question(MODEL, str(path), f"fixed:{case.isl}/{case.osl}", slo, case.rate_req_per_s)


def by_its_numbers(case: Case, answer: Mapping[str, Any]) -> tuple[float, str]:
    """The cheapest plan of our program over its worker rates and prices."""
    columns: dict[str, Column] = {}
    roles: tuple[Role, Role] = ("prefill", "decode")
    for row in answer["rows"]:
        for role in roles:
            gpu = row[role]
            columns[f"{role} {gpu}"] = _column(role, gpu, row[f"{role}_req_per_s"])
    problem = ProgramInput(
        fleet=inventory(dict.fromkeys(USD_PER_HOUR, case.fleet), USD_PER_HOUR),
        columns=tuple(columns.values()),
        class_names=("all",),
        rate_req_per_s=np.array([case.rate_req_per_s]),
        kv_bytes_per_request={"bf16": np.zeros(1)},
        options=ProgramOptions(),
    )
    found = solve_program(problem)
    if isinstance(found, Infeasible):
        return float("inf"), "no plan"
    counts: dict[str, int] = {}
    for placed in found.placed:
        counts[placed.column] = counts.get(placed.column, 0) + placed.instances
    return found.usd_per_hour, " + ".join(f"{many} {name}" for name, many in counts.items())


def _column(role: Role, gpu: str, req_per_s: float) -> Column:
    return replace(colocated(gpu, [1.0 / req_per_s]), name=f"{role} {gpu}", role=role)


if __name__ == "__main__":
    main()
