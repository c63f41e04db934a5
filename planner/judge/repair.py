"""Solve, simulate, tighten, solve again: until a plan passes or the fleet has no more to give.

Columns carry a correction, a factor on the work a request takes. A plan that misses has its columns at fault corrected
so that the same instances no longer suffice by the program's own arithmetic; a plan that passes is then asked whether
one instance less would do, because the first estimate of a column may have been too careful.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from splitplan.catalogs.errors import OutOfTimeError
from splitplan.planner.inputs import SolveInputs
from splitplan.planner.judge.candidates import Candidate, candidate
from splitplan.planner.judge.corrections import Corrections
from splitplan.planner.judge.failures import left_after_failures
from splitplan.planner.judge.verify import Blame, Judge
from splitplan.planner.plan import Verification
from splitplan.planner.program.reduce import allowed_columns, parse_filter
from splitplan.planner.program.solve import solve_program
from splitplan.planner.program.types import Infeasible, ProgramInput, ProgramOptions, ProgramSolution

SMALLEST_STEP = 1.02
"""A correction always asks for at least this much more than the instances at hand can give."""

LARGEST_STEP = 1.6
"""And for no more than this at once: an instance that the program hardly loads says little about its kind."""

GOODPUT_STEP = 1.04
"""Goodput is raised in steps of this much while the plan still passes."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The best plan of one variant, or why there is none."""

    found: Candidate | None
    verdict: Verification | None
    reasons: tuple[str, ...] = ()
    out_of_time: bool = False  # the search for it was cut short
    blocked: ProgramInput | None = None  # the program that had no answer, where that ended the search
    corrections: Corrections = field(default_factory=Corrections)  # under which the program answers with this plan

    @property
    def passed(self) -> bool:
        """A plan was found and its verification passed."""
        return self.found is not None and self.verdict is not None and self.verdict.passed

    @property
    def score(self) -> float:
        """What the objective makes of it, less is better; infinite when nothing passed."""
        return score(self.found.solution) if self.found is not None and self.passed else float("inf")

    @property
    def num_prompt_ranges(self) -> int:
        """How many stretches of prompt lengths its pools tell apart; 1 when each takes all."""
        return len(self.found.deployment.prompt_ranges) if self.found is not None else 1

    def in_words(self) -> str:
        """The objective's figure with its unit."""
        assert self.found is not None, "only what was found can be told"
        solution = self.found.solution
        if solution.objective == "goodput":
            return f"{solution.rate_scale:.3g} of the asked rate"
        return f"{solution.watts:.0f} W" if solution.objective == "power" else f"{solution.usd_per_hour:.2f} $/h"


def score(solution: ProgramSolution) -> float:
    """The objective as something to make small: dollars or watts, or the rate scale with its sign turned."""
    if solution.objective == "goodput":
        return -solution.value
    return solution.watts if solution.objective == "power" else solution.usd_per_hour


