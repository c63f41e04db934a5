"""`python -m benchmarks.peers.aiconfigurator --peer-python PATH [--json]`: its plans and ours, both judged twice.

PATH is the interpreter of an environment with `aiconfigurator==0.12.0` and `aiconfigurator-core==0.12.0` (PyPI, NVIDIA,
Apache-2.0; 0.85 GB). Every question names a model, GPUs, a fixed prompt and answer length, and targets.

*By its numbers*: this program gets the peer's own worker candidates (requests per second of each prefill, decode and
colocated worker, with its rate-matching factors) as columns, and is asked for the most goodput; beside it stands what
the peer itself recommends for those GPUs. *By our simulator*: the peer's recommendation (workers, parallelism, batch)
and our plan run on the same sampled Poisson requests; each is searched for the highest rate at which 90 % of them meet
the targets. For several GPU types the peer plans one type at a time, so its answers are added up.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.judged import Arm, build, ours, sustained
from benchmarks.published.answers import colocated
from splitplan.catalogs.errors import NoPlanError
from splitplan.planner.columns.column import Column, Role
from splitplan.planner.columns.options import ColumnOptions
from splitplan.planner.inputs import SolveInputs, load_inputs
from splitplan.planner.program.solve import solve_program
from splitplan.planner.program.types import Infeasible, ProgramInput, ProgramOptions
from splitplan.planner.question import Question

CONNECTOR = "nixl-push"
"""A connector that takes prefill in pipeline stages, as the searches beside it assume."""

PEER = """
import importlib.metadata, json, logging, sys
logging.disable(logging.CRITICAL)
from aiconfigurator.cli import api
from aiconfigurator.sdk import picking, sweep
asked = json.loads(sys.argv[1])
workers = []
inner = sweep._get_disagg_worker_candidates
def spied(**options):
    frame = inner(**options)
    for row in frame.to_dict("records"):
        workers.append({"role": options["role"], "tp": row["tp"], "pp": row["pp"], "batch": row["bs"],
                        "req_per_s": row["seq/s"], "ttft_ms": row["ttft"], "tpot_ms": row["tpot"]})
    return frame
sweep._get_disagg_worker_candidates = spied
inner_agg = sweep.sweep_agg
def spied_agg(**options):
    frame = inner_agg(**options)
    for row in frame.to_dict("records"):
        workers.append({"role": "colocated", "tp": row["tp"], "pp": row["pp"], "batch": row["bs"],
                        "req_per_s": row["seq/s"], "ttft_ms": row["ttft"], "tpot_ms": row["tpot"]})
    return frame
sweep.sweep_agg = spied_agg
result = api.cli_default(model_path=asked["model_path"], total_gpus=asked["gpus"], system=asked["system"],
                         backend="vllm", isl=asked["isl"], osl=asked["osl"], ttft=asked["ttft_ms"],
                         tpot=asked["tpot_ms"], top_n=1, strict_sla=True)
