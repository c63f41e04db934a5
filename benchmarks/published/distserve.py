"""DistServe (OSDI 2024) by our simulator: its step model, its two placement searches, and its attainment curve.

Step times and memory are those published with its simulator, for A100-80G; milliseconds:

    prefill = (a + b · Σ tokens + c · Σ tokens²) / stages        decode = (a + b · Σ context + c · batch) / stages

Its high-affinity search (algorithm 1) takes each phase alone, keeps the best goodput per GPU, and then
n = ⌈R / prefill⌉, m = ⌈R / decode⌉. Its released simulator searches pairs of one prefill and one decode instance
instead, and leaves n : m out.
"""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from splitplan.planner.latency.step import StepModel
from splitplan.planner.simulate import Deployment, InstanceSpec, combine, goodput, simulate
from splitplan.planner.simulate.goodput import at_rate
from splitplan.planner.simulate.run import Form
from splitplan.planner.spec.slo import Slo, Target
from splitplan.planner.spec.workload import Requests

Coefficients = tuple[float, float, float]
Split = tuple[int, int]  # tensor ranks, pipeline stages
Role = Literal["prefill", "decode", "colocated"]
KvLimit = Literal["instance", "batch", "none"]
"""What a decode instance's memory limits: all its sequences; those of each batch in flight, of which a pipeline has one
per stage; or nothing, as in the released simulator."""


PREFILL_MS: dict[str, dict[int, Coefficients]] = {
    "13b": {1: (18.10, 0.1019, 7.12e-6), 2: (14.74, 0.0686, 2.45e-6), 4: (12.06, 0.0381, 5.2e-7)},
    "66b": {2: (43.06, 0.2742, 2.25e-5), 4: (29.44, 0.1514, 8.3e-6), 8: (25.49, 0.1066, 3.4e-6)},
}
DECODE_MS: dict[str, dict[int, tuple[Coefficients, Coefficients]]] = {  # below a batch of 95, and from 95 on
    "13b": {
        1: ((19.93, 6.27e-4, 0.0385), (7.17, 5.80e-4, 0.158)),
        2: ((13.29, 3.41e-4, 0.0630), (10.64, 3.12e-4, 0.0856)),
        4: ((10.26, 1.88e-4, 0.0327), (10.48, 1.71e-4, 0.0457)),
    },
    "66b": {
        2: ((48.29, 9.42e-4, 0.1276), (28.73, 4.74e-4, 0.296)),
        4: ((30.76, 4.52e-4, 0.0633), (27.47, 4.05e-4, 0.125)),
        8: ((23.16, 2.27e-4, 0.0480), (21.72, 3.76e-4, 0.0898)),
    },
}
SLO_S = {"13b": (0.25, 0.1), "66b": (2.5, 0.15)}  # TTFT, TPOT on ShareGPT; 90 % of requests must meet both
RELEASED_TTFT_S = 0.2  # of the released simulator's 13B example; its TPOT is the same
PUBLISHED_PLACEMENT: dict[str, tuple[Split, Split]] = {"13b": ((2, 1), (1, 1)), "66b": ((4, 1), (2, 2))}
UNLIMITED_TOKENS = 4_000_000

ATTAINMENT_REQ_PER_S = (1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0)
ATTAINMENT_PERCENT = (100.0, 100.0, 99.0, 87.0, 83.0, 77.0, 70.0)
"""DistServe-Low at these rates, by its simulator and on its cluster; the setting is not stated in full."""

_KV_TOKENS = {"13b": (96_326, -30_182), "66b": (33_448, -55_296)}  # per GPU, and what the weights take of it


def kv_tokens(model: str, num_gpus: int) -> int:
    """KV tokens that an instance's GPUs hold together. 66,144 (13B on 1 GPU), 11,600 and 78,496 (66B on 2 and 4) are
    published; the line through them gives the others."""
    per_gpu, offset = _KV_TOKENS[model]
    return max(per_gpu * num_gpus + offset, 0)


@functools.cache
def step_model(model: str, tensor_parallel: int, stages: int = 1) -> StepModel:
    """The published coefficients as tables of one stage."""
    return opt_step(PREFILL_MS[model][tensor_parallel], DECODE_MS[model][tensor_parallel], stages)


