"""Scoring predictions against measured points: errors per row, statistics per group, false SLO passes, ranks.

An error is |predicted / measured − 1|. A row that could not be predicted counts as an infinite error in every statistic
of what it measured. TTFT is split into unloaded (concurrency 1, static batch) and loaded.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from splitplan.planner.calibrate.points import Point
from splitplan.planner.calibrate.predict import Prediction

FloatArray = NDArray[np.float64]
Kind = Literal["ttft", "tpot", "throughput"]
KINDS: tuple[Kind, ...] = ("ttft", "tpot", "throughput")

SLO_TARGETS = ((1.0, 0.04), (0.5, 0.03))
"""(TTFT s, TPOT s): the two targets that false passes are counted at."""


@dataclass(frozen=True, slots=True)
class Value:
    """One measured figure and what was predicted for it, in seconds or output tokens/s."""

    statistic: str  # "mean", "p50" or "total"
    measured: float
    predicted: float  # NaN: not predicted
    low: float
    high: float  # the interval that should hold 90 % of measurements

    @property
    def error(self) -> float:
        """|predicted / measured − 1|; infinite where there is no prediction."""
        return abs(self.predicted / self.measured - 1.0) if math.isfinite(self.predicted) else math.inf

    @property
    def covered(self) -> bool:
        """Whether the interval holds the measurement."""
        return self.low <= self.measured <= self.high


@dataclass(frozen=True, slots=True)
class Row:
    """One point scored."""

    point: Point
    gpu: str
    generation: str
    dense: bool
    values: Mapping[str, Value]
    reason: str = ""  # why it was not predicted
    notes: tuple[str, ...] = ()
    basis_shares: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 1.0)

    @property
    def predicted(self) -> bool:
        """Whether there is a prediction."""
        return not self.reason

    @property
    def loaded(self) -> bool:
        """Whether other requests compete: neither a single user nor a batch driven alone."""
        return not (self.point.mode == "static-batch" or self.point.concurrency == 1)


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
    """Whether the source does not say what its latencies are.

    Such sweeps fit the mean of a simulated run and not its median: their TTFT grows with the number of users as the
    queue of the first round does, which a median of ten rounds does not see (docs/accuracy.md).
    """
    return re.search(r"statistic\b[^;]*\bnot stated", point.notes) is not None


def predicted_value(prediction: Prediction, kind: str, statistic: str) -> float:
    """The predicted figure to hold against a measured one."""
    if kind == "throughput":
        return prediction.output_tokens_per_s
    latency = prediction.ttft if kind == "ttft" else prediction.tpot
    return latency.mean_s if statistic == "mean" else latency.p50_s


def errors(rows: Iterable[Row], kind: str) -> FloatArray:
    """Errors of every measured figure of a kind."""
    return np.array([row.values[kind].error for row in rows if kind in row.values])


def statistics(values: FloatArray) -> dict[str, float | int | None]:
    """Count, median, mean and p90 of errors, in percent; None where there are none or they are infinite."""
    return {
        "count": len(values),
        "median": percent(np.median(values)) if len(values) else None,
        "mean": percent(np.mean(values)) if len(values) else None,
        "p90": percent(np.quantile(values, 0.9, method="inverted_cdf")) if len(values) else None,
    }


def percent(share: Any) -> float | None:
    """A share in percent with two decimals; None when it is not finite."""
    return round(100.0 * float(share), 2) if math.isfinite(share) else None


def bias_percent(rows: Iterable[Row], kind: str) -> float | None:
    """Median of predicted / measured − 1, signed."""
    ratios = [row.values[kind].predicted / row.values[kind].measured - 1 for row in rows if kind in row.values]
    finite = [ratio for ratio in ratios if math.isfinite(ratio)]
    return percent(np.median(finite)) if finite else None


def coverage_percent(rows: Iterable[Row], kind: str) -> float | None:
    """Share of measured figures inside their interval."""
    inside = [row.values[kind].covered for row in rows if kind in row.values and row.predicted]
    return percent(np.mean(inside)) if inside else None


def false_pass_percent(rows: Iterable[Row], *, promised: bool = True) -> dict[str, float | int | None]:
    """Of rows predicted to meet TTFT and TPOT, the share that measured worse: at each target, and the larger.

    `promised` asks for the upper end of the 90 % interval, as a plan must; without it the best guess decides.
    """
    rows = [row for row in rows if row.predicted and "ttft" in row.values and "tpot" in row.values]
    result: dict[str, float | int | None] = {}
    worst: float | None = None
    for ttft_s, tpot_s in SLO_TARGETS:
        passed = [row for row in rows if _passes(row, ttft_s, tpot_s, promised=promised)]
        failed = [r for r in passed if r.values["ttft"].measured > ttft_s or r.values["tpot"].measured > tpot_s]
        share = percent(len(failed) / len(passed)) if passed else None
        name = f"{ttft_s * 1e3:g}/{tpot_s * 1e3:g}"
        result[f"passes {name}"], result[f"false {name}"], result[f"percent {name}"] = len(passed), len(failed), share
        worst = share if worst is None or (share is not None and share > worst) else worst
    result["percent"] = worst
    return result


def _passes(row: Row, ttft_s: float, tpot_s: float, *, promised: bool) -> bool:
    ttft, tpot = row.values["ttft"], row.values["tpot"]
    if promised:
        return ttft.high <= ttft_s and tpot.high <= tpot_s
    return ttft.predicted <= ttft_s and tpot.predicted <= tpot_s


def rank_correlation(rows: Sequence[Row], kind: str) -> float | None:
    """Spearman's correlation of predicted and measured figures; None below five rows."""
    pairs = [(row.values[kind].predicted, row.values[kind].measured) for row in rows if kind in row.values]
    finite = np.array([pair for pair in pairs if math.isfinite(pair[0])])
    if len(finite) < 5 or len(np.unique(finite[:, 1])) < 2:
        return None
    ranks = np.apply_along_axis(_mid_ranks, 0, finite)
    return round(float(np.corrcoef(ranks[:, 0], ranks[:, 1])[0, 1]), 4)


