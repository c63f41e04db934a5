"""The link between two nodes, measured: what a transfer of each size takes from one host to another and back one word.

Start the same call on both hosts, as `srun -N2` does; rank 0 is the one whose address both know. Between GPUs it runs
over nccl (and so over the NICs that nccl finds), between hosts without over gloo (TCP).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from splitplan.catalogs.errors import InputError, MissingExtraError, Problem, ProfileError, shorten

SIZES_BYTES = tuple(2**power for power in range(12, 29, 2))  # 4 KiB … 256 MiB
REPEAT_S = 0.2
DEFAULT_PORT = 29400


@dataclass(frozen=True, slots=True)
class PairPlace:
    """This process's part in a pair."""

    rank: int
    address: str  # HOST:PORT of rank 0


@dataclass(frozen=True, slots=True)
class LinkReading:
    """What a link reaches. `latency_s` is that of the smallest message, bandwidth that of the largest without it."""

    latency_s: float
    bytes_per_s: float
    sizes_bytes: tuple[int, ...]
    seconds: tuple[float, ...]


def find_place(rank: int | None, address: str, environment: Mapping[str, str]) -> PairPlace:
    """Rank and address as given, or as Slurm (srun) and torchrun tell their processes."""
    if rank is None:
        text = environment.get("SLURM_PROCID") or environment.get("RANK")
        rank = int(text) if text and text.isdigit() else None
    if not address and "MASTER_ADDR" in environment:
        address = f"{environment['MASTER_ADDR']}:{environment.get('MASTER_PORT', DEFAULT_PORT)}"
    address = address or environment.get("SLURM_LAUNCH_NODE_IPADDR", "")
    problems = []
    if rank not in (0, 1):
        problems.append(Problem(f"is {rank}", "", "--rank", "0 on one host, 1 on the other", "srun -N2 sets it"))
    host, _, port = address.rpartition(":") if ":" in address else (address, "", str(DEFAULT_PORT))
    if not host or not port.isdigit():
        problems.append(Problem(f"is '{shorten(address)}'", "", "--at", "HOST:PORT of rank 0"))
    if problems:
        raise InputError(problems)
    assert rank is not None
    return PairPlace(rank, f"{host}:{port}")


def measure_pair(
    place: PairPlace, backend: str, *, sizes_bytes: Sequence[int] = SIZES_BYTES, repeat_s: float = REPEAT_S
) -> LinkReading:
    """Both ranks run this and get the same reading. ProfileError where they do not find each other."""
    from splitplan.profiler.collective_worker import join, serve

    try:
        torch, distributed, device = join(place.rank, 2, backend, f"tcp://{place.address}", device_index=0)
    except ImportError:
        raise MissingExtraError("measuring a link", "gpu") from None
    except (RuntimeError, ValueError, TimeoutError) as error:
        message = f"the two ranks did not meet: {shorten(error, 200)}"
        raise ProfileError(Problem(message, place.address, next_step="start the other rank; check the port")) from None
    try:
        seconds = []
        for num_bytes in sizes_bytes:
            request = {"family": "send", "num_bytes": num_bytes, "repeat_s": repeat_s}
            seconds.append(float(serve(torch, distributed, request, place.rank, 2, device)["median_s"]))
    finally:
        distributed.destroy_process_group()
    return reading_of(sizes_bytes, seconds)


def reading_of(sizes_bytes: Sequence[int], seconds: Sequence[float]) -> LinkReading:
    """Latency from the smallest message, bandwidth from the largest."""
    latency_s = seconds[0]
    rest_s = max(seconds[-1] - latency_s, 1e-9)
    return LinkReading(latency_s, (sizes_bytes[-1] - sizes_bytes[0]) / rest_s, tuple(sizes_bytes), tuple(seconds))


def place_from_environment(rank: int | None, address: str) -> PairPlace:
    """`find_place` with this process's environment."""
    return find_place(rank, address, os.environ)