def opt_step(prefill_ms: Coefficients, decode_ms: tuple[Coefficients, Coefficients], stages: int = 1) -> StepModel:
    """Tables of one stage: Σ tokens² sits at past 0, decode has two regimes that meet at batch 95."""
    new = np.array([0.0, *2.0 ** np.arange(4, 14)])
    contexts = np.array([0.0, 4096.0])
    batches = np.array([0.0, 1.0, 94.0, 95.0, 256.0])
    a, b, c = (value * 1e-3 / stages for value in prefill_ms)
    attention = np.zeros((len(batches), len(contexts)))
    for row, batch in enumerate(batches):
        da, db, dc = (value * 1e-3 / stages for value in decode_ms[int(batch >= 95)])
        attention[row] = (da + db * batch * contexts + dc * batch) if batch else 0.0
    return StepModel(
        overhead_s=(0.0, a),
        host_s=np.zeros(257),
        gap_s=0.0,
        token_s=np.zeros(8193),
        sequence_s=np.zeros(257),
        prefill_new_knots=new,
        prefill_past_knots=np.array([0.0, 8192.0]),
        prefill_attention_s=(b * new + c * new**2)[:, None] + np.outer(2 * c * new, [0.0, 8192.0]),
        decode_batch_knots=batches,
        decode_context_knots=contexts,
        decode_attention_s=attention,
        num_stages=stages,
    )


def sharegpt_like(count: int, seed: int) -> Requests:
    """Lognormal lengths with ShareGPT's means in DistServe's tables: 755 tokens in, 200 out, capped at its context."""
    draw = np.random.default_rng(seed)
    inputs = np.clip(draw.lognormal(np.log(755) - 0.5, 1.0, count), 4, 2000).astype(np.int64)
    outputs = np.clip(draw.lognormal(np.log(200) - 0.5, 1.0, count), 1, 1000).astype(np.int64)
    zeros = np.zeros(count, dtype=np.int64)
    return Requests(np.cumsum(draw.exponential(1.0, count)), inputs, outputs, zeros, zeros)


@dataclass(frozen=True, slots=True)
class Trial:
    """What placements are judged on: one model's requests and targets."""

    model: str
    requests: tuple[Requests, ...]
    ttft_s: float
    tpot_s: float
    kv_limit: KvLimit = "instance"
    form: Form = "auto"

    def slo(self, *, ttft: bool = True, tpot: bool = True) -> Slo:
        """90 % of requests must meet both targets, or one of them."""
        first = Target(self.ttft_s, 90.0) if ttft else None
        return Slo(first, Target(self.tpot_s, 90.0) if tpot else None, None, None, 0.9)

    def splits(self, num_stages: tuple[int, ...]) -> list[Split]:
        """Parallel splits whose weights fit, of at most 8 GPUs (one node)."""
        found = itertools.product(PREFILL_MS[self.model], num_stages)
        return [(tp, pp) for tp, pp in found if tp * pp <= 8 and kv_tokens(self.model, tp * pp) > 0]

    def instance(self, role: Role, split: Split) -> InstanceSpec:
        """One instance; prompts are batched up to 2,048 tokens, about where they saturate the GPU."""
        held = kv_tokens(self.model, split[0] * split[1])
        if role == "decode":
            held = {"instance": held, "batch": held * split[1], "none": UNLIMITED_TOKENS}[self.kv_limit]
        tokens = 8192 if role == "decode" else 2048
        scheduler: Literal["vllm", "sglang"] = "sglang" if role == "colocated" else "vllm"
        return InstanceSpec(role, role, step_model(self.model, *split), held, 16, 256, tokens, scheduler=scheduler)

    def pair(self, prefill: Split, decode: Split) -> Deployment:
        """One prefill and one decode instance, transfers free."""
        sides = (self.instance("prefill", prefill), self.instance("decode", decode))
        return Deployment(sides, decode_emits_first_token=False)

    def goodput(self, deployment: Deployment, wanted: Slo) -> float:
        """Requests per second."""
        return goodput(deployment, self.requests, wanted, tolerance=0.03, form=self.form).rate_req_per_s

    def alone(self, role: Role, split: Split) -> float:
        """Requests per second of one instance alone, under its own phase's target (colocated: both)."""
        deployment = Deployment((self.instance(role, split),), decode_emits_first_token=False)
        return self.goodput(deployment, self.slo(ttft=role != "decode", tpot=role != "prefill"))


def trial(
    model: str, count: int = 1000, num_seeds: int = 2, kv_limit: KvLimit = "instance", form: Form = "auto"
) -> Trial:
    """DistServe's targets on ShareGPT-like requests."""
    return Trial(
        model, tuple(sharegpt_like(count, seed) for seed in range(1, num_seeds + 1)), *SLO_S[model], kv_limit, form
    )


