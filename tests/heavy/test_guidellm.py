"""The real guidellm against a mock cluster: every request of the workload is sent, and its report is read."""

from __future__ import annotations

from pathlib import Path

from splitplan.launcher.bench import bench
from splitplan.launcher.lifecycle import launch
from splitplan.launcher.render import LaunchOptions
from tests.launcher.plans import small_plan


def test_guidellm_replays_a_workload(plan_file: Path) -> None:
    """Two workers of prefill and decode, planned at 5 and 2 ms: what guidellm measures is of that size."""
    plan = small_plan(num_pairs=2)
    plan_file.write_text(plan.model_dump_json())
    launch(plan, plan_file, LaunchOptions(target="local", engine="mock"), timeout_s=60.0)
    report = bench(str(plan_file), workload="fixed:200/20", rate_req_per_s=4.0, duration_s=10.0, client="guidellm")
    print(report.num_requests, report.num_failed, report.measured_ms)
    assert report.num_requests == 40
    assert report.num_failed <= 1  # 0.8.1 leaves the last one out
    assert report.mean_output_tokens == 20
    assert report.measured_ms["tpot"]["p50"] >= 2.0
