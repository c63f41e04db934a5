"""Failures, restarts and role switches."""

from __future__ import annotations

import numpy as np
import pytest

from splitplan.catalogs.errors import InputError
from splitplan.planner.simulate import Change, Deployment, Results
from splitplan.planner.simulate.layout import E_KV_FREE, E_KV_PAGES, E_WIDTH, G_END_ENGINE, G_FIRST_ENGINE
from splitplan.planner.simulate.run import finish, prepare
from splitplan.planner.spec.workload import Requests
from tests.planner.simulate.cases import (
    assert_nothing_lost,
    constant_step,
    fixed_requests,
    instance,
    mixed_requests,
    pair,
    realistic_step,
    with_prefixes,
)


def served(deployment: Deployment, requests: Requests, *changes: Change) -> Results:
    """Simulate, and check that nothing is lost and that all KV came back."""
    job = prepare(deployment, requests, changes=changes, warmup_share=0.0)
    job.serve(job.world, 1e299)
    results = finish(job)
    assert_nothing_lost(results, requests)
    ints = job.world.ints
    if results.runs[0].num_in_flight == 0:
        for home in range(ints[G_FIRST_ENGINE], ints[G_END_ENGINE], E_WIDTH):
            assert ints[home + E_KV_FREE] == ints[home + E_KV_PAGES]
    return results


def two_colocated() -> Deployment:
    step = constant_step(0.01)
    return Deployment((instance(step, name="a"), instance(step, name="b")))


def test_request_of_a_failed_instance_goes_on_elsewhere_with_the_tokens_it_had() -> None:
    """Fails at 0.055 s, after the tokens of 0.01 … 0.05: prefill of prompt and five tokens, then fifteen more."""
    for failed in (0, 1):
        run = served(two_colocated(), fixed_requests(1, 100, 20), Change(0.055, failed, "fail")).runs[0]
        if run.num_restarts:
            assert run.ttft_s[0] == pytest.approx(0.01)
            assert run.e2e_s[0] == pytest.approx(0.055 + 15 * 0.01)
            return
    pytest.fail("the request was on neither instance")


def test_requests_wait_for_the_only_instance_to_come_back() -> None:
    deployment = Deployment((instance(constant_step(0.01)),))
    fail, back = Change(0.055, 0, "fail"), Change(1.0, 0, "restart", reload_s=2.0)
    run = served(deployment, fixed_requests(3, 100, 20), fail, back).runs[0]
    assert run.num_restarts == 3
    assert run.e2e_s == pytest.approx(np.full(3, 3.0 + 15 * 0.01))


def test_what_stays_down_keeps_requests_in_flight_not_lost() -> None:
    deployment = Deployment((instance(constant_step(0.01)),))
    run = served(deployment, fixed_requests(3, 100, 20), Change(0.055, 0, "fail")).runs[0]
    assert run.num_in_flight == 3
    assert np.isinf(run.e2e_s).all()


@pytest.mark.parametrize("failed", [0, 1])
@pytest.mark.parametrize("emits", [True, False])
def test_either_side_of_a_transfer_may_fail(failed: int, emits: bool) -> None:
    """Prefill ends at 0.01 s, the transfer at 0.11 s: at 0.05 s a side goes, and is back at 0.2 s.

    Where prefill emits, every prefill gives a token: one before the failure, one after, and, while the decode instance
    is down, one more at 0.06 s, when the router finds that there is nowhere to go.
    """
    deployment = pair(constant_step(0.01), 1e9, decode_emits_first_token=emits)
    changes = (Change(0.05, failed, "fail"), Change(0.2, failed, "restart"))
    run = served(deployment, fixed_requests(1, 1000, 5), *changes).runs[0]
    assert run.num_restarts == 1
    left = 5 if emits else 3 - failed
    assert run.e2e_s[0] == pytest.approx(0.2 + 0.01 + 0.1 + left * 0.01, abs=0.0012)


def test_a_failure_empties_the_prefix_cache() -> None:
    deployment = Deployment((instance(realistic_step()),))
    requests = with_prefixes(fixed_requests(3, 640, 1, [0.0, 10.0, 20.0]), 1)
    run = served(deployment, requests, Change(15.0, 0, "fail"), Change(16.0, 0, "restart")).runs[0]
    assert run.cached_tokens.tolist() == [0, 640, 0]


def test_role_switch_drains_reloads_and_serves_in_the_new_role() -> None:
    step = constant_step(0.01)
    deployment = Deployment(tuple(instance(step, role, role) for role in ("prefill", "prefill", "decode")))
    requests = fixed_requests(400, 100, 20, np.arange(400) * 0.05)
    run = served(deployment, requests, Change(5.0, 1, "role", "decode", reload_s=3.0)).runs[0]
    before, between, after = run.arrival_s < 5, (run.arrival_s > 5) & (run.arrival_s < 7.9), run.arrival_s > 8.2
    assert set(run.entry[before]) == {0, 1}
    assert set(run.entry[between]) == {0}
    assert set(run.decoder[between]) == {2}
    assert set(run.entry[after]) == {0}
    assert set(run.decoder[after]) == {1, 2}
    assert run.num_restarts == 0


def test_attainment_falls_with_a_failure_and_not_without_one() -> None:
    requests = mixed_requests(1500, 14.0)
    step = realistic_step(2)
    deployment = Deployment(tuple(instance(step, name=f"c{k}") for k in range(3)))
    calm = served(deployment, requests).percentile("ttft", 99).value
    changes = (Change(20.0, 1, "fail"), Change(60.0, 1, "restart", reload_s=30.0))
    shaken = served(deployment, requests, *changes)
    assert shaken.percentile("ttft", 99).value > calm
    assert shaken.runs[0].num_finished == 1500


def test_impossible_changes_are_refused() -> None:
    deployment = Deployment((instance(realistic_step()),))
    for change in (
        Change(1.0, 5, "fail"),
        Change(-1.0, 0, "fail"),
        Change(1.0, 0, "role"),
        Change(1, 0, "fail", "decode"),
    ):
        with pytest.raises(InputError):
            served(deployment, fixed_requests(1, 1, 1), change)
