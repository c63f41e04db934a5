"""A simulation looked at every so often: queues, batches, KV memory and links over time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from splitplan.catalogs.errors import InputError, Problem
from splitplan.planner.simulate import layout as at
from splitplan.planner.simulate.deployment import Deployment
from splitplan.planner.simulate.results import Results
from splitplan.planner.simulate.rows import lane_rows
from splitplan.planner.simulate.run import finish, prepare
from splitplan.planner.spec.workload import FloatArray, Requests

MOST_SAMPLES = 1_000_000


@dataclass(frozen=True, slots=True)
class Timeline:
    """State at sampled times, [sample, instance] or [sample, link]."""

    time_s: FloatArray
    running: FloatArray  # decoding sequences
    queued: FloatArray  # requests assigned to the instance that do not decode: waiting, in prefill, KV under way
    kv_share: FloatArray  # KV blocks held, of all, as of the instance's last step boundary
    busy: FloatArray  # 1 while steps run; the mean over samples is the utilisation
    link_share: FloatArray  # bytes in flight per second, of the link's capacity


def timeline(deployment: Deployment, requests: Requests, *, every_s: float, **options: Any) -> tuple[Timeline, Results]:
    """Simulate as `simulate` does (same options, same results), with a look at the state every `every_s` seconds."""
    if not every_s > 0:
        raise InputError(Problem(f"samples every {every_s} s", expected="a positive time"))
    job = prepare(deployment, requests, **options)
    samples: list[tuple[FloatArray, ...]] = []
    times: list[float] = []
    until_s = at.INFINITE_S if job.until_s is None else job.until_s
    while len(times) < MOST_SAMPLES:
        now_s = every_s * len(times)
        if now_s > until_s:
            break
        job.serve(job.world, now_s)
        times.append(now_s)
        samples.append(_look(job.world, deployment))
        if job.world.floats[job.world.ints[at.G_WAKE] + job.world.ints[job.world.ints[at.G_TREE] + 1]] >= at.INFINITE_S:
            break
    job.serve(job.world, until_s)
    columns = [np.array(column, dtype=np.float64) for column in zip(*samples, strict=True)]
    return Timeline(np.array(times), *columns), finish(job)


def _look(world: at.World, deployment: Deployment) -> tuple[FloatArray, ...]:
    ints, floats = world.ints, world.floats
    first = ints[at.G_FIRST_ENGINE]
    running, queued, kv_share, busy = [], [], [], []
    for row, instance in zip(lane_rows(deployment), deployment.instances, strict=True):
        home = first + row * at.E_WIDTH
        lanes = range(home, home + max(instance.step.num_stages, 1) * at.E_WIDTH, at.E_WIDTH)
        decoding = sum(ints[lane + at.E_RUNNING] for lane in lanes)
        running.append(decoding)
        queued.append(ints[home + at.E_LOAD] - decoding)
        kv_share.append(1 - ints[home + at.E_KV_FREE] / ints[home + at.E_KV_PAGES])
        busy.append(float(any(ints[lane + at.E_RUN_STEPS] > 0 for lane in lanes)))
    used = dict.fromkeys(range(len(deployment.links)), 0.0)
    links = ints[at.G_FIRST_LINK]
    for slot in range(ints[at.G_WAYS], ints[at.G_WAYS] + ints[at.G_WAY_COUNT]):
        way = ints[slot]
        for k in range(ints[way + at.W_LINKS]):
            number = (ints[way + at.W_LINK + k] - links) // at.L_WIDTH
            if number in used:  # the links to host memory and store come after those
                used[number] += ints[way + at.W_FLOWS] * floats[way + at.W_RATE]
    shares = [used[k] / link.bytes_per_s for k, link in enumerate(deployment.links)]
    return tuple(np.array(values, dtype=np.float64) for values in (running, queued, kv_share, busy, shares))
