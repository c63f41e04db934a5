"""Objectives, and why the tie-break inside the cost objective cannot disturb it.

Dollars are whole multiples of δ, the greatest common divisor of what single instances cost. With G GPUs in the fleet,

    min (G + 1) · dollars/δ + GPUs

has integer coefficients; two plans that differ in dollars differ by at least G + 1 in the first term and by at most G
in the second, so the cheaper one always wins and GPUs only break ties. The solver may stop once the gap is below 1.
Power works alike with whole milliwatts. Where the numbers would grow too large for the solver's tolerances, the
tie-break is left out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from splitplan.planner.program.constraints import kv_gigabytes, watt_terms
from splitplan.planner.program.linear import Terms
from splitplan.planner.program.money import money_terms

if TYPE_CHECKING:
    from splitplan.planner.program.build import Program

MONEY_RESOLUTION_USD = 1e-6
POWER_RESOLUTION_WATTS = 1e-3
LARGEST_OBJECTIVE = 2e8
"""Above this, one unit is less than the solver's relative tolerances can tell apart."""


@dataclass(frozen=True, slots=True)
class ScaledObjective:
    """Integer coefficients, and how to read a bound back. `weight` is 1 without the tie-break."""

    coefficients: dict[int, float]
    unit: float
    weight: float
    amounts: dict[int, float]  # the dollars or watts themselves

    def value_bound(self, scaled_bound: float) -> float:
        """A lower bound in dollars (watts) from a lower bound on the scaled objective."""
        return self.unit * math.ceil((scaled_bound - (self.weight - 1.0)) / self.weight - 1e-6)


def cost_objective(program: Program, *, tie_break: bool) -> ScaledObjective:
    """Dollars per hour, then GPUs."""
    return _scaled(program, money_terms(program), MONEY_RESOLUTION_USD, tie_break)


def power_objective(program: Program, *, tie_break: bool) -> ScaledObjective:
    """Watts, then GPUs."""
    return _scaled(program, watt_terms(program), POWER_RESOLUTION_WATTS, tie_break)


def _scaled(program: Program, terms: Terms, resolution: float, tie_break: bool) -> ScaledObjective:
    amounts: dict[int, float] = {}
    for variable, amount in terms:
        amounts[variable] = amounts.get(variable, 0.0) + amount
    whole = {variable: round(amount / resolution) for variable, amount in amounts.items()}
    divisor = max(1, math.gcd(*whole.values()))
    num_gpus = sum(location.num_gpus for location in program.locations)
    dearest = max((abs(amount) for amount in whole.values()), default=0)
    weight = num_gpus + 1.0
    if not tie_break or num_gpus * dearest / divisor * weight > LARGEST_OBJECTIVE:
        weight = 1.0
    coefficients = {variable: weight * amount / divisor for variable, amount in whole.items()}
    if weight > 1.0:
        for variable, gpus in gpu_terms(program):
            coefficients[variable] = coefficients.get(variable, 0.0) + gpus
    return ScaledObjective(coefficients, divisor * resolution, weight, amounts)


def gpu_terms(program: Program) -> Terms:
    """GPUs that all instances take."""
    return [(variable, float(program.columns[index].num_gpus)) for (index, _), variable in program.n.items()]


def goodput_objective(program: Program) -> dict[int, float]:
    """σ, or with class weights the weighted requests/s served: Σ_b weight_b · rate_b · σ_b."""
    weights = program.problem.options.class_weights
    if weights is None or program.problem.options.objective != "goodput":
        return {program.sigma: 1.0}
    rates = program.normal.rate_req_per_s
    return {sigma: weights[b] * float(rates[b]) for b, sigma in enumerate(program.normal.sigmas)}


def travel_objective(program: Program) -> dict[int, float]:
    """GB/s across racks, and a hundredth of that for leaving a host: what the last tie-break keeps small."""
    weights = {"location": 0.01, "rack": 1.0, "pod": 1.0}
    return {
        variable: weights[vertex[0]] * kv_gigabytes(program, b, number)
        for (b, number, vertex), variable in program.normal.up.items()
    }
