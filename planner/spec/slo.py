"""Latency targets: `ttft=800ms@p99,tpot=50ms@p99`. TPOT is (E2E − TTFT) / (output tokens − 1)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Target:
    """A bound on one latency at one percentile."""

    seconds: float
    percentile: float  # 50 < p < 100, for instance 99.0


@dataclass(frozen=True, slots=True)
class Slo:
    """All targets of one request class. `attainment` is the share of requests that must meet all of them."""

    ttft: Target | None
    tpot: Target | None
    e2e: Target | None
    itl: Target | None
    attainment: float
    notes: tuple[str, ...] = ()  # for instance "ttft=500 read as 500 ms"
