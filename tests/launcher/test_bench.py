"""The load test: what it measures, and what it says when it cannot."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from splitplan.catalogs.errors import InputError, LaunchError, UsageError
from splitplan.launcher.bench import bench, measurement_csv, rows, summarise
from splitplan.launcher.demo import serve_with_mocks
from splitplan.launcher.loadtest import Served, prompt_ids, replay, split_url
from splitplan.launcher.state import state_path
from splitplan.launcher.web import post_json
from splitplan.planner.calibrate.points import read_points
from splitplan.planner.spec.slo import parse_slo
from splitplan.planner.spec.workload import PrefixBlocks, Requests
from tests.launcher.conftest import Start
from tests.launcher.plans import colocated_plan, mixed_plan, small_plan


def requests_at(arrivals: list[float], input_tokens: int = 64, output_tokens: int = 8) -> Requests:
    n = len(arrivals)
    full = np.full(n, 0, dtype=np.int64)
    return Requests(np.array(arrivals), full + input_tokens, full + output_tokens, full, full)


def served(ttft_s: float, e2e_s: float, output_tokens: int = 11, error: str = "") -> Served:
    gap = (e2e_s - ttft_s) / max(1, output_tokens - 1)
    return Served(0.0, 100, output_tokens, ttft_s, e2e_s, (gap,) * (output_tokens - 1), 0.0, error)


def test_tpot_is_the_time_after_the_first_token_by_the_further_tokens() -> None:
    assert served(0.5, 1.5).tpot_s == pytest.approx(0.1)
    assert served(0.5, 0.5, output_tokens=1).tpot_s is None


def test_failed_requests_meet_no_target() -> None:
    results = [served(0.5, 1.0), served(2.0, 3.0), served(0.0, 0.0, error="refused")]
    report = summarise(results, requests_at([0, 1, 2]), parse_slo("ttft=1s@p90"))
    assert report.attainment == pytest.approx(1 / 3)
    assert (report.num_requests, report.num_failed) == (3, 1)
    assert report.measured_ms["ttft"]["mean"] == pytest.approx(1250)


def test_every_target_counts() -> None:
    one = [served(0.5, 1.5)]
    cases = {
        "ttft=1s@p90": 1,
        "ttft=1s@p90,tpot=90ms@p90": 0,
        "ttft=1s@p90,e2e=1s@p90": 0,
        "ttft=1s@p90,itl=200ms@p90": 1,
    }
    for text, expected in cases.items():
        assert summarise(one, requests_at([0]), parse_slo(text)).attainment == expected


def test_planned_figures_stand_beside_the_served_ones() -> None:
    report = summarise([served(0.5, 1.5)], requests_at([0]), parse_slo("ttft=1s@p90"), mixed_plan())
    table = {name: (planned, measured) for name, planned, _, measured in rows(report)}
    assert table["TTFT p50"] == ("120.0 ms", "500.0 ms")
    assert table["all targets met"] == ("99.5%", "100.0%")
    assert table["ITL p50"][0] == ""


def test_nothing_served_is_an_error_with_the_reasons() -> None:
    with pytest.raises(LaunchError, match="all 2 requests failed: refused"):
        summarise([served(0, 0, error="refused")] * 2, requests_at([0, 1]), None)


def test_requests_leave_at_their_times_and_come_back_whole(start: Start) -> None:
    """Open loop: three at once, one later; lengths are those asked for."""
    state = start(small_plan(), with_probe=False).state
    found = replay(state.endpoints[0], state.model, requests_at([0.0, 0.0, 0.0, 0.4]))
    assert [each.error for each in found] == [""] * 4
    assert {each.output_tokens for each in found} == {8}
    assert all(len(each.gaps_s) == 7 for each in found)
    planned_s = 0.004 + 64 * 20e-6 + 0.002  # prefill and the first decode step
    assert all(each.ttft_s >= planned_s for each in found)
    assert all(each.e2e_s > each.ttft_s for each in found)


def test_a_dead_endpoint_is_a_result_not_a_crash() -> None:
    found = replay("http://127.0.0.1:9", "m", requests_at([0.0]))
    assert found[0].error


@pytest.mark.parametrize("url", ["ftp://x", "https://x", "x:80", "http://", "http://x:notaport"])
def test_what_is_no_endpoint_is_refused(url: str) -> None:
    with pytest.raises(InputError, match="is not an endpoint"):
        split_url(url)


def test_a_url_needs_a_workload_and_a_model() -> None:
    with pytest.raises(UsageError, match="--workload and --model"):
        bench("http://127.0.0.1:9")


def test_the_measurement_file_is_one_that_calibrate_reads(tmp_path: Path) -> None:
    report = summarise([served(0.5, 1.5)] * 4, requests_at([0, 1, 2, 3]), None)
    path = tmp_path / "points.csv"
    path.write_text(measurement_csv(report, colocated_plan(), engine="vllm@0.32.0"))
    (point,) = read_points(path)
    assert (point.gpu, point.tp, point.replicas, point.mode) == ("l40s", 4, 2, "online-rate")
    assert point.ttft.mean_s == pytest.approx(0.5)
    assert point.tpot.p99_s == pytest.approx(0.1)


def test_a_plan_of_several_kinds_is_no_calibration_point() -> None:
    report = summarise([served(0.5, 1.5)], requests_at([0]), None)
    with pytest.raises(UsageError, match="several kinds"):
        measurement_csv(report, mixed_plan(), engine="vllm@0.32.0")


def test_the_demo_serves_and_leaves_nothing(plan_file: Path) -> None:
    plan_file.write_text(small_plan().model_dump_json())
    launched, report = serve_with_mocks(plan_file, duration_s=1.5, rate_req_per_s=8.0, workload="fixed:128/16")
    assert launched.report
    assert launched.report.passed
    assert report.num_failed == 0
    assert report.num_requests == 12
    assert report.planned_ms["ttft"]["p50"] == 120.0
    assert not state_path(plan_file).exists()


def test_the_api_answers_chat_and_plain_requests_and_refuses_what_does_not_fit(start: Start) -> None:
    state = start(small_plan(), with_probe=False).state
    url = state.endpoints[0]
    chat = {"model": state.model, "messages": [{"role": "user", "content": "to be or not"}], "max_tokens": 3}
    document, headers = post_json(f"{url}/v1/chat/completions", chat, timeout_s=10)
    assert len(document["choices"][0]["message"]["content"].split()) == 3
    assert document["usage"] == {"prompt_tokens": 4, "completion_tokens": 3, "total_tokens": 7}
    assert headers["x-splitplan-decode"] == "decode-0"
    for body in ({"prompt": [1] * 20_000, "max_tokens": 3}, {"prompt": "x", "max_tokens": -1}, [1, 2]):
        with pytest.raises(OSError, match="HTTP Error 400"):
            post_json(f"{url}/v1/completions", body, timeout_s=10)
    json.dumps(document)


def test_prompts_share_what_the_workload_says_they_share() -> None:
    """Named blocks are the same tokens wherever they are named; the rest of each prompt is its own."""
    plain = requests_at([0.0, 1.0, 2.0])
    blocks = PrefixBlocks(16, np.array([0, 3, 6, 6]), np.array([7, 8, 9, 7, 8, 5]))
    source = random.Random(0)
    first, second, third = (prompt_ids(replace(plain, prefix=blocks), number, source) for number in range(3))
    assert {len(first), len(second), len(third)} == {64}
    assert first[:32] == second[:32]
    assert first[32:48] != second[32:48]
    assert first[48:] != second[48:]
    assert third[:32] != first[:32]


def test_a_share_of_cached_tokens_is_a_prefix_of_all() -> None:
    some = replace(requests_at([0.0, 1.0]), cached_tokens=np.array([40, 20]))
    first, second = (prompt_ids(some, number, random.Random(number)) for number in range(2))
    assert first[:20] == second[:20]
    assert first[20:40] != second[20:40]
