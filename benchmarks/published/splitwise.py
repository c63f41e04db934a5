"""Splitwise (ISCA 2024) by our simulator: its cluster designs and its nine targets.

Step times are its published measurements of BLOOM-176B on TP8 (medians): prompts by tokens, token time by batch at
512-token prompts. Machines (prompt, token) are its provisioning. Its own simulator takes the token time of a batch of
one for every batch (`flat`). The nine targets are slowdowns against the same request alone on a DGX-A100: TTFT 2, 3, 6
times, TBT and E2E 1.25, 1.5, 5 times, at p50, p90 and p99.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import numpy as np

from benchmarks.published.answers import colocated, inventory
from splitplan.planner.columns.column import ROLES, Role
from splitplan.planner.latency.step import StepModel
from splitplan.planner.program.solve import solve_program
from splitplan.planner.program.types import ProgramInput, ProgramOptions, ProgramSolution
from splitplan.planner.simulate import Deployment, InstanceSpec, Link, simulate
from splitplan.planner.simulate.build import Routing
from splitplan.planner.simulate.goodput import at_rate
from splitplan.planner.spec.workload import FloatArray, Requests, load_workload, sample

Kind = Literal["A", "H"]  # DGX-A100, DGX-H100

PROMPT_TOKENS = np.array([0.0, 1, 128, 256, 512, 1024, 2048, 4096, 8192])
PROMPT_S = {
    "A": np.array([0.0, 79.7, 79.7, 99.2, 174.4, 289.2, 540.4, 1348.2, 3593.2]) / 1e3,
    "H": np.array([0.0, 48.3, 48.3, 51.2, 76.1, 132.6, 253.1, 688.7, 1535.4]) / 1e3,
}
BATCHES = np.array([0.0, 1, 2, 4, 8, 16, 32, 64, 256])
TOKEN_S = {
    "A": np.array([0.0, 47.6, 50.0, 51.0, 53.0, 57.3, 65.4, 96.6, 283.6]) / 1e3,  # the last from the slope before it
    "H": np.array([0.0, 35.7, 36.9, 38.1, 38.1, 40.6, 45.8, 63.8, 171.7]) / 1e3,
}
KV_BYTES_PER_TOKEN = 4 * 14336 * 70  # 70 layers of MHA, keys and values, FP16
KV_TOKENS = 70_000  # (8 · 80 GB − 352 GB of weights) / KV_BYTES_PER_TOKEN, roughly
NIC_BYTES_PER_S = {"A": 200e9, "H": 400e9}  # eight ports of 200 and 400 Gbit/s per DGX
USD_PER_GPU_HOUR: dict[str, float] = {"A": 2.21, "H": 4.76}
BUDGET_MACHINES = 40  # DGX-H100


@dataclass(frozen=True, slots=True)
class Design:
    """Prompt and token machines. Without token machines the prompt machines do both. `capped`: token machines run at
    70 % power, at which their measured token time is the same."""

    prompts: int
    prompt_kind: Kind
    tokens: int = 0
    token_kind: Kind = "H"
    capped: bool = False

    @property
    def usd_per_hour(self) -> float:
        """Eight GPUs a machine."""
        machines = ((self.prompts, self.prompt_kind), (self.tokens, self.token_kind))
        return sum(8 * many * USD_PER_GPU_HOUR[kind] for many, kind in machines)


ISO_POWER = {  # conversation
    "Baseline-A100": Design(70, "A"),
    "Baseline-H100": Design(40, "H"),
    "AA": Design(45, "A", 25, "A"),
    "HH": Design(25, "H", 15, "H"),
    "HA": Design(25, "H", 26, "A"),
    "HHcap": Design(25, "H", 21, "H", capped=True),
}
ISO_COST = {  # conversation
    "Baseline-A100": Design(86, "A"),
    "Baseline-H100": Design(40, "H"),
    "AA": Design(51, "A", 35, "A"),
    "HH": Design(25, "H", 15, "H"),
    "HA": Design(30, "H", 21, "A"),
    "HHcap": Design(30, "H", 10, "H", capped=True),
}
CODING = {"AA, iso-power": Design(55, "A", 15, "A"), "HH, iso-power": Design(35, "H", 5, "H")}
CODING_70_RPS = Design(27, "H", 3, "H")
"""The cheapest that meets the nine targets at 70 requests a second of the coding trace."""

PUBLISHED_ISO_POWER = {"Baseline-A100": 50, "Baseline-H100": 120, "AA": 120, "HH": 120, "HA": 140, "HHcap": 140}
"""Highest rate on a grid of 10 in its released simulator."""


def iso_cost_a100(num_h100: int) -> int:
    """A100 machines that the money of 40 DGX-H100 buys beside so many DGX-H100."""
    return math.floor(USD_PER_GPU_HOUR["H"] * (BUDGET_MACHINES - num_h100) / USD_PER_GPU_HOUR["A"])


@functools.cache
def machine(kind: Kind, role: str, flat: bool) -> StepModel:
    """A DGX of one kind. On prompt machines a step's time goes by all its tokens, so that prompts share it; on mixed
    ones it sits in the prompt's attention table, so that steps of decodes cost their own.
    """
    token_s = np.minimum(TOKEN_S[kind], TOKEN_S[kind][1]) if flat else TOKEN_S[kind]
    shared = np.interp(np.arange(8193), PROMPT_TOKENS, PROMPT_S[kind])
    none, flat_axis = np.zeros(257), np.array([0.0, 8192.0])
    return StepModel(
        overhead_s=(0.0, 0.0),
        host_s=none,
        gap_s=0.0,
        token_s=shared if role == "prefill" else np.zeros(8193),
        sequence_s=none,
        prefill_new_knots=PROMPT_TOKENS,
        prefill_past_knots=flat_axis,
        prefill_attention_s=np.stack([PROMPT_S[kind] * (role != "prefill")] * 2, axis=1),
        decode_batch_knots=BATCHES,
        decode_context_knots=flat_axis,
        decode_attention_s=np.stack([token_s] * 2, axis=1),
    )


def deployment(design: Design, *, flat: bool) -> Deployment:
    """Mixed machines, prompts first; or prompt and token machines, KV moved layer by layer over each machine's NIC."""
    if not design.tokens:
        return Deployment(tuple(_machines(design.prompts, design.prompt_kind, "colocated", flat, scheduler="sglang")))
    sides = _machines(design.prompts, design.prompt_kind, "prefill", flat)
    sides = [InstanceSpec(**(_fields(spec) | {"egress": (k,)})) for k, spec in enumerate(sides)]
    rate = min(NIC_BYTES_PER_S[design.prompt_kind], NIC_BYTES_PER_S[design.token_kind])
    return Deployment(
        (*sides, *_machines(design.tokens, design.token_kind, "decode", flat)),
        tuple(Link(f"nic{k}", rate) for k in range(design.prompts)),
        kv_bytes_per_token=KV_BYTES_PER_TOKEN,
        layerwise_layers=70,
        decode_emits_first_token=False,
    )


