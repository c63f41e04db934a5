"""`python -m benchmarks.simulator [--json] [--requests N] [--form numba|python]`: simulated requests per CPU-second.

Llama-3.1-8B on H100 from the shipped profile; Poisson arrivals at a load at which every instance is busy nearly all the
time and latency is still flat. Figures are user CPU time of one process, the best of three, with everything in it:
building the arrays, the simulation, and reading the latencies out. Compilation is not in it, and is reported on stderr.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import resource
import sys
import time
from collections.abc import Iterator

import numpy as np

from splitplan.catalogs.engines import find_engine
from splitplan.catalogs.gpus import find_gpu
from splitplan.catalogs.links import find_link
from splitplan.catalogs.models import find_model
from splitplan.planner.latency.build import step_model
from splitplan.planner.latency.step import StepModel
from splitplan.planner.simulate import Deployment, InstanceSpec, Link, Results, simulate
from splitplan.planner.simulate.run import Form
from splitplan.planner.spec.workload import Requests, load_workload, sample
from splitplan.profiler.query import OpTimes
from splitplan.profiler.store import find_profile

RATE_PER_INSTANCE = 6.0
SATURATED_BYTES_PER_S = 1.5e9
AZURE_REQUESTS = 1_000_000


def h100_step() -> StepModel:
    """The step model of one H100 that serves Llama-3.1-8B."""
    gpu = find_gpu("h100")
    ops = OpTimes(find_profile(gpu.name, "vllm"), gpu)
    return step_model(
        find_model("llama-3.1-8b"),
        ops,
        find_engine("vllm"),
        find_link("nvlink4"),
        tp=1,
        pp=1,
        ep=1,
        weight_dtype="bf16",
        kv_dtype="bf16",
        max_num_seqs=256,
        max_num_batched_tokens=8192,
    )


def colocated(count: int, step: StepModel) -> Deployment:
    """`count` instances that serve whole requests."""
    return Deployment(tuple(_instance(f"colocated-{k}", "colocated", step) for k in range(count)))


def disaggregated(count: int, step: StepModel) -> Deployment:
    """Half of `count` instances prefill, half decode, each with its own 50 GB/s NIC."""
    half = count // 2
    links = tuple(Link(f"nic-{k}", 50e9) for k in range(count))
    prefill = tuple(_instance(f"prefill-{k}", "prefill", step, egress=(k,)) for k in range(half))
    decode = tuple(_instance(f"decode-{k}", "decode", step, ingress=(half + k,)) for k in range(half))
    return Deployment(
        prefill + decode,
        links,
        kv_bytes_per_token=find_model("llama-3.1-8b").kv_bytes_per_token("bf16"),
        transfer_latency_s=1e-3,
        descriptor_s=1e-6,
        descriptors_per_block=64,
    )


def saturated(step: StepModel) -> Deployment:
    """Eight instances whose NICs carry less than is sent: thousands of transfers at a time."""
    base = disaggregated(8, step)
    return dataclasses.replace(base, links=tuple(Link(link.name, SATURATED_BYTES_PER_S) for link in base.links))


def _instance(name: str, role: str, step: StepModel, **links: tuple[int, ...]) -> InstanceSpec:
    tokens = 2048 if role == "colocated" else 8192
    return InstanceSpec(name, role, step, 430_000, max_num_batched_tokens=tokens, **links)  # type: ignore[arg-type]


def poisson(count: int, rate_req_per_s: float, input_tokens: int, output_tokens: int) -> Requests:
    """Equal requests at exponential distances."""
    ones = np.ones(count, dtype=np.int64)
    times = np.cumsum(np.random.default_rng(0).exponential(1 / rate_req_per_s, count))
    return Requests(times, ones * input_tokens, ones * output_tokens, ones * 0, ones * 0)


def azure(count: int) -> tuple[Deployment, Requests]:
    """`count` requests of the Azure 2023 conversation workload, scaled to keep eight instances busy."""
    workload = load_workload("azure-conv", rate_req_per_s=8 * RATE_PER_INSTANCE)
    return disaggregated(8, h100_step()), sample(workload, count, 0)


def cases(count: int, form: Form) -> Iterator[tuple[str, Deployment, Requests]]:
    """Name, deployment and requests of every case."""
    step = h100_step()
    for output_tokens in (256, 200):
        for instances in (4, 8):
            requests = poisson(count, RATE_PER_INSTANCE * instances, 1024, output_tokens)
            for build in (colocated, disaggregated):
                yield f"1024/{output_tokens} {build.__name__} {instances} instances", build(instances, step), requests
    requests = poisson(count // 4, RATE_PER_INSTANCE * 8, 1024, 200)
    yield "1024/200 disaggregated 8 instances saturated links", saturated(step), requests
    if form == "numba":
        yield f"azure-conv disaggregated 8 instances {AZURE_REQUESTS} requests", *azure(AZURE_REQUESTS)


def main() -> None:
    """Measure all cases and print them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulator", description=__doc__)
    parser.add_argument("--json", action="store_true", help="a JSON list on stdout")
    parser.add_argument("--requests", type=int, default=0, help="per case; default 200000, or 5000 in plain Python")
    parser.add_argument("--form", choices=("numba", "python"), default="numba")
    options = parser.parse_args()
    count = options.requests or (200_000 if options.form == "numba" else 5_000)
    start_s = time.process_time()
    simulate(colocated(1, h100_step()), poisson(10, 1.0, 100, 10), form=options.form)
    sys.stderr.write(f"ready after {time.process_time() - start_s:.1f} CPU-s (compiled, or loaded from the cache)\n")
    rows = []
    for name, deployment, requests in cases(count, options.form):
        per_cpu_s, results = measure(deployment, requests, options.form)
        rows.append({"case": name, "requests_per_cpu_s": round(per_cpu_s)})
        _note(name, per_cpu_s, results)
    peak_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    sys.stderr.write(f"peak memory {peak_gb:.2f} GB\n")
    if options.json:
        sys.stdout.write(json.dumps(rows, indent=2) + "\n")


def measure(deployment: Deployment, requests: Requests, form: Form) -> tuple[float, Results]:
    """Requests per second of user CPU time, the best of three."""
    best_s = float("inf")
    for _ in range(3 if len(requests) < AZURE_REQUESTS else 1):
        start_s = time.process_time()
        results = simulate(deployment, requests, form=form)
        best_s = min(best_s, time.process_time() - start_s)
    return len(requests) / best_s, results


def _note(name: str, per_cpu_s: float, results: Results) -> None:
    run = results.runs[0]
    ttft, tpot = (results.percentile(metric, 99).value * 1e3 for metric in ("ttft", "tpot"))
    sys.stderr.write(
        f"{name:55s} {per_cpu_s:12,.0f} requests/CPU-s  {run.num_events / len(run.ttft_s):5.2f} events/request"
        f"  TTFT p99 {ttft:.0f} ms, TPOT p99 {tpot:.1f} ms\n"
    )


if __name__ == "__main__":
    main()
