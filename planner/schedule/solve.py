"""The whole way from a workload with hours to a verified schedule: levels, plans, moves, and the plan for all hours."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from splitplan.catalogs.errors import NoPlanError, Problem, UsageError
from splitplan.planner.emit import Variant, emit_plan
from splitplan.planner.inputs import load_inputs
from splitplan.planner.judge.candidates import Candidate
from splitplan.planner.judge.corrections import Corrections
from splitplan.planner.judge.repair import Outcome, Workshop
from splitplan.planner.judge.verify import Effort, Judge, default_effort
from splitplan.planner.plan import Plan, Verification
from splitplan.planner.program.topology import fleet_locations
from splitplan.planner.program.types import ProgramInput, ProgramOptions
from splitplan.planner.question import Question
from splitplan.planner.schedule.choose import Choice, Facts, best_round
from splitplan.planner.schedule.joint import Switching, counts_of, same_commands, solve_day
from splitplan.planner.schedule.layout import (
    Counts,
    Misfit,
    State,
    Switch,
    counts_of_candidate,
    host_kinds_of,
    lay_out_day,
    switches_of,
)
from splitplan.planner.schedule.periods import Level, Period, levels_of, periods_of
from splitplan.planner.show.drawing import index_ranges
from splitplan.planner.spec.workload import load_workload
from splitplan.planner.study import Study, prepare

DEFAULT_LEVELS = 4
MOST_DAY_PROGRAMS = 3
"""A program over all periods takes seconds to minutes; plans that passed are put together in milliseconds."""
SEARCH_GAP_PERCENT, BOUND_GAP_PERCENT = 0.5, 0.2
"""The last tenths of a percent take as long as all before them; simulation corrects more than that."""
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Asked:
    """What a schedule is asked for. `hourly_req_per_s` takes the place of the workload's own hours."""

    question: Question
    hourly_req_per_s: tuple[float, ...] = ()
    most_levels: int = DEFAULT_LEVELS
    switching: Switching = field(default_factory=Switching)


@dataclass(frozen=True, slots=True)
class Trial:
    """One schedule, laid out and judged."""

    states: tuple[State, ...]
    state_of: tuple[int, ...]  # by period
    switches: tuple[Switch, ...]
    verdicts: tuple[Verification, ...]  # by state
    usd: float  # a round of the hours, moves included
    learned: Mapping[int, Corrections]  # by level

    @property
    def passed(self) -> bool:
        """Every state met the targets at the highest load it has to serve."""
        return all(verdict.passed for verdict in self.verdicts)


@dataclass(frozen=True, slots=True)
class Schedule:
    """The answer. Dollars are per round of all hours (a day, a week)."""

    levels: tuple[Level, ...]  # the highest first
    periods: tuple[Period, ...]
    plans: tuple[Plan, ...]  # by state
    state_of: tuple[int, ...]  # by period
    switches: tuple[Switch, ...]
    usd: float
    bound_usd: float  # no schedule over these levels and columns costs less
    all_day: Plan
    all_day_usd: float
    follow_usd: float  # the cheapest plan of each period, whatever switching costs
    solver: str

    @property
    def gap_percent(self) -> float:
        """How far the schedule may be from the best one."""
        return 100.0 * max(0.0, self.usd - self.bound_usd) / max(self.usd, 1e-12)


