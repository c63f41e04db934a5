"""Why the plan is what it is: what binds, what one more of something is worth, who came second, who is not used.

Everything is found by solving the program again with one thing changed, so a figure is the true difference between two
optima, not a marginal value that holds for an instant only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from splitplan.planner.program.limits import binding_sentences
from splitplan.planner.program.solve import solve_program
from splitplan.planner.program.types import Infeasible, ProgramInput, ProgramSolution
from splitplan.planner.review.fleet_changes import Change, fleet_changes

SMALLEST_WORTH = 1e-6
PRICE_STEPS = 6
UNITS = {"cost": "$/h", "power": "W", "goodput": "of the load"}


@dataclass(frozen=True, slots=True)
class Variant:
    """The same question under other targets: a name such as "50 ms more TTFT" and its program."""

    name: str
    problem: ProgramInput


@dataclass(frozen=True, slots=True)
class Question:
    """What an explanation is made from."""

    problem: ProgramInput
    solution: ProgramSolution
    variants: tuple[Variant, ...] = ()
    rejected: Mapping[str, int] = field(default_factory=dict)  # columns rejected before the program, by reason


@dataclass(frozen=True, slots=True)
class Worth:
    """What one change would bring: dollars or watts saved, or rate scale won, against the plan as it is."""

    change: str
    gain: float
    unit: str

    def __str__(self) -> str:
        if self.gain <= SMALLEST_WORTH:
            return f"{self.change}: worth nothing now"
        if self.unit == UNITS["goodput"]:
            return f"{self.change}: serves {100 * self.gain:.3g} % {self.unit} more"
        return f"{self.change}: saves {self.gain:.4g} {self.unit}"


@dataclass(frozen=True, slots=True)
class RunnerUp:
    """The best plan without one of the chosen kinds, and the prices at which it would win."""

    without: str  # "decode on a100-sxm-80"
    value: float
    more: float  # dollars, watts or rate scale worse than the plan
    gpus: Mapping[str, int]
    wins_when: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Unused:
    """A GPU type of the fleet that the plan leaves idle, and the price at which it would be used."""

    gpu: str
    reason: str
    price_usd_per_gpu_hour: float
    enters_at_usd_per_gpu_hour: float | None  # None: at no price


@dataclass(frozen=True, slots=True)
class Explanation:
    """All of it, ready to print."""

    binding: tuple[str, ...]
    worth: tuple[Worth, ...]
    runner_up: RunnerUp | None
    unused: tuple[Unused, ...]


def explain(question: Question) -> Explanation:
    """Explain a solution. Solves the program about a dozen times."""
    return Explanation(
        binding=tuple(binding_sentences(question.problem, question.solution)),
        worth=tuple(worth_of_changes(question)),
        runner_up=runner_up(question),
        unused=tuple(unused_types(question)),
    )


def worth_of_changes(question: Question) -> list[Worth]:
    """One more node of every type, wider links, more power or budget, other targets: what each would bring."""
    changes = [*fleet_changes(question.problem), *_variant_changes(question)]
    found = [
        Worth(change.name, _gain(question, change.problem), UNITS[question.solution.objective]) for change in changes
    ]
    return sorted(found, key=lambda worth: -worth.gain)


def _variant_changes(question: Question) -> list[Change]:
    return [Change(variant.name, variant.problem) for variant in question.variants]


def solve_quickly(problem: ProgramInput) -> ProgramSolution | Infeasible:
    """The optimum without spending time on ties."""
    return solve_program(replace(problem, options=replace(problem.options, tie_breaks=False)))


def _gain(question: Question, changed: ProgramInput) -> float:
    """How much better the optimum gets; negative when it gets worse."""
    answer = solve_quickly(changed)
    if isinstance(answer, Infeasible):
        return 0.0
    difference = answer.value - question.solution.value
    return difference if question.solution.objective == "goodput" else -difference


def gpus_by_type(problem: ProgramInput, solution: ProgramSolution) -> dict[str, int]:
    """GPUs that a solution uses, by type."""
    columns = {column.name: column for column in problem.columns}
    used: Counter[str] = Counter()
    for placed in solution.placed:
        for gpu, count in columns[placed.column].gpus_by_type.items():
            used[gpu] += placed.instances * count
    return dict(used)


def runner_up(question: Question) -> RunnerUp | None:
    """The best plan that does without one of the (role, GPU type) pairs of the chosen one; None if there is none."""
    columns = {column.name: column for column in question.problem.columns}
    chosen = dict.fromkeys((placed.role, columns[placed.column].gpu) for placed in question.solution.placed)
    best: tuple[float, str, ProgramSolution] | None = None
    for role, gpu in chosen:
        options = question.problem.options
        without = replace(options, forbid=(*options.forbid, f"{role}={gpu}"), tie_breaks=True)
        answer = solve_program(replace(question.problem, options=without))
        if isinstance(answer, Infeasible):
            continue
        worse = _worse(question, answer)
        if best is None or worse < best[0]:
            best = (worse, f"{role} on {gpu}", answer)
    if best is None:
        return None
    worse, name, answer = best
    gpus = gpus_by_type(question.problem, answer)
    return RunnerUp(name, answer.value, worse, gpus, tuple(_winning_prices(question, answer, worse)))


def _worse(question: Question, other: ProgramSolution) -> float:
    difference = other.value - question.solution.value
    return -difference if question.solution.objective == "goodput" else difference


def _winning_prices(question: Question, other: ProgramSolution, worse: float) -> list[str]:
    """Prices of single GPU types at which the two plans cost the same; above or below, the other wins."""
    if question.solution.objective != "cost" or question.problem.options.price_kinds:
        return []
    ours = gpus_by_type(question.problem, question.solution)
    theirs = gpus_by_type(question.problem, other)
    sentences = []
    for gpu, price in question.problem.fleet.usd_per_gpu_hour.items():
        more = ours.get(gpu, 0) - theirs.get(gpu, 0)
        if more == 0:
            continue
        level = price + worse / more
        if level >= 0:
            side = "above" if more > 0 else "below"
            sentences.append(f"{gpu} {side} {level:.3g} $/GPU/h (now {price:.3g})")
    return sentences


def unused_types(question: Question) -> list[Unused]:
    """Every type of the fleet that the plan does not use, with the reason."""
    used = gpus_by_type(question.problem, question.solution)
    return [_why_unused(question, gpu) for gpu in question.problem.fleet.num_gpus if not used.get(gpu)]


def _why_unused(question: Question, gpu: str) -> Unused:
    problem = question.problem
    price = float(problem.fleet.usd_per_gpu_hour.get(gpu, 0.0))
    if problem.fleet.num_gpus[gpu] == 0:
        return Unused(gpu, "all its GPUs are in use already", price, None)
    if not any(gpu in column.gpu_types for column in problem.columns):
        rejected = ", ".join(f"{count} {reason}" for reason, count in question.rejected.items())
        reason = "no kind of instance on it meets the targets" + (f" (rejected: {rejected})" if rejected else "")
        return Unused(gpu, reason, price, None)
    forced = replace(problem, options=replace(problem.options, require=(*problem.options.require, gpu)))
    answer = solve_quickly(forced)
    if isinstance(answer, Infeasible):
        return Unused(gpu, "no plan with one of its instances meets all limits", price, None)
    worse = _worse(question, answer)
    if worse <= SMALLEST_WORTH:
        return Unused(gpu, "a plan that uses it is as good; ties went to fewer GPUs or more headroom", price, price)
    unit = UNITS[question.solution.objective]
    reason = f"the best plan that uses it is {worse:.3g} {unit} worse"
    enters = None
    if question.solution.objective == "cost" and not problem.options.price_kinds:
        enters = entry_price(question, gpu, answer)
    return Unused(gpu, reason, price, enters)


def entry_price(question: Question, gpu: str, forced: ProgramSolution) -> float | None:
    """The highest price per GPU-hour at which some plan with this type costs no more than the chosen one.

    At a price p the best forced plan with k GPUs of the type costs C(p); the price at which that plan ties is
    p − (C(p) − C) / k. Repeating from there (Dinkelbach's method) ends at the highest such price.
    """
    problem, chosen = question.problem, question.solution.value
    price, answer = float(problem.fleet.usd_per_gpu_hour[gpu]), forced
    for _ in range(PRICE_STEPS):
        gpus = gpus_by_type(problem, answer).get(gpu, 0)
        better = price - (answer.value - chosen) / gpus
        if abs(better - price) < SMALLEST_WORTH:
            break
        price = better
        if price <= 0:
            return None
        cheaper = _with_price(problem, gpu, price)
        options = replace(problem.options, require=(*problem.options.require, gpu))
        again = solve_quickly(replace(problem, fleet=cheaper.fleet, options=options))
        if isinstance(again, Infeasible):
            return None
        answer = again
    return price if price > 0 else None


def _with_price(problem: ProgramInput, gpu: str, price: float) -> ProgramInput:
    prices = {**problem.fleet.usd_per_gpu_hour, gpu: price}
    return replace(problem, fleet=replace(problem.fleet, usd_per_gpu_hour=prices))


def about(question: Question, component: str) -> Sequence[str]:
    """Sentences about one column, location, rack or GPU type; [] when the plan knows nothing of that name."""
    lines = []
    columns = {column.name: column for column in question.problem.columns}
    for placed in question.solution.placed:
        column = columns[placed.column]
        if component in (placed.column, placed.location, placed.rack, placed.role, column.gpu, *column.gpu_types):
            rate = sum(placed.rate_req_per_s)
            lines.append(
                f"{placed.instances} x {placed.column} at {placed.location}: {rate:.3g} req/s, "
                f"{100 * placed.utilisation:.0f} % of their planned time"
            )
    lines += [line for line in binding_sentences(question.problem, question.solution) if component in line]
    if component in question.problem.fleet.num_gpus:
        lines += [unused.reason for unused in unused_types(question) if unused.gpu == component]
    return lines