best = {}
for mode, frame in result.best_configs.items():
    if frame is None or frame.empty:
        continue
    row = frame.to_dict("records")[0]
    kept = {key: value for key, value in row.items() if isinstance(value, (int, float)) and value == value}
    best[mode] = kept | {"replicas": asked["gpus"] // row["num_total_gpus"]}
print("ANSWER " + json.dumps({"version": importlib.metadata.version("aiconfigurator"), "best": best, "workers": workers,
    "factors": [picking._RATE_MATCHING_PREFILL_DEGRADATION_FACTOR, picking._RATE_MATCHING_DECODE_DEGRADATION_FACTOR,
                picking._AUTOSCALE_TTFT_CORRECTION_FACTOR]}, default=float))
"""

SYSTEMS = {"h100-sxm": "h100_sxm", "h200-sxm": "h200_sxm", "a100-sxm-80": "a100_sxm", "l40s": "l40s"}
MODELS = {"llama-3.1-70b": "meta-llama/Meta-Llama-3.1-70B", "llama-3.1-8b": "meta-llama/Meta-Llama-3.1-8B"}


@dataclass(frozen=True, slots=True)
class Case:
    """One question to both."""

    model: str
    gpus: Mapping[str, int]
    isl: int
    osl: int
    ttft_ms: float
    tpot_ms: float

    def __str__(self) -> str:
        gpus = " + ".join(f"{many} {gpu}" for gpu, many in self.gpus.items())
        return f"{self.model}, {gpus}, {self.isl}/{self.osl}, {self.ttft_ms:g}/{self.tpot_ms:g} ms"

    def question(self, folder: Path) -> Question:
        """Ours: the most goodput on a fleet of these counts, 90 % of requests within both targets."""
        path = folder / "fleet.yaml"
        counts = ", ".join(f"{gpu}: {many}" for gpu, many in self.gpus.items())
        path.write_text(f"kind: Fleet\nversion: 1\nname: counts\ngpus: {{{counts}}}\n")
        slo = f"ttft={self.ttft_ms}ms@p90,tpot={self.tpot_ms}ms@p90"
        options = ProgramOptions(objective="goodput", max_kinds=1)
        return Question(
            self.model, str(path), f"fixed:{self.isl}/{self.osl}", slo, 1.0, options, ColumnOptions(connector=CONNECTOR)
        )


CASES = (
    Case("llama-3.1-70b", {"h100-sxm": 16}, 4000, 500, 1000.0, 40.0),
    Case("llama-3.1-70b", {"a100-sxm-80": 16}, 4000, 500, 2000.0, 60.0),
    Case("llama-3.1-8b", {"h100-sxm": 8}, 4000, 500, 1000.0, 40.0),
    Case("llama-3.1-8b", {"l40s": 8}, 2000, 200, 1000.0, 60.0),
    Case("llama-3.1-70b", {"h100-sxm": 8, "a100-sxm-80": 16}, 4000, 500, 2000.0, 60.0),
    Case("llama-3.1-8b", {"a100-sxm-80": 8, "l40s": 8}, 2000, 200, 1000.0, 40.0),
)


def main() -> None:
    """Put every case to both and print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers.aiconfigurator", description=__doc__)
    parser.add_argument("--peer-python", required=True, help="interpreter with aiconfigurator installed")
    parser.add_argument("--json", action="store_true", help="a JSON list on stdout")
    parser.add_argument("--case", type=int, action="append", help="only these, from 0 on")
    options = parser.parse_args()
    rows = []
    for number, case in enumerate(CASES):
        if not options.case or number in options.case:
            rows.append(compare(case, options.peer_python))
            if not options.json:
                print(_line(rows[-1]), flush=True)
    if options.json:
        sys.stdout.write(json.dumps(rows, indent=2, ensure_ascii=False) + "\n")


def compare(case: Case, peer_python: str) -> dict[str, Any]:
    """Requests per second of the peer's and of our plan, by its numbers and by our simulator."""
    answers = {gpu: ask(case, gpu, many, peer_python) for gpu, many in case.gpus.items()}
    with tempfile.TemporaryDirectory() as folder:
        question = case.question(Path(folder))
        inputs = load_inputs(question)
        theirs_theirs = sum(_claimed(answer, case) for answer in answers.values())
        ours_theirs, text_theirs = by_its_numbers(case, answers, inputs)
        arms = [(gpu, arm) for gpu, answer in answers.items() for arm in recommended(answer, gpu)]
        theirs_ours = judged(inputs, case, arms)
        ours_ours, text_ours = ours(question)
    return {
        "case": str(case),
        "version": next(iter(answers.values()))["version"],
        "peer": "; ".join(f"{gpu}: {describe(answer)}" for gpu, answer in answers.items()),
        "by_its_numbers": {"peer_req_per_s": round(theirs_theirs, 2), "ours_req_per_s": round(ours_theirs, 2)},
        "by_our_simulator": {"peer_req_per_s": round(theirs_ours, 2), "ours_req_per_s": round(ours_ours, 2)},
        "ours": text_ours,
        "ours_by_its_numbers": text_theirs,
    }


def ask(case: Case, gpu: str, many: int, peer_python: str) -> dict[str, Any]:
    """The peer's answer for one GPU type."""
    asked = {
        "model_path": MODELS[case.model],
        "system": SYSTEMS[gpu],
        "gpus": many,
        "isl": case.isl,
        "osl": case.osl,
        "ttft_ms": case.ttft_ms,
        "tpot_ms": case.tpot_ms,
    }
    command = [peer_python, "-c", PEER, json.dumps(asked)]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    found = [line for line in answer.stdout.splitlines() if line.startswith("ANSWER ")]
    if not found:
        sys.exit(f"the peer failed:\n{answer.stderr[-2000:]}")
    parsed: dict[str, Any] = json.loads(found[0].removeprefix("ANSWER "))
    return parsed


def _best(answer: Mapping[str, Any]) -> tuple[str, Mapping[str, float]] | None:
    """The mode and row that the peer puts first."""
    modes: Mapping[str, Mapping[str, float]] = answer["best"]
    return max(modes.items(), key=lambda item: item[1]["tokens/s/gpu_cluster"]) if modes else None


def _claimed(answer: Mapping[str, Any], case: Case) -> float:
    best = _best(answer)
    return best[1]["seq/s"] * best[1]["replicas"] if best else 0.0


def describe(answer: Mapping[str, Any]) -> str:
    """Its recommendation in words."""
    best = _best(answer)
    if best is None:
        return "no plan"
    mode, row = best
    many = int(row["replicas"])
    if mode == "agg":
        return f"{many} x colocated TP{row['tp']:g} (batch {row['bs']:g})"
    prefill = f"{many * row['(p)workers']:g} x prefill TP{row['(p)tp']:g}"
    return f"{prefill} + {many * row['(d)workers']:g} x decode TP{row['(d)tp']:g} (batch {row['(d)bs']:g})"


def recommended(answer: Mapping[str, Any], gpu: str) -> list[Arm]:
    """Its recommendation as instances to build."""
    best = _best(answer)
    if best is None:
        return []
    mode, row = best
    many = int(row["replicas"])
    if mode == "agg":
        return [Arm("colocated", gpu, int(row["tp"]), int(row["pp"]), many, int(row["bs"]))]
    return [
        Arm("prefill", gpu, int(row["(p)tp"]), int(row["(p)pp"]), many * int(row["(p)workers"]), int(row["(p)bs"])),
        Arm("decode", gpu, int(row["(d)tp"]), int(row["(d)pp"]), many * int(row["(d)workers"]), int(row["(d)bs"])),
    ]


def judged(inputs: SolveInputs, case: Case, arms: Sequence[tuple[str, Arm]]) -> float:
    """Requests per second that the peer's plans sustain by our simulator; one GPU type at a time, added up."""
    total = 0.0
    for gpu in case.gpus:
        own = [arm for where, arm in arms if where == gpu]
        if own:
            total += sustained(inputs, build(inputs, own))
    return total


def by_its_numbers(case: Case, answers: Mapping[str, Mapping[str, Any]], inputs: SolveInputs) -> tuple[float, str]:
    """Our program's most goodput over the peer's worker candidates, and the plan."""
    columns = [column for gpu, answer in answers.items() for column in _columns(case, gpu, answer)]
    problem = ProgramInput(
        fleet=inputs.fleet,
        columns=tuple(columns),
        class_names=("all",),
        rate_req_per_s=np.array([1.0]),
        kv_bytes_per_request={"bf16": np.zeros(1)},
        options=ProgramOptions(objective="goodput"),
    )
    answer = solve_program(problem)
    if isinstance(answer, Infeasible):
        return 0.0, "no plan"
    counts: dict[str, int] = {}
    for placed in answer.placed:
        counts[placed.column] = counts.get(placed.column, 0) + placed.instances
    return answer.rate_scale, " + ".join(f"{many} x {name}" for name, many in counts.items())


def _columns(case: Case, gpu: str, answer: Mapping[str, Any]) -> list[Column]:
    """Workers that meet the targets by its own rule, the best batch of each shape, as columns."""
    prefill, decode, correction = answer["factors"]
    factor = {"prefill": prefill, "decode": decode, "colocated": 1.0}
    best: dict[tuple[Role, int, int], Mapping[str, float]] = {}
    for worker in answer["workers"]:
        role: Role = worker["role"]
        if role != "decode" and worker["ttft_ms"] * (correction if role == "prefill" else 1.0) >= case.ttft_ms:
            continue
        if role != "prefill" and worker["tpot_ms"] >= case.tpot_ms:
            continue
        key = role, int(worker["tp"]), int(worker["pp"])
        if key not in best or worker["req_per_s"] > best[key]["req_per_s"]:
            best[key] = worker
    return [
        replace(
            colocated(gpu, [1.0 / (worker["req_per_s"] * factor[role])]),
            name=f"{role} {gpu} tp{tp}" + (f" pp{pp}" if pp > 1 else ""),
            role=role,
            tensor_parallel=tp,
            pipeline_parallel=pp,
            max_num_seqs=int(worker["batch"]),
        )
        for (role, tp, pp), worker in sorted(best.items())
    ]


def _line(row: Mapping[str, Any]) -> str:
    own, simulated = row["by_its_numbers"], row["by_our_simulator"]
    return (
        f"{row['case']}\n  peer {row['peer']}\n  ours {row['ours']}\n"
        f"  by its numbers    peer {own['peer_req_per_s']:6.2f}  ours {own['ours_req_per_s']:6.2f} req/s"
        f"  ({row['ours_by_its_numbers']})\n"
        f"  by our simulator  peer {simulated['peer_req_per_s']:6.2f}  ours {simulated['ours_req_per_s']:6.2f} req/s"
    )


if __name__ == "__main__":
    try:
        main()
    except NoPlanError as error:
        sys.exit(str(error))