@dataclass(frozen=True, slots=True)
class Placement:
    """What a search chose."""

    prefill: Split
    decode: Split
    req_per_s_per_gpu: float
    num_prefill: int = 1
    num_decode: int = 1

    def __str__(self) -> str:
        text = f"({self.prefill[0]},{self.prefill[1]} | {self.decode[0]},{self.decode[1]})"
        return text if self.num_prefill == self.num_decode == 1 else f"{self.num_prefill} : {self.num_decode} of {text}"


def algorithm_1(trial: Trial, rate_req_per_s: float, num_stages: tuple[int, ...] = (1, 2, 4)) -> Placement:
    """High affinity: the best goodput per GPU of each phase alone, and as many of each as the rate needs."""
    chosen: list[tuple[Split, float]] = []
    roles: tuple[Role, Role] = ("prefill", "decode")
    for role in roles:
        rates = {split: trial.alone(role, split) for split in trial.splits(num_stages)}
        best = max(rates, key=lambda split: rates[split] / (split[0] * split[1]))
        chosen.append((best, rates[best]))
    (prefill, in_rate), (decode, out_rate) = chosen
    n, m = math.ceil(rate_req_per_s / in_rate), math.ceil(rate_req_per_s / out_rate)
    gpus = n * prefill[0] * prefill[1] + m * decode[0] * decode[1]
    return Placement(prefill, decode, rate_req_per_s / gpus, n, m)


def pair_search(trial: Trial, num_stages: tuple[int, ...] = (1, 2, 4), most_gpus: int = 8) -> list[Placement]:
    """Pairs of one prefill and one decode instance inside one node, the best goodput per GPU first: low affinity
    without cuts across nodes, as the released simulator searches it."""
    found = []
    for prefill, decode in itertools.product(trial.splits(num_stages), repeat=2):
        gpus = prefill[0] * prefill[1] + decode[0] * decode[1]
        if gpus <= most_gpus:
            rate = trial.goodput(trial.pair(prefill, decode), trial.slo())
            found.append(Placement(prefill, decode, rate / gpus))
    return sorted(found, key=lambda placement: -placement.req_per_s_per_gpu)


def attainment_curve(
    trial: Trial, placement: tuple[Split, Split], multiples: tuple[float, ...]
) -> tuple[float, list[float]]:
    """The knee (req/s at which 90 % meet both targets) of a pair, and attainment in percent at multiples of it."""
    deployment, wanted = trial.pair(*placement), trial.slo()
    knee = trial.goodput(deployment, wanted)
    found = []
    for multiple in multiples:
        runs = [simulate(deployment, at_rate(one, knee * multiple), form=trial.form) for one in trial.requests]
        found.append(100 * combine(runs).attainment(wanted).value)
    return knee, found


def published_multiples() -> tuple[float, ...]:
    """The seven published rates over the rate at which their attainment passes 90 %."""
    knee = float(np.interp(-90.0, -np.array(ATTAINMENT_PERCENT), ATTAINMENT_REQ_PER_S))
    return tuple(rate / knee for rate in ATTAINMENT_REQ_PER_S)


def by_hand(model: str, prefill: Split, decode: Split, input_tokens: int, output_tokens: int) -> tuple[float, float]:
    """Requests per second that each phase's step times allow for equal requests, when nothing waits.

    Prefill: as many prompts a step as 2,048 tokens hold. Decode: as many sequences as the KV memory holds at full
    length, each step at their mean context, (output − 1) steps a request.
    """
    a, b, c = PREFILL_MS[model][prefill[0]]
    prompts = 2048 // input_tokens
    prefill_ms = (a + b * prompts * input_tokens + c * prompts * input_tokens**2) / prefill[1]
    batch = kv_tokens(model, decode[0] * decode[1]) // (input_tokens + output_tokens)
    part = batch / decode[1]
    da, db, dc = DECODE_MS[model][decode[0]][int(part >= 95)]
    decode_ms = (da + db * part * (input_tokens + output_tokens / 2) + dc * part) / decode[1]
    return 1e3 * prompts / prefill_ms, 1e3 * part / (decode_ms * (output_tokens - 1))


def equal_requests(count: int, input_tokens: int, output_tokens: int) -> Requests:
    """Equal requests at equal distances."""
    ones = np.ones(count, dtype=np.int64)
    return Requests(np.arange(count, dtype=np.float64), ones * input_tokens, ones * output_tokens, ones * 0, ones * 0)
