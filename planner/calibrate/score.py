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

PROMISE_QUANTILE = 0.95
"""A row is predicted to meet a target when this quantile of what it may measure meets both of its figures."""

BEST_GUESS = 0.5
REPORTED_QUANTILES = (BEST_GUESS, 0.75, 0.9, PROMISE_QUANTILE)
INTERVAL_SHARE = 0.9  # of measurements that `Value.low` to `Value.high` holds


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

    def quantile(self, share: float) -> float:
        """The figure that `share` (0.5 or more) of measurements should not exceed: 0.5 is the best guess.

        Log errors fall off about exponentially on both sides (a Laplace law), so that half of what an interval of 90 %
        leaves out lies above it: `high` is the quantile of 0.95, and the others lie between it and the best guess.
        """
        tail = math.log(0.5 / (1.0 - share)) / math.log(1.0 / (1.0 - INTERVAL_SHARE))
        return self.predicted * (self.high / self.predicted) ** tail if self.predicted > 0 else self.predicted


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


def slo_passes(rows: Iterable[Row], share: float = PROMISE_QUANTILE) -> dict[str, float | int | None]:
    """Rows predicted to meet TTFT and TPOT at the quantile `share`: how many measured worse, how many were missed.

    At each target: `passes` rows predicted to meet it, `false` of them measured worse, `met` rows that measured inside;
    `percent` is false / passes, `recall` the share of the met rows that were predicted to meet it, both in percent. A
    row that was not predicted counts among the met. `percent` and `recall_percent` alone are those of the worse target.
    """
    rows = [row for row in rows if "ttft" in row.values and "tpot" in row.values]
    result: dict[str, float | int | None] = {}
    for ttft_s, tpot_s in SLO_TARGETS:
        name = f"{ttft_s * 1e3:g}/{tpot_s * 1e3:g}"
        passed = [row for row in rows if row.predicted and _meets(row, ttft_s, tpot_s, share)]
        met = [row for row in rows if _met(row, ttft_s, tpot_s)]
        kept = sum(_met(row, ttft_s, tpot_s) for row in passed)
        result |= {f"passes {name}": len(passed), f"false {name}": len(passed) - kept, f"met {name}": len(met)}
        result[f"percent {name}"] = percent((len(passed) - kept) / len(passed)) if passed else None
        result[f"recall {name}"] = percent(kept / len(met)) if met else None
    shares = [value for key, value in result.items() if key.startswith("percent") and value is not None]
    recalls = [value for key, value in result.items() if key.startswith("recall") and value is not None]
    result["percent"] = max(shares) if shares else None
    result["recall_percent"] = min(recalls) if recalls else None
    return result


def _meets(row: Row, ttft_s: float, tpot_s: float, share: float) -> bool:
    return row.values["ttft"].quantile(share) <= ttft_s and row.values["tpot"].quantile(share) <= tpot_s


def _met(row: Row, ttft_s: float, tpot_s: float) -> bool:
    return row.values["ttft"].measured <= ttft_s and row.values["tpot"].measured <= tpot_s


def rank_correlation(rows: Sequence[Row], kind: str) -> float | None:
    """Spearman's correlation of predicted and measured figures; None below five rows."""
    pairs = [(row.values[kind].predicted, row.values[kind].measured) for row in rows if kind in row.values]
    finite = np.array([pair for pair in pairs if math.isfinite(pair[0])])
    if len(finite) < 5 or len(np.unique(finite[:, 1])) < 2:
        return None
    ranks = np.apply_along_axis(_mid_ranks, 0, finite)
    return round(float(np.corrcoef(ranks[:, 0], ranks[:, 1])[0, 1]), 4)


NOISE: Mapping[str, float] = {"throughput": 0.05, "tpot": 0.13, "ttft": 0.22}
"""How far audited runs of one configuration by several submitters lie apart."""


def ordered_percent(rows: Sequence[Row], kind: Kind) -> float | None:
    """Of pairs that measured further apart than noise is, the share that is predicted in the right order.

    A rank correlation punishes a plateau, where the order of measurements is chance; this leaves such pairs out.
    """
    pairs = [(row.values[kind].predicted, row.values[kind].measured) for row in rows if kind in row.values]
    finite = np.array([pair for pair in pairs if math.isfinite(pair[0])]).reshape(-1, 2)
    predicted, measured = np.log(finite[:, 0]), np.log(finite[:, 1])
    apart = measured[:, None] - measured[None, :]
    tells = apart > math.log1p(NOISE[kind])
    return percent(float((predicted[:, None] > predicted[None, :])[tells].mean())) if tells.any() else None


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
        "false_slo_pass_percent": slo_passes(rows)["percent"],
        "slo_recall_percent": slo_passes(rows)["recall_percent"],
        "false_slo_pass_best_guess_percent": slo_passes(rows, BEST_GUESS)["percent"],
        "slo_recall_best_guess_percent": slo_passes(rows, BEST_GUESS)["recall_percent"],
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
        "slo": {f"{100 * share:g} %": slo_passes(rows, share) for share in REPORTED_QUANTILES},
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
                "ordered_percent": ordered_percent(rows, kind),
            }
    return found