def _machines(count: int, kind: Kind, role: str, flat: bool, **changes: Any) -> list[InstanceSpec]:
    step = machine(kind, role, flat)
    settings: dict[str, Any] = {"max_num_seqs": 128, "max_num_batched_tokens": 8192 if role == "decode" else 2048}
    return [InstanceSpec(f"{role}{k}", role, step, KV_TOKENS, **(settings | changes)) for k in range(count)]  # type: ignore[arg-type]


def _fields(spec: InstanceSpec) -> dict[str, Any]:
    return {field.name: getattr(spec, field.name) for field in fields(spec)}


@functools.cache
def requests_of(workload: str, count: int = 6000) -> Requests:
    """Lengths of an Azure trace; arrivals are Poisson, as in Splitwise's provisioning."""
    drawn = sample(load_workload(workload, rate_req_per_s=1.0), count, 0)
    gaps = np.random.default_rng(0).exponential(1.0, count)
    return Requests(np.cumsum(gaps), drawn.input_tokens, drawn.output_tokens, drawn.class_index, drawn.cached_tokens)


def slowdowns(design: Design, workload: str, rate_req_per_s: float, *, flat: bool) -> dict[str, FloatArray]:
    """p50, p90 and p99 of TTFT, TBT and E2E over those of the request alone on a DGX-A100.

    Prompts join the shortest queue: of prompt tokens where machines only prefill, of requests where they do both.
    """
    requests = at_rate(requests_of(workload), rate_req_per_s)
    routing: Routing = "least_tokens" if design.tokens else "least_loaded"
    run = simulate(deployment(design, flat=flat), requests, routing=routing).runs[0]
    first_s = np.interp(requests.input_tokens, PROMPT_TOKENS, PROMPT_S["A"])
    token_s = TOKEN_S["A"][1]
    alone_s = first_s + (requests.output_tokens - 1) * token_s
    found = {"TTFT": run.ttft_s / first_s, "TBT": run.tpot_s / token_s, "E2E": run.e2e_s / alone_s}
    return {name: np.nanpercentile(values[run.warmup :], (50, 90, 99)) for name, values in found.items()}