@dataclass(slots=True)
class DayShop:
    """What all schedules of one solve share: a study and a judge per level."""

    levels: tuple[Level, ...]
    periods: tuple[Period, ...]
    studies: tuple[Study, ...]
    problems: tuple[ProgramInput, ...]
    shops: tuple[Workshop, ...]
    switching: Switching
    effort: Effort
    kind_of: Mapping[str, str]  # kind of host by node
    passed: dict[Choice, Mapping[str, float]] = field(default_factory=dict)  # with the factors of its own columns
    corrections: dict[int, list[Corrections]] = field(default_factory=dict)  # by level: what every way learned

    def trial(self, counts: Sequence[Counts], learned: Mapping[int, Corrections]) -> Trial | Misfit:
        """Instances for every period, laid out on the fleet and judged; or what does not fit."""
        problems = self.corrected(learned)
        laid = lay_out_day(problems, [study.inputs for study in self.studies], self.periods, counts)
        if isinstance(laid, Misfit):
            return laid
        states, state_of = laid
        verdicts = tuple(self.shops[state.level].judged(state.found)[0] for state in states)
        switches = switches_of(states, state_of, self.periods, problems, self.switching)
        kept = {level: Corrections(dict(own.factor)) for level, own in learned.items()}
        return Trial(states, state_of, switches, verdicts, self.cost(states, state_of, switches), kept)

    def remember(self, level: int, found: Candidate, corrections: Corrections) -> None:
        """Keep what passed at a level, with the corrections of its own columns."""
        counts = counts_of_candidate(found, self.kind_of)
        own = {item.column: corrections.factor.get(item.column, 1.0) for item in found.solution.placed}
        self.passed.setdefault(Choice(level, counts, round(found.solution.usd_per_hour, 6)), own)

    def corrected(self, learned: Mapping[int, Corrections]) -> tuple[ProgramInput, ...]:
        """The problem of every level with its corrected columns."""
        return tuple(
            replace(problem, columns=learned[level].apply(problem.columns))
            for level, problem in enumerate(self.problems)
        )

    def cost(self, states: Sequence[State], state_of: Sequence[int], switches: Sequence[Switch]) -> float:
        """Dollars of a round: what runs in every period, and every move."""
        rent = sum(
            period.num_hours * states[state].found.solution.usd_per_hour
            for period, state in zip(self.periods, state_of, strict=True)
        )
        return round(rent + sum(switch.usd for switch in switches), 6)


def solve_schedule(asked: Asked, *, effort: Effort | None = None, progress: Progress | None = None) -> Schedule:
    """The cheapest schedule whose plans pass their simulations, beside one plan for all hours.

    Raises InputError for bad input and NoPlanError when some hours cannot be served within the targets.
    """
    say = progress or (lambda _text: None)
    if asked.question.program.objective != "cost":
        raise UsageError(Problem("a schedule is planned for the least cost", expected="objective cost"))
    shop = _shop(asked, effort or default_effort())
    for text in shop.studies[0].inputs.slo.notes:
        say(text)
    if 0 in _hourly(asked):
        say("hours without load are planned like the quietest hour that has some; nothing is scaled to zero")
    say(f"{len(shop.levels)} levels of load in {len(shop.periods)} periods")
    alone = [_alone(shop, level, say) for level in range(len(shop.levels))]
    learned = {level: _learned(outcome, shop.corrections[level]) for level, outcome in enumerate(alone)}
    steady = _steady(shop, alone[0], learned)
    trials = [steady, *_together(shop, learned, say), *_from_known(shop, learned, say)]
    chosen = min((trial for trial in trials if trial.passed), key=lambda trial: trial.usd)
    own = [
        choice
        for choice in shop.passed
        if any((choice.level, choice.counts) == (state.level, state.counts) for state in chosen.states)
    ]
    corrected = shop.corrected(_as_passed(shop, own, learned))
    bound = solve_day(corrected, shop.periods, shop.switching, BOUND_GAP_PERCENT)
    say(f"bound of all schedules: {bound.bound_usd if bound else chosen.usd:.2f} $")
    return Schedule(
        levels=shop.levels,
        periods=shop.periods,
        plans=tuple(_plan(shop, chosen, number) for number in range(len(chosen.states))),
        state_of=chosen.state_of,
        switches=chosen.switches,
        usd=chosen.usd,
        bound_usd=round(min(chosen.usd, bound.bound_usd if bound else chosen.usd), 6),
        all_day=_plan(shop, steady, 0),
        all_day_usd=steady.usd,
        follow_usd=_follow(shop, alone),
        solver=steady.states[0].found.solution.solver,
    )


def _hourly(asked: Asked) -> tuple[float, ...]:
    own = asked.hourly_req_per_s
    return tuple(own or load_workload(asked.question.workload, asked.question.rate_req_per_s).hourly_req_per_s)


