"""Mélange's headline (arXiv 2404.14527): what mixing GPU types saves over one type, asked of `planner solve`.

Llama-2-7B on L4, A10G, A100 and H100 at its prices, a target on TPOT alone. Its workloads are Arena (short), PubMed
(long) and a mix; stand-ins of the same kind here. L4 and A10G have no measured profile: their steps are scaled from
relatives, so the figures say in which range a saving lies, not more.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from splitplan.planner.program.types import ProgramOptions
from splitplan.planner.question import Question
from splitplan.planner.solve import solve

USD_PER_GPU_HOUR = {"l4": 0.70, "a10g": 1.01, "a100-sxm-80": 3.67, "h100-sxm": 7.516}
PUBLISHED_PERCENT = {("short", 120): (15, 77), ("short", 40): (9, 68), ("long", 120): (15, 33), ("long", 40): (2, 22)}
WORKLOADS = {"short": "fixed:250/250", "long": "fixed:3500/200"}


@dataclass(frozen=True, slots=True)
class Saving:
    """The chosen plan against the best and the worst plan of one type."""

    usd_per_hour: float
    best_single: float
    worst_single: float
    words: str

    @property
    def percent(self) -> tuple[float, float]:
        """Least and most that is saved."""
        return tuple(100 * (1 - self.usd_per_hour / other) for other in (self.best_single, self.worst_single))  # type: ignore[return-value]


def saving(kind: str, tpot_ms: int, rate_req_per_s: float) -> Saving:
    """Colocated plans only, as Mélange's are."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "fleet.yaml"
        counts = ", ".join(f"{gpu}: 48" for gpu in USD_PER_GPU_HOUR)
        prices = ", ".join(f"{gpu}: {{on_demand: {usd}}}" for gpu, usd in USD_PER_GPU_HOUR.items())
        path.write_text(f"kind: Fleet\nversion: 1\nname: counts\ngpus: {{{counts}}}\nprices: {{{prices}}}\n")
        options = ProgramOptions(mode="colocated", max_kinds=1)
        slo = f"tpot={tpot_ms}ms@p90"
        plan = solve(Question("llama-2-7b", str(path), WORKLOADS[kind], slo, rate_req_per_s, options))
    singles = [
        item.usd_per_hour
        for item in plan.alternatives
        if item.label.startswith("only") and item.verification is not None and item.verification.passed
    ]
    types = {pool.gpu for pool in plan.pools}
    if len(types) == 1:
        singles.append(plan.usd_per_hour)
    words = " + ".join(f"{len(pool.instances)} {pool.gpu} TP{pool.tensor_parallel}" for pool in plan.pools)
    return Saving(plan.usd_per_hour, min(singles), max(singles), words)