@dataclass(slots=True)
class Workshop:
    """What the variants of one solve share: the problem, the judge, its verdicts and the plans that passed so far."""

    inputs: SolveInputs
    problem: ProgramInput
    judge: Judge
    start: Corrections = field(default_factory=Corrections)  # what every variant starts from
    screened: dict[object, tuple[Verification, Blame]] = field(default_factory=dict)
    verified: dict[object, tuple[Verification, Blame]] = field(default_factory=dict)
    sustained: dict[object, tuple[float, Blame]] = field(default_factory=dict)
    passed: list[Outcome] = field(default_factory=list)

    def solve(self, options: ProgramOptions, corrections: Corrections) -> ProgramSolution | Infeasible:
        """The program with corrected columns."""
        return solve_program(self.corrected(options, corrections))

    def best(self, options: ProgramOptions) -> Outcome:
        """The best plan of a variant that passes, its own or one that another variant found within its bounds.

        Where nothing passes, the last plan tried comes back with its verdict.
        """
        try:
            own = self._search(options)
        except OutOfTimeError as error:
            own = Outcome(None, None, (error.problems[0].message,), out_of_time=True)
        known = [outcome for outcome in self.passed if self._allows(options, outcome)]
        best = min([own, *known], key=lambda outcome: outcome.score)
        return replace(best, out_of_time=own.out_of_time)

    def _search(self, options: ProgramOptions) -> Outcome:
        """Solve, judge and correct until a plan passes; it is found from below, so it is about the cheapest."""
        corrections = Corrections(dict(self.start.factor))
        last = Outcome(None, None)
        for _ in range(self.judge.effort.max_attempts):
            solution = self.solve(options, corrections)
            if isinstance(solution, Infeasible):
                return replace(self._no_more(last, solution), blocked=self.corrected(options, corrections))
            trial = candidate(self.corrected(options, corrections), solution, self.inputs)
            at_fault, verdict, blame = self.judged_with_failures(self.corrected(options, corrections), trial)
            last = Outcome(trial, verdict, corrections=Corrections(dict(corrections.factor)))
            if verdict.passed:
                self.passed.append(last)
                return self._relaxed(last, options)
            self.tighten(at_fault, blame, corrections)
        return replace(last, reasons=("no plan passed within the attempts allowed",))

    def _allows(self, options: ProgramOptions, outcome: Outcome) -> bool:
        """Whether a plan that passed uses only what these options allow."""
        if outcome.found is None:
            return False
        allowed = {column.name for column in allowed_columns(self.problem.columns, options)}
        used = {item.column for item in outcome.found.solution.placed}
        kinds = [column for column in self.problem.columns if column.name in used]
        wanted = [parse_filter(text) for text in options.require]
        return used <= allowed and all(any(each.matches(column) for column in kinds) for each in wanted)

    def corrected(self, options: ProgramOptions, corrections: Corrections) -> ProgramInput:
        """The problem with these options and corrected columns."""
        return replace(self.problem, columns=corrections.apply(self.problem.columns), options=options)

    def _no_more(self, last: Outcome, infeasible: Infeasible) -> Outcome:
        reasons = tuple(
            f"{reason.message}; {reason.next_step}" if reason.next_step else reason.message
            for reason in infeasible.reasons
        )
        return replace(last, reasons=reasons)

    def judged(self, trial: Candidate) -> tuple[Verification, Blame]:
        """Screen first; verify in full only what passes the screening."""
        if trial.key not in self.screened:
            self.screened[trial.key] = self.judge.screen(
                trial.deployment, trial.solution.rate_scale, trial.solution.class_scale
            )
        screening = self.screened[trial.key]
        if not screening[0].passed and screening[0].attainment.high < self.inputs.slo.attainment:
            return screening  # missed even at the favourable end of its interval: no need to look closer
        if trial.key not in self.verified:
            self.verified[trial.key] = self.judge.verify(
                trial.deployment, trial.solution.rate_scale, trial.solution.class_scale
            )
        return self.verified[trial.key]

    def judged_with_failures(
        self, problem: ProgramInput, trial: Candidate, inputs: SolveInputs | None = None
    ) -> tuple[Candidate, Verification, Blame]:
        """The verdict on a trial that also has to survive failures, with what missed: itself, or what one leaves.

        `inputs`: the trial's own, where it stands beside other services.
        """
        verdict, blame = self.judged(trial)
        if verdict.passed:
            for gone, left in left_after_failures(problem, trial, inputs or self.inputs):
                then, blame_then = self.judged(left)
                if not then.passed:
                    misses = tuple(f"with {gone} gone, {miss}" for miss in then.misses)
                    return left, verdict.model_copy(update={"passed": False, "misses": misses}), blame_then
        return trial, verdict, blame

    def tighten(self, trial: Candidate, blame: Blame, corrections: Corrections) -> None:
        """Correct the columns to blame by what the trial's instances really sustain.

        If all of it sustains a share f of the rate, a column loaded to u of its capacity has only f·u of it.
        """
        if trial.key not in self.sustained:
            self.sustained[trial.key] = self._sustained(trial, blame)
        share, blame = self.sustained[trial.key]
        allowed = max(1 - self.inputs.slo.attainment, 1e-4)
        shares = _blame_by_column(trial, blame)
        worst = max(shares.values())
        for name, load in _loads(trial).items():
            if shares[name] > allowed or shares[name] == worst:
                corrections.scale(name, min(max(SMALLEST_STEP, SMALLEST_STEP / max(load * share, 1e-3)), LARGEST_STEP))

    def _sustained(self, trial: Candidate, blame: Blame) -> tuple[float, Blame]:
        """The share of the asked rate at which a trial that missed would pass, and who is to blame just above it."""
        low, high = 0.0, 1.0
        for _ in range(self.judge.effort.rate_probes):
            middle = (low + high) / 2 if low > 0 else 0.8 * high
            verdict, blame_here = self.judge.screen(
                trial.deployment, middle * trial.solution.rate_scale, trial.solution.class_scale
            )
            if verdict.passed:
                low = middle
            else:
                high, blame = middle, blame_here
        return max(low, 0.8 * high), blame

    def _relaxed(self, passed: Outcome, options: ProgramOptions) -> Outcome:
        """Try to do better with columns that may have been judged too carefully; keep what still passes."""
        best, probes, tried = passed, 0, set[object]()
        while probes < self.judge.effort.max_probes:
            for corrections in relaxations(best.found, best.corrections):
                solution = self.solve(options, corrections)
                if isinstance(solution, Infeasible) or score(solution) >= best.score - 1e-9:
                    continue
                trial = candidate(self.corrected(options, corrections), solution, self.inputs)
                if trial.key in tried:
                    continue
                tried.add(trial.key)
                probes += 1
                _, verdict, _ = self.judged_with_failures(self.corrected(options, corrections), trial)
                if verdict.passed:
                    best = Outcome(trial, verdict, corrections=corrections)
                    self.passed.append(best)
                    break
                if probes >= self.judge.effort.max_probes:
                    return best
            else:
                return best
        return best


