"""What the planner's simulator says about the very requests of a load test; a plan promises what holds in the long run.

A plan's percentiles are of tens of thousands of requests; half a minute of load is a few hundred, begins with an empty
cluster and may draw more or less work than the mean. Without this column the two would be compared with each other.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from splitplan.catalogs.errors import SplitplanError
from splitplan.planner.plan import Plan
from splitplan.planner.spec.workload import Requests


def expected_ms(plan: Plan, requests: Requests, running: Collection[str]) -> Mapping[str, Mapping[str, float]]:
    """Mean and percentiles by metric ("ttft", "tpot", "e2e"), in ms, of these requests on the plan's instances.

    {} where the simulator cannot say: when what the plan was made from has changed, or other instances are `running`.
    """
    from splitplan.planner.inputs import load_inputs, refuse_changes
    from splitplan.planner.judge.verify import ROUTING
    from splitplan.planner.question import question_of
    from splitplan.planner.review.replay import plan_deployment
    from splitplan.planner.simulate.run import simulate

    if {instance.name for pool in plan.pools for instance in pool.instances} != set(running):
        return {}
    try:
        inputs = load_inputs(question_of(plan))
        refuse_changes(plan, inputs, besides=("workload",))
        run = simulate(plan_deployment(plan, inputs), requests, routing=ROUTING, warmup_share=0.0).runs[0]
    except SplitplanError:
        return {}
    front_end_s = inputs.front_end_s(requests.input_tokens)
    found = {"ttft": run.ttft_s + front_end_s, "tpot": run.tpot_s, "e2e": run.e2e_s + front_end_s}
    return {name: _statistics(1e3 * values[np.isfinite(values)]) for name, values in found.items()}


def _statistics(values_ms: np.ndarray[tuple[int], np.dtype[np.float64]]) -> dict[str, float]:
    if not len(values_ms):
        return {}
    percentiles = {f"p{p}": float(np.percentile(values_ms, p)) for p in (50, 90, 95, 99)}
    return {"mean": float(np.mean(values_ms)), **percentiles}
