"""Scoring predictions against measured points: errors per row, statistics per group, false SLO passes, ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from splitplan.planner.calibrate.points import Point
from splitplan.planner.calibrate.predict import Prediction

Kind = Literal["ttft", "tpot", "throughput"]
Statistic = Literal["mean", "p50", "total"]


def measured_values(point: Point) -> Mapping[str, tuple[str, float]]:
    """What a point measured, by kind: the statistic and its value in seconds or output tokens/s.

    Where a source does not say which statistic it gives, the mean is assumed: see `unstated_statistic`. TTFT of rows
    that their collector marked TTFT_NOISY is left out.
    """
    values: dict[str, tuple[str, float]] = {}
    for kind, latency in (("ttft", point.ttft), ("tpot", point.tpot)):
        central = latency.central
        if central is None or not central[1] > 0 or (kind == "ttft" and "TTFT_NOISY" in point.notes):
            continue
        values[kind] = ("mean" if unstated_statistic(point) else central[0], central[1])
    if point.output_tokens_per_s:
        values["throughput"] = ("total", point.output_tokens_per_s)
    return values


def unstated_statistic(point: Point) -> bool:
    """NVIDIA's in-house sweeps do not say which: their TTFT fits the mean of a simulated run, not its median."""
    return "statistic not stated" in point.notes and "looks like the median" not in point.notes


def predicted_value(prediction: Prediction, kind: str, statistic: str) -> float:
    """The predicted figure to hold against a measured one."""
    if kind == "throughput":
        return prediction.output_tokens_per_s
    latency = prediction.ttft if kind == "ttft" else prediction.tpot
    return latency.mean_s if statistic == "mean" else latency.p50_s
