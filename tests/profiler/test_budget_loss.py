"""What a short budget gives away, on a device that never wavers: its times are H100's published tables, made slower.

Measuring is simulated down to the clock: a point takes its set-up, its first call and its repetitions. So what differs
between a short and a long profile is what was shed, and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from splitplan.catalogs.gpus import find_gpu
from splitplan.catalogs.models import find_model
from splitplan.profiler.leave_one_out import predict
from splitplan.profiler.measure import Outcome, measure_plan
from splitplan.profiler.points import SETUP_S, Point, Request, make_plan
from splitplan.profiler.profile import FloatArray, Profile
from splitplan.profiler.query import OpTimes
from splitplan.profiler.rates import Rates, rates_of
from splitplan.profiler.rows import RowFile, profile_from_rows
from splitplan.profiler.runners import Run
from splitplan.profiler.store import find_profile, make_table
from splitplan.profiler.timer import Effort, Timing

GPU = find_gpu("h100")
SLOWER = 5000  # a CPU's 0.2 TFLOP/s: a minute is not enough for everything
FAMILIES = ("gemm", "prefill_attention", "decode_attention")


class SlowH100:
    """Answers each point from the published tables; a clock that moves as measuring would."""

    def __init__(self) -> None:
        self.ops = OpTimes(find_profile(GPU.name, "vllm"), GPU)
        self.now_s = 0.0

    def clock(self) -> float:
        return self.now_s

    def run(self, point: Point, effort: Effort) -> Run:
        op_s = SLOWER * self.seconds(point)
        effort = effort.for_call(op_s)
        self.now_s += SETUP_S + op_s + max(effort.warmup_s + effort.repeat_s, op_s * (1 + effort.min_repetitions))
        return Run(Timing(op_s, op_s, op_s, 3), "cold")

    def seconds(self, point: Point) -> float:
        if point.family in FAMILIES:
            table = make_table(point.family, {name: [value] for name, value in point.shape}, [1.0])
            return float(predict(self.ops, point.family, table)[0])
        return float(self.ops.elementwise(point["num_bytes"]).seconds)


def profiled(budget_s: float, folder: Path) -> tuple[Profile, Outcome]:
    device, fast = SlowH100(), rates_of(GPU)
    flops: Mapping[str, float] = {dtype: rate / SLOWER for dtype, rate in fast.flops_per_s.items()}
    rates = Rates(flops, fast.bytes_per_s / SLOWER, launch_s=SLOWER * 5e-6, family_setup_s=0.0)
    request = Request((find_model("qwen3-0.6b"),), device_kind="cpu", kv_limit_bytes=2**29)
    plan = make_plan(request, rates, budget_s)
    with RowFile(folder / f"{budget_s:g}.rows.jsonl", resume=False) as rows:
        outcome = measure_plan(plan, runner=device, rows=rows, provenance={}, budget_s=budget_s, clock=device.clock)
        profile = profile_from_rows(rows.rows, gpu=GPU.name, engine="splitplan", engine_version="", provenance={})
    assert device.now_s <= budget_s * 1.05
    return profile, outcome


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Profile, Profile]:
    folder = tmp_path_factory.mktemp("budgets")
    return profiled(60, folder)[0], profiled(600, folder)[0]


def differences(pair: tuple[Profile, Profile], family: str) -> FloatArray:
    """|short / long − 1| over every shape that the longer profile has measured."""
    short, long = pair
    ours, theirs = (predict(OpTimes(profile, GPU), family, long.tables[family]) for profile in (short, long))
    return np.abs(ours / theirs - 1)


def test_a_minute_predicts_what_ten_minutes_would_within_a_tenth(pair: tuple[Profile, Profile]) -> None:
    """At the median, over all and each family by itself, although the minute left out a quarter of the shapes."""
    counts = [sum(len(profile.tables[family]) for family in FAMILIES) for profile in pair]
    assert counts[0] < 0.8 * counts[1]
    by_family = [differences(pair, family) for family in FAMILIES]
    assert all(np.median(difference) < 0.10 for difference in by_family)
    assert np.median(np.concatenate(by_family)) < 0.10


def test_products_that_a_minute_left_out_are_predicted_within_a_tenth(pair: tuple[Profile, Profile]) -> None:
    difference = differences(pair, "gemm")
    left_out = difference[difference > 1e-6]
    assert len(left_out) > 5
    assert np.median(left_out) < 0.10


def test_the_longer_profile_knows_every_line_of_the_shorter(pair: tuple[Profile, Profile]) -> None:
    short, long = pair
    for family in FAMILIES:
        names = [name for name in short.tables[family].keys if name not in ("m", "new", "past", "batch", "context")]
        lines = [
            {tuple(table.keys[name][row].item() for name in names) for row in range(len(table))}
            for table in (short.tables[family], long.tables[family])
        ]
        assert lines[0] == lines[1]
