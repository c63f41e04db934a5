"""How bursty arrivals are, and whether their time stamps can be trusted to say so."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from splitplan.planner.spec.workload import FloatArray, Requests

COARSE_ZERO_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class Burstiness:
    """Squared coefficients of variation of a sequence of arrivals."""

    gap_scv: float  # of the inter-arrival times as stamped
    stamp_s: float | None  # the clock that time stamps were rounded to, where it is coarse
    count_dispersion: float | None  # variance over mean of arrivals per stamp, where stamps are coarse

    @property
    def scv(self) -> float:
        """What to plan with: the dispersion of counts where stamps are coarse, else that of the gaps.

        For a renewal process both tend to the same number; on a coarse clock the gaps show the clock instead.
        """
        return self.gap_scv if self.count_dispersion is None else self.count_dispersion


def burstiness(arrival_s: FloatArray) -> Burstiness:
    """Burstiness of sorted arrival times; 1 (Poisson) where fewer than three arrivals say nothing."""
    gap_s = np.diff(arrival_s)
    if len(gap_s) < 2 or gap_s.mean() <= 0:
        return Burstiness(1.0, None, None)
    gap_scv = float(gap_s.var() / gap_s.mean() ** 2)
    stamp_s = _coarse_stamp_s(gap_s)
    if stamp_s is None:
        return Burstiness(gap_scv, None, None)
    ticks = np.rint((arrival_s - arrival_s[0]) / stamp_s).astype(np.int64)
    counts = np.bincount(ticks)
    return Burstiness(gap_scv, stamp_s, float(counts.var() / counts.mean()))


def _coarse_stamp_s(gap_s: FloatArray) -> float | None:
    """The clock of time stamps when most requests share one and the others lie on its multiples, else None."""
    positive = gap_s[gap_s > 0]
    if len(positive) < 10 or len(positive) > (1 - COARSE_ZERO_SHARE) * len(gap_s):
        return None
    stamp_s = float(np.median(positive))
    ratio = positive / stamp_s
    return stamp_s if np.abs(ratio - np.rint(ratio)).max() < 0.01 and ratio.min() > 0.5 else None


def busiest_req_per_s(requests: Requests, window_s: float) -> float:
    """Requests in the fullest window of a length, over that length."""
    last = np.searchsorted(requests.arrival_s, requests.arrival_s + window_s, side="left")
    return float((last - np.arange(len(requests))).max()) / window_s
