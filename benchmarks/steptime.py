"""How fast step times are predicted: `python -m benchmarks.steptime`.

Builds the step tables of Llama-3.1-70B on H100 at TP 4, then predicts 100,000 distinct steps (batch, context, chunk,
past) in one call, and 10,000 one by one. Targets: 20 us a step in batches, 100,000 steps in 2 s.
"""

from __future__ import annotations

import time

import numpy as np

from splitplan.catalogs.engines import find_engine
from splitplan.catalogs.gpus import find_gpu
from splitplan.catalogs.links import find_link
from splitplan.catalogs.models import find_model
from splitplan.planner.latency.build import step_model
from splitplan.planner.latency.evaluate import step_seconds
from splitplan.planner.latency.siblings import find_op_times

STEPS = 100_000
SINGLE_STEPS = 10_000


def main() -> None:
    """Measure and print."""
    gpu = find_gpu("h100")
    ops, _ = find_op_times(gpu, "vllm")
    settings = {"tp": 4, "pp": 1, "ep": 1, "weight_dtype": "bf16", "kv_dtype": "bf16", "max_num_batched_tokens": 8192}
    link, engine, llama = find_link(gpu.nvlink or gpu.pcie), find_engine("vllm"), find_model("llama-3.1-70b")
    start = time.perf_counter()
    step_model(llama, ops, engine, link, max_num_seqs=1024, **settings)
    first_s = time.perf_counter() - start
    start = time.perf_counter()
    for limit in range(1, 201):
        model = step_model(llama, ops, engine, link, max_num_seqs=5 * limit, **settings)
    next_s = (time.perf_counter() - start) / 200
    rng = np.random.default_rng(0)
    batch = rng.integers(0, 1000, STEPS)
    context = rng.integers(1, 100_000, STEPS)
    new = np.where(rng.random(STEPS) < 0.5, rng.integers(1, 7000, STEPS), 0)
    past = rng.integers(0, 50_000, STEPS)
    start = time.perf_counter()
    seconds = step_seconds(model, decode_batch=batch, decode_context=context, prefill_new=new, prefill_past=past)
    batched_s = time.perf_counter() - start
    start = time.perf_counter()
    for index in range(SINGLE_STEPS):
        step_seconds(model, decode_batch=batch[index], decode_context=context[index])
    single_s = (time.perf_counter() - start) / SINGLE_STEPS
    print(f"step tables: first {first_s * 1e3:.0f} ms, another setting of the same {next_s * 1e6:.0f} us")
    print(f"{STEPS:,} distinct steps in one call: {batched_s:.3f} s, {batched_s / STEPS * 1e6:.2f} us a step")
    print(f"one at a time: {single_s * 1e6:.0f} us a step; mean step {seconds.mean() * 1e3:.1f} ms")


if __name__ == "__main__":
    main()
