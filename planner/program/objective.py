"""Objectives, and why the tie-break inside the cost objective cannot disturb it.

Dollars are whole multiples of δ, the greatest common divisor of what single instances cost. With G GPUs in the fleet,

    min (G + 1) · dollars/δ + GPUs

has integer coefficients; two plans that differ in dollars differ by at least G + 1 in the first term and by at most G
in the second, so the cheaper one always wins and GPUs only break ties. The solver may stop once the gap is below 1.
Power works alike with whole milliwatts. Where the numbers would grow too large for the solver's tolerances, the
tie-break is left out and the caller is told.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from splitplan.planner.program.constraints import instance_usd_per_hour, instance_watts, kv_bytes

if TYPE_CHECKING:
    from splitplan.planner.program.build import Program

MONEY_RESOLUTION_USD = 1e-6
POWER_RESOLUTION_WATTS = 1e-3
LARGEST_OBJECTIVE = 2e8
"""Above this, one unit is less than the solver's relative tolerances can tell apart."""


@dataclass(frozen=True, slots=True)
class ScaledObjective:
    """Integer coefficients on n, and how to read a value back. `weight` is 1 without the tie-break."""

    coefficients: dict[int, float]
    unit: float
    weight: float

    def value(self, scaled: float, num_gpus: int) -> float:
        """Dollars (watts) of a whole objective value."""
        return round(self.unit * (scaled - (num_gpus if self.weight > 1.0 else 0)) / self.weight, 9)

    def value_bound(self, scaled_bound: float) -> float:
        """A lower bound in dollars (watts) from a lower bound on the scaled objective."""
        return round(self.unit * math.ceil((scaled_bound - (self.weight - 1.0)) / self.weight - 1e-6), 9)


def cost_objective(program: Program, *, tie_break: bool) -> ScaledObjective:
    """Dollars per hour, then GPUs."""
    return _scaled(program, lambda index, place: instance_usd_per_hour(program, index, place), 1e-6, tie_break)


def power_objective(program: Program, *, tie_break: bool) -> ScaledObjective:
    """Watts, then GPUs."""
    return _scaled(
        program, lambda index, place: instance_watts(program, index, place), POWER_RESOLUTION_WATTS, tie_break
    )


def _scaled(
    program: Program, price: Callable[[int, int], float], resolution: float, tie_break: bool
) -> ScaledObjective:
    whole = {key: round(price(*key) / resolution) for key in program.n}
    divisor = math.gcd(*whole.values()) if whole else 1
    divisor = max(1, divisor)
    num_gpus = sum(location.num_gpus for location in program.locations)
    largest = sum(
        location.num_gpus * _dearest(program, whole, place) for place, location in enumerate(program.locations)
    )
    weight = num_gpus + 1.0
    if not tie_break or largest / divisor * weight > LARGEST_OBJECTIVE:
        weight = 1.0
    coefficients = {
        variable: weight * whole[key] / divisor + (program.columns[key[0]].num_gpus if weight > 1.0 else 0.0)
        for key, variable in program.n.items()
    }
    return ScaledObjective(coefficients, divisor * resolution, weight)


def _dearest(program: Program, whole: dict[tuple[int, int], int], place: int) -> float:
    """The highest price per GPU at a location, in units of the resolution."""
    return max(
        (amount / program.columns[index].num_gpus for (index, where), amount in whole.items() if where == place),
        default=0.0,
    )


def gpu_terms(program: Program) -> list[tuple[int, float]]:
    """GPUs that all instances take."""
    return [(variable, float(program.columns[index].num_gpus)) for (index, _), variable in program.n.items()]


def travel_objective(program: Program) -> dict[int, float]:
    """GB/s across racks, and a hundredth of that for leaving a host: what the last tie-break keeps small."""
    weights = {"location": 0.01, "rack": 1.0, "pod": 1.0}
    return {
        variable: weights[vertex[0]] * kv_bytes(program, b, number) / 1e9
        for (b, number, vertex), variable in program.normal.up.items()
    }
