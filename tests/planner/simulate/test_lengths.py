"""Instances that take prompts of some lengths only."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from splitplan.catalogs.errors import InputError
from splitplan.planner.simulate import Deployment, InstanceSpec, simulate
from splitplan.planner.spec.workload import Requests
from tests.planner.simulate.cases import linear_step

EDGE = 500


def spec(name: str, role: str, above: int = 0, up_to: int = 0) -> InstanceSpec:
    step = linear_step(overhead_s=0.001, token_s=1e-5)
    limits = {"max_num_seqs": 64, "max_num_batched_tokens": 2048}
    return InstanceSpec(name, role, step, 100_000, above_tokens=above, up_to_tokens=up_to, **limits)  # type: ignore[arg-type]


def requests(num: int = 400) -> Requests:
    draw = np.random.default_rng(1)
    lengths = draw.integers(1, 1000, num)
    lengths[:2] = EDGE, EDGE + 1
    zeros = np.zeros(num, dtype=np.int64)
    return Requests(np.sort(draw.uniform(0, 20, num)), lengths, draw.integers(1, 20, num), zeros, zeros)


@pytest.mark.parametrize("routing", ["weighted", "round_robin", "least_loaded", "least_tokens", "prefix_aware"])
def test_every_prompt_goes_to_an_instance_for_its_length(routing: str) -> None:
    """Prefill and decode, whatever the router; an edge belongs to the shorter prompts."""
    deployment = Deployment(
        (
            spec("p0", "prefill", up_to=EDGE),
            spec("p1", "prefill", up_to=EDGE),
            spec("p2", "prefill", above=EDGE),
            spec("d0", "decode", up_to=EDGE),
            spec("d1", "decode", above=EDGE),
        )
    )
    sample = requests()
    run = simulate(deployment, sample, routing=routing, form="python").runs[0]  # type: ignore[arg-type]
    short = sample.input_tokens <= EDGE
    assert set(run.entry[short].tolist()) == {0, 1}
    assert set(run.entry[~short].tolist()) == {2}
    split = run.decoder >= 0
    assert set(run.decoder[short & split].tolist()) <= {3}
    assert set(run.decoder[~short & split].tolist()) <= {4}
    assert np.isfinite(run.e2e_s).all()


def test_two_deployments_in_one_are_the_two_apart() -> None:
    """Nothing else is shared: each half serves its requests as it does alone, to the bit."""
    sample = requests()
    short = sample.input_tokens <= EDGE
    halves = (spec("a", "colocated", up_to=EDGE), spec("b", "colocated", above=EDGE))
    together = simulate(Deployment(halves), sample, routing="least_loaded", form="python").runs[0]
    for half, chosen in zip(halves, (short, ~short), strict=True):
        alone = Deployment((dataclasses.replace(half, above_tokens=0, up_to_tokens=0),))
        run = simulate(alone, sample.take(np.flatnonzero(chosen)), routing="least_loaded", form="python").runs[0]
        assert np.array_equal(run.ttft_s, together.ttft_s[chosen])
        assert np.array_equal(run.e2e_s, together.e2e_s[chosen])


def test_a_prompt_that_no_instance_takes_is_rejected() -> None:
    """It never finishes, and the others are served."""
    sample = requests()
    run = simulate(Deployment((spec("a", "colocated", up_to=EDGE),)), sample, form="python").runs[0]
    assert np.array_equal(np.isfinite(run.e2e_s), sample.input_tokens <= EDGE)


def test_bounds_that_hold_no_prompt_are_refused() -> None:
    """Before anything is simulated."""
    with pytest.raises(InputError, match="up_to_tokens"):
        simulate(Deployment((spec("a", "colocated", above=10, up_to=10),)), requests(), form="python")


def test_ranges_of_a_deployment() -> None:
    """The stretches of lengths that the same instances serve."""
    deployment = Deployment((spec("a", "prefill", up_to=10), spec("b", "prefill", above=10), spec("d", "decode")))
    assert [str(prompts) for prompts in deployment.prompt_ranges] == ["prompts up to 10", "prompts over 10"]
    assert len(Deployment((spec("a", "colocated"),)).prompt_ranges) == 1