def _loads(trial: Candidate) -> dict[str, float]:
    """Load of each column, as the program sees it: the fullest place decides."""
    loads: dict[str, float] = {}
    for item in trial.solution.placed:
        loads[item.column] = max(loads.get(item.column, 0.0), item.utilisation)
    return loads


def _blame_by_column(trial: Candidate, blame: Blame) -> dict[str, float]:
    """The largest share of requests that any instance of a column made miss."""
    instances = trial.assignment.instances
    return {name: max(blame.get(item.name, 0.0) for item in instances[name]) for name in _loads(trial)}


def relaxations(found: Candidate | None, corrections: Corrections) -> Iterator[Corrections]:
    """Corrections under which one instance less of a pool would do, dearest instance first; for goodput, all pools a
    little less careful."""
    if found is None:
        return
    if found.solution.objective == "goodput":
        names = dict.fromkeys(item.column for item in found.solution.placed)
        yield Corrections(
            {**corrections.factor, **{name: corrections.factor.get(name, 1.0) / GOODPUT_STEP for name in names}}
        )
        return
    counts: dict[str, int] = {}
    load: dict[str, float] = {}
    for item in found.solution.placed:
        counts[item.column] = counts.get(item.column, 0) + item.instances
        load[item.column] = load.get(item.column, 0.0) + item.utilisation * item.instances
    price = {name: _price(found, name) for name in counts}
    for name in sorted(counts, key=lambda name: (-price[name], name)):
        if counts[name] > 1:
            factor: Mapping[str, float] = corrections.factor
            by = 0.995 * (counts[name] - 1) / max(load[name], 1e-6)
            yield Corrections({**factor, name: factor.get(name, 1.0) * min(by, 1.0)})


def _price(found: Candidate, column: str) -> float:
    """Dollars per hour of one instance of a column."""
    for name, instances in found.assignment.instances.items():
        if name == column and instances:
            pool = next(pool for pool in found.pools if pool.instances == instances)
            return pool.usd_per_gpu_hour * pool.gpus_per_instance
    return 0.0