NINE_TARGETS = {"TTFT": (2.0, 3.0, 6.0), "TBT": (1.25, 1.5, 5.0), "E2E": (1.25, 1.5, 5.0)}


def meets_all_nine(design: Design, rate_req_per_s: float, *, flat: bool, workload: str = "azure-conv") -> bool:
    """Whether all nine targets hold."""
    found = slowdowns(design, workload, rate_req_per_s, flat=flat)
    return all(bool((found[name] <= bounds).all()) for name, bounds in NINE_TARGETS.items())


def highest_rate(design: Design, *, flat: bool, workload: str = "azure-conv", grid: Sequence[int] = ()) -> int:
    """The highest rate of a grid (10, 20, … 200 req/s) at which all nine targets hold; 0 when none does."""
    rates = list(grid or range(10, 210, 10))
    low, high = -1, len(rates)
    while high - low > 1:
        middle = (low + high) // 2
        if meets_all_nine(design, rates[middle], flat=flat, workload=workload):
            low = middle
        else:
            high = middle
    return rates[low] if low >= 0 else 0


def fewest_prompt_machines(rate_req_per_s: float, tokens: int) -> int:
    """DGX-H100 prompt machines beside `tokens` token machines with which the coding trace meets all nine targets."""
    low, high = 0, 64
    while high - low > 1:
        middle = (low + high) // 2
        if meets_all_nine(Design(middle, "H", tokens, "H"), rate_req_per_s, flat=True, workload="azure-code"):
            high = middle
        else:
            low = middle
    return high


POWER_UNITS = {"A": 1.0, "H": 1.75, "cap": 1.225}
"""Power of a machine where 70 DGX-A100 equal 40 DGX-H100; capped ones run at 70 %."""


def per_machine(kind: Kind, role: str, *, flat: bool) -> float:
    """Requests per second of one machine of a pool of 30, its other stage never short of machines."""
    design = {
        "prefill": Design(30, kind, 250, "H"),
        "decode": Design(250, "H", 30, kind),
        "colocated": Design(30, kind),
    }[role]
    return highest_rate(design, flat=flat, grid=range(4, 400, 4)) / 30


@dataclass(frozen=True, slots=True)
class Bought:
    """What the program buys with a budget: machines by column, and the rate it promises."""

    machines: dict[str, int]
    req_per_s: float


MachineRates = Mapping[tuple[Kind, Role], float]


def machine_rates(*, flat: bool) -> MachineRates:
    """`per_machine` of both kinds in every role."""
    kinds: tuple[Kind, Kind] = ("A", "H")
    return {(kind, role): per_machine(kind, role, flat=flat) for kind in kinds for role in ROLES}


def program_design(budget: float, prices: Mapping[str, float], rates: MachineRates) -> Bought:
    """This program's most goodput for a budget in the units of `prices`, over columns "prefill A", "decode cap", …"""
    columns = []
    for name in prices:
        for (kind, role), rate in rates.items():
            wanted = kind == "H" and role == "decode" if name == "cap" else kind == name
            if wanted and rate > 0:
                columns.append(replace(colocated(name, [1.0 / rate]), name=f"{role} {name}", role=role))
    problem = ProgramInput(
        fleet=inventory(dict.fromkeys(prices, 90), prices),
        columns=tuple(columns),
        class_names=("conversation",),
        rate_req_per_s=np.array([1.0]),
        kv_bytes_per_request={"bf16": np.zeros(1)},
        options=ProgramOptions(objective="goodput", budget_usd_per_hour=budget),
    )
    answer = solve_program(problem)
    assert isinstance(answer, ProgramSolution), answer
    machines: dict[str, int] = {}
    for placed in answer.placed:
        machines[placed.column] = machines.get(placed.column, 0) + placed.instances
    return Bought(machines, answer.rate_scale)