def _shop(asked: Asked, effort: Effort) -> DayShop:
    question = asked.question
    levels = levels_of(_hourly(asked), asked.most_levels)
    studies = tuple(prepare(load_inputs(replace(question, rate_req_per_s=level.rate_req_per_s))) for level in levels)
    busiest = studies[0].problem.columns
    problems = tuple(replace(study.problem, columns=same_commands(study.problem.columns, busiest)) for study in studies)
    shops = tuple(
        Workshop(study.inputs, problem, Judge(study.inputs, effort))
        for study, problem in zip(studies, problems, strict=True)
    )
    kind_of = host_kinds_of(studies[0].inputs.fleet)
    return DayShop(levels, periods_of(levels), studies, problems, shops, asked.switching, effort, kind_of)


def _ways(options: ProgramOptions) -> list[ProgramOptions]:
    if options.mode != "auto":
        return [options]
    return [replace(options, mode="colocated"), replace(options, mode="disagg"), options]


def _alone(shop: DayShop, level: int, say: Progress) -> Outcome:
    """The best plan of one level by itself. Raises NoPlanError with its reasons."""
    start_s = time.perf_counter()
    outcomes = [shop.shops[level].best(options) for options in _ways(shop.problems[level].options)]
    shop.corrections[level] = [outcome.corrections for outcome in outcomes]
    best = min(outcomes, key=lambda outcome: outcome.score)
    rate = shop.levels[level].rate_req_per_s
    if not best.passed:
        reasons = [Problem(reason) for outcome in outcomes for reason in outcome.reasons]
        head = Problem(f"no plan serves the {rate:g} req/s of hours {hours_text(shop.levels[level].hours)}")
        raise NoPlanError([head, *dict.fromkeys(reasons)])
    for outcome in shop.shops[level].passed:
        if outcome.found is not None:
            shop.remember(level, outcome.found, outcome.corrections)
    say(f"{rate:g} req/s by itself: {best.in_words()} ({time.perf_counter() - start_s:.2f} s)")
    return best


def _learned(best: Outcome, ways: Sequence[Corrections]) -> Corrections:
    """What all ways learned of each column, at its worst; of the best plan's own columns, what it passed with."""
    factor: dict[str, float] = {}
    for corrections in ways:
        for name, value in corrections.factor.items():
            factor[name] = max(factor.get(name, value), value)
    for item in _found(best).solution.placed:
        factor[item.column] = best.corrections.factor.get(item.column, 1.0)
    return Corrections(factor)


def _together(shop: DayShop, learned: Mapping[int, Corrections], say: Progress) -> Iterator[Trial]:
    """Solve all periods as one program, judge its states, correct their levels (in `learned`), until all pass."""
    start_s = time.perf_counter()
    for _ in range(min(shop.effort.max_attempts, MOST_DAY_PROGRAMS)):
        day = solve_day(shop.corrected(learned), shop.periods, shop.switching, SEARCH_GAP_PERCENT)
        counts = () if day is None else [counts_of(*period) for period in zip(day.programs, day.values, strict=True)]
        trial = shop.trial(counts, learned) if counts else None
        if trial is None or isinstance(trial, Misfit):
            return
        for state, verdict in zip(trial.states, trial.verdicts, strict=True):
            if verdict.passed:
                shop.remember(state.level, state.found, learned[state.level])
            else:
                _, blame = shop.shops[state.level].judged(state.found)
                shop.shops[state.level].tighten(state.found, blame, learned[state.level])
        if trial.passed:
            say(f"all periods in one program: {trial.usd:.2f} $ ({time.perf_counter() - start_s:.2f} s)")
            yield trial
            return


def _from_known(shop: DayShop, learned: Mapping[int, Corrections], say: Progress) -> Iterator[Trial]:
    """The cheapest round through what has passed; what no longer passes when laid out beside its neighbours goes."""
    start_s = time.perf_counter()
    known = sorted(shop.passed, key=lambda choice: (choice.level, choice.usd_per_hour, choice.counts))
    while known:
        way = best_round(known, shop.periods, shop.switching, _facts(shop))
        if way is None:
            return
        trial = shop.trial([choice.counts for choice in way], _as_passed(shop, way, learned))
        if isinstance(trial, Trial) and trial.passed:
            say(f"through plans that passed: {trial.usd:.2f} $ ({time.perf_counter() - start_s:.2f} s)")
            yield trial
            return
        gone = {trial.counts} if isinstance(trial, Misfit) else _missing(trial)
        known = [choice for choice in known if choice.counts not in gone]


