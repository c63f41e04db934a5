"""One rank of a collective under measurement: `python -m … collective_worker RANK RANKS BACKEND STORE`.

Reads requests as JSON lines on stdin, answers each with a JSON line on stdout. Every rank runs the same number of
repetitions, agreed on after a warm-up; a repetition counts as long as its slowest rank.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from splitplan.profiler.timer import summarise

WARMUP_CALLS = 3
MAX_REPETITIONS = 500


def main(arguments: list[str]) -> None:
    """Joins the group, says so, and serves requests until stdin ends."""
    rank, ranks, backend, store = int(arguments[0]), int(arguments[1]), arguments[2], arguments[3]
    _use_every_core()
    try:
        torch, distributed, device = join(rank, ranks, backend, store)
    except Exception as error:
        _say({"error": f"{type(error).__name__}: {error}"[:300]})
        return
    _say({"ready": True})
    for line in sys.stdin:
        request = json.loads(line)
        try:
            _say(serve(torch, distributed, request, rank, ranks, device))
        except Exception as error:
            _say({"error": f"{type(error).__name__}: {error}"[:300]})
    distributed.destroy_process_group()


def _use_every_core() -> None:
    """A rank is started by a process whose thread OpenMP holds on one core, and would inherit that."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, range(os.cpu_count() or 1))


def join(rank: int, ranks: int, backend: str, store: str, device_index: int | None = None) -> tuple[Any, Any, str]:
    """Becomes one of `ranks`: (torch, torch.distributed, device). `store` is file://PATH or tcp://HOST:PORT."""
    import torch
    import torch.distributed as distributed

    index = rank if device_index is None else device_index
    device = f"cuda:{index}" if backend == "nccl" else "cpu"
    if backend == "nccl":
        torch.cuda.set_device(index)
    distributed.init_process_group(backend, init_method=store, rank=rank, world_size=ranks)
    return torch, distributed, device


def serve(torch: Any, distributed: Any, request: dict[str, Any], rank: int, ranks: int, device: str) -> dict[str, Any]:
    """Times one collective, as every rank does together with the others."""
    call = _collective(torch, distributed, request["family"], int(request["num_bytes"]), rank, ranks, device)
    for _ in range(WARMUP_CALLS):
        one = _timed(torch, call, device)
    longest = torch.tensor([one], dtype=torch.float64, device=device)
    distributed.all_reduce(longest, op=distributed.ReduceOp.MAX)
    repetitions = min(max(int(request["repeat_s"] / max(longest.item(), 1e-6)), WARMUP_CALLS), MAX_REPETITIONS)
    distributed.barrier()
    seconds = torch.tensor([_timed(torch, call, device) for _ in range(repetitions)], dtype=torch.float64)
    seconds = seconds.to(device)
    distributed.all_reduce(seconds, op=distributed.ReduceOp.MAX)
    timing = summarise(seconds.tolist())
    return {
        "median_s": timing.median_s,
        "p20_s": timing.p20_s,
        "p80_s": timing.p80_s,
        "repetitions": timing.repetitions,
    }


def _collective(
    torch: Any, distributed: Any, family: str, num_bytes: int, rank: int, ranks: int, device: str
) -> Callable[[], None]:
    """`num_bytes` is the whole tensor: what is reduced, what an all-gather ends with, what is sent."""
    dtype = torch.bfloat16 if device != "cpu" else torch.float32  # gloo reduces float32
    whole = torch.randn(max(num_bytes // dtype.itemsize, ranks), device=device).to(dtype)
    if family == "all_reduce":
        return lambda: distributed.all_reduce(whole, op=distributed.ReduceOp.MAX)  # MAX: repeated sums would overflow
    if family == "all_gather":
        parts = list(whole[: len(whole) // ranks * ranks].chunk(ranks))
        mine = parts[rank].clone()
        return lambda: distributed.all_gather(parts, mine)
    if family == "send":
        return _send_call(distributed, whole, rank)
    raise ValueError(f"no collective '{family}'")


def _send_call(distributed: Any, whole: Any, rank: int) -> Callable[[], None]:
    """From rank 0 to rank 1, with one element back, so that the sender's time is until all of it has arrived."""
    back = whole[:1].clone()

    def send() -> None:
        distributed.send(whole, 1)
        distributed.recv(back, 1)

    def receive() -> None:
        distributed.recv(whole, 0)
        distributed.send(back, 0)

    return send if rank == 0 else receive if rank == 1 else lambda: None


def _timed(torch: Any, call: Callable[[], None], device: str) -> float:
    if device == "cpu":
        start = time.perf_counter()
        call()
        return time.perf_counter() - start
    before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    before.record()
    call()
    after.record()
    torch.cuda.synchronize()
    return float(before.elapsed_time(after)) / 1e3


def _say(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