def _mid_ranks(values: FloatArray) -> FloatArray:
    order = np.sort(values)
    first, last = np.searchsorted(order, values, side="left"), np.searchsorted(order, values, side="right")
    ranks: FloatArray = (first + last - 1) / 2.0
    return ranks


TARGET_GPUS = ("h100", "h200", "a100")


def is_target(row: Row) -> bool:
    """Dense models on H100, H200 and A100: what the accuracy targets speak of."""
    return row.dense and row.gpu.startswith(TARGET_GPUS)


def total(rows: Sequence[Row]) -> dict[str, Any]:
    """The figures that targets are stated for, over the target rows."""
    rows = [row for row in rows if is_target(row)]
    loaded, unloaded = [row for row in rows if row.loaded], [row for row in rows if not row.loaded]
    offline = [row for row in rows if row.point.mode in ("offline", "static-batch")]
    tpot = statistics(errors(rows, "tpot"))
    ttft, ttft_unloaded = statistics(errors(loaded, "ttft")), statistics(errors(unloaded, "ttft"))
    throughput, offline_only = statistics(errors(rows, "throughput")), statistics(errors(offline, "throughput"))
    return {
        "rows": len(rows),
        "predicted_rows": sum(row.predicted for row in rows),
        "tpot_median_error_percent": tpot["median"],
        "tpot_p90_error_percent": tpot["p90"],
        "ttft_median_error_percent": ttft["median"],
        "ttft_unloaded_median_error_percent": ttft_unloaded["median"],
        "throughput_median_error_percent": throughput["median"],
        "false_slo_pass_percent": false_pass_percent(rows)["percent"],
        "false_slo_pass_best_guess_percent": false_pass_percent(rows, promised=False)["percent"],
        "tpot_mean_error_percent": tpot["mean"],
        "ttft_p90_error_percent": ttft["p90"],
        "ttft_unloaded_p90_error_percent": ttft_unloaded["p90"],
        "throughput_p90_error_percent": throughput["p90"],
        "offline_throughput_median_error_percent": offline_only["median"],
        "offline_throughput_p90_error_percent": offline_only["p90"],
        "tpot_coverage_percent": coverage_percent(rows, "tpot"),
        "ttft_coverage_percent": coverage_percent(rows, "ttft"),
        "throughput_coverage_percent": coverage_percent(rows, "throughput"),
        "counts": {
            "tpot": tpot["count"],
            "ttft": ttft["count"],
            "ttft_unloaded": ttft_unloaded["count"],
            "throughput": throughput["count"],
        },
        "slo": false_pass_percent(rows),
        "slo_best_guess": false_pass_percent(rows, promised=False),
    }


def group_key(row: Row) -> tuple[str, str, str, str]:
    """What a line of the table is of: GPU, engine generation, mode, dense or experts."""
    return row.gpu, row.generation, row.point.mode, "dense" if row.dense else "moe"


def groups(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Statistics by GPU × engine generation × mode."""
    members: dict[tuple[str, str, str, str], list[Row]] = {}
    for row in rows:
        members.setdefault(group_key(row), []).append(row)
    return [_group(key, members[key]) for key in sorted(members)]


def _group(key: tuple[str, str, str, str], rows: list[Row]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "gpu": key[0],
        "engine": key[1],
        "mode": key[2],
        "models": key[3],
        "rows": len(rows),
        "predicted_rows": sum(row.predicted for row in rows),
        "sources": sorted({row.point.source_group for row in rows}),
    }
    for kind in KINDS:
        values = errors(rows, kind)
        if len(values):
            found[kind] = {
                **statistics(values),
                "bias": bias_percent(rows, kind),
                "coverage": coverage_percent(rows, kind),
                "rank_correlation": rank_correlation(rows, kind),
            }
    return found