def _missing(trial: Trial) -> set[Counts]:
    return {state.counts for state, verdict in zip(trial.states, trial.verdicts, strict=True) if not verdict.passed}


def _facts(shop: DayShop) -> Facts:
    """Prices, sizes and free GPUs, by kind of host."""
    places = fleet_locations(shop.studies[0].inputs.fleet, "fleet")
    columns = {column.name: column for problem in shop.problems for column in problem.columns}
    keys = [(name, place) for name in columns for place in places]
    return Facts(
        price={(name, place.name): columns[name].num_gpus * place.usd_per_gpu_hour for name, place in keys},
        gpus={(name, place.name): columns[name].num_gpus for name, place in keys},
        free={place.name: place.num_gpus for place in places},
    )


def _as_passed(shop: DayShop, chosen: Sequence[Choice], known: Mapping[int, Corrections]) -> dict[int, Corrections]:
    """All that was learned, with the columns of chosen plans as they were when these passed."""
    learned = {level: Corrections(dict(own.factor)) for level, own in known.items()}
    seen: set[tuple[int, str]] = set()
    for choice in dict.fromkeys(chosen):
        for name, value in shop.passed[choice].items():
            factor = learned[choice.level].factor
            factor[name] = min(factor[name], value) if (choice.level, name) in seen else value
            seen.add((choice.level, name))
    return learned


def _steady(shop: DayShop, peak: Outcome, learned: Mapping[int, Corrections]) -> Trial:
    """The plan of the busiest level, all round."""
    assert peak.found is not None, "the busiest level has a plan"
    assert peak.verdict is not None, "that passed"
    state = State(0, counts_of_candidate(peak.found, shop.kind_of), peak.found)
    state_of = (0,) * len(shop.periods)
    kept = {**learned, 0: peak.corrections}
    return Trial((state,), state_of, (), (peak.verdict,), shop.cost((state,), state_of, ()), kept)


def _follow(shop: DayShop, alone: Sequence[Outcome]) -> float:
    """Dollars of a round with the cheapest plan of every period, counting moves by instances alone."""
    rent, moves = 0.0, 0.0
    for number, period in enumerate(shop.periods):
        now, before = _found(alone[period.level]), _found(alone[shop.periods[number - 1].level])
        rent += period.num_hours * now.solution.usd_per_hour
        ours, theirs = dict(now.counts), dict(before.counts)
        prices = {pool_name: price for one in (now, before) for pool_name, price in _prices(one).items()}
        for name in dict.fromkeys((*ours, *theirs)):
            more = ours.get(name, 0) - theirs.get(name, 0)
            cost = shop.switching.start_usd if more > 0 else shop.switching.stop_usd
            moves += abs(more) * cost(prices[name]) if more else 0.0
    return round(rent + moves, 6)


def _found(outcome: Outcome) -> Candidate:
    assert outcome.found is not None, "every level has a plan that passed"
    return outcome.found


def _prices(found: Candidate) -> dict[str, float]:
    """Dollars per hour of an instance, by column."""
    return {seat.column.name: seat.location.usd_per_gpu_hour * seat.column.num_gpus for seat in found.assignment.seats}


def _plan(shop: DayShop, trial: Trial, number: int) -> Plan:
    """The plan of one state: a question of its own, at the highest load it has to serve."""
    state = trial.states[number]
    own = shop.shops[state.level]
    options = shop.problems[state.level].options
    outcome = Outcome(state.found, trial.verdicts[number], corrections=trial.learned[state.level])
    plan = emit_plan(shop.studies[state.level], own, outcome, [Variant("", options, outcome)])
    if len(trial.states) == 1:
        return plan
    text = "one plan of a schedule: chosen with what switching costs, so another may be cheaper at this load alone"
    return plan.model_copy(update={"notes": (*plan.notes, text)})


def hours_text(hours: Sequence[int]) -> str:
    """ "0-5, 22-23"."""
    return index_ranges(hours).replace(",", ", ")
