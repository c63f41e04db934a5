"""A mock cluster for the time of a load test: what `make demo` ends with. A test of the plumbing, not of accuracy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from splitplan.launcher.bench import BenchReport, bench
from splitplan.launcher.lifecycle import Launched, destroy, launch
from splitplan.launcher.render import LaunchOptions
from splitplan.launcher.state import log_folder
from splitplan.planner.plan import load_plan

LABEL = "Mock cluster, timed by the plan itself: a test of the plumbing, not of accuracy"
START_TIMEOUT_S = 60.0


def serve_with_mocks(
    plan_path: str | Path,
    *,
    duration_s: float = 30.0,
    rate_req_per_s: float | None = None,
    workload: str = "",
    slo: str = "",
    seed: int = 0,
    progress: Callable[[str], None] = lambda _: None,
) -> tuple[Launched, BenchReport]:
    """Start a plan's mock cluster on this machine, probe it, serve the plan's workload, take it down again.

    Nothing is left but the logs, also after a failure or Ctrl-C. Raises LaunchError when it does not serve.
    """
    options = LaunchOptions(target="local", engine="mock")
    plan = load_plan(plan_path)
    launched = launch(plan, plan_path, options, timeout_s=START_TIMEOUT_S, progress=progress)
    try:
        progress(f"serving {workload or plan.inputs.workload} for {duration_s:g} s …")
        report = bench(
            str(plan_path),
            duration_s=duration_s,
            rate_req_per_s=rate_req_per_s,
            workload=workload,
            slo=slo,
            seed=seed,
        )
    finally:
        destroy(plan_path)
        progress(f"mock cluster stopped; its logs are in {log_folder(plan_path)}")
    return launched, report
