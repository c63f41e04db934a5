"""The program over all periods against brute force, levels against all groupings, rounds against all rounds."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from splitplan.catalogs.errors import InputError
from splitplan.planner.program.types import ProgramInput
from splitplan.planner.schedule.choose import Choice, Facts, best_round
from splitplan.planner.schedule.joint import Switching, same_commands, solve_day
from splitplan.planner.schedule.periods import Level, Period, levels_of, periods_of
from tests.planner.program.brute_force import BruteForce, Filling
from tests.planner.program.fleets import PRICES, a_column, a_fleet, a_node, a_problem, a_rack

PRICE = PRICES["h100-sxm"]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    hourly=st.lists(st.sampled_from([0.0, 1.0, 2.0, 3.0, 5.0, 8.0]), min_size=2, max_size=9),
    most=st.integers(1, 4),
)
def test_levels_carry_the_least_load_on_top(hourly: list[float], most: int) -> None:
    """Over all ways to cut the sorted rates into groups; every hour is in one level at least as high as its rate."""
    if not any(hourly):
        with pytest.raises(InputError, match="no hour has any load"):
            levels_of(hourly, most)
        return
    levels = levels_of(hourly, most)
    assert sorted(hour for level in levels for hour in level.hours) == list(range(len(hourly)))
    assert all(hourly[hour] <= level.rate_req_per_s for level in levels for hour in level.hours)
    rates = sorted({rate for rate in hourly if rate})
    lowest = [max(rate, rates[0]) for rate in hourly]
    best = min(
        sum(min(top for top in tops if top >= rate) - rate for rate in lowest)
        for size in range(1, most + 1)
        for tops in itertools.combinations(rates, min(size, len(rates)))
        if tops[-1] == rates[-1]
    )
    at = {hour: level.rate_req_per_s for level in levels for hour in level.hours}
    assert sum(at[hour] - lowest[hour] for hour in at) == pytest.approx(best)


def test_periods_go_around_the_clock() -> None:
    """The night runs over midnight and is one period; the first one listed holds hour 0."""
    levels = levels_of((1, 1, 4, 4, 2, 1), 3)
    assert [(p.first_hour, p.num_hours, levels[p.level].rate_req_per_s) for p in periods_of(levels)] == [
        (5, 3, 1),
        (2, 2, 4),
        (4, 1, 2),
    ]
    assert periods_of((Level(3.0, (0, 1, 2)),)) == (Period(0, 3, 0),)


@st.composite
def days(draw: st.DrawFn) -> tuple[list[ProgramInput], list[Period], Switching]:
    """Two or three levels on one node of up to four GPUs: prompt-heavy or output-heavy, so that roles may switch."""
    gpus = draw(st.integers(2, 4))
    fleet = a_fleet([a_rack("r0", [a_node("n0", num_gpus=gpus)])])
    columns = [
        a_column("prefill", work=[draw(st.sampled_from([0.2, 0.3])), 0.1]),
        a_column("decode", work=[0.1, draw(st.sampled_from([0.2, 0.3]))]),
        a_column("colocated", tp=draw(st.sampled_from([1, 2])), work=[0.35, 0.4]),
    ]
    loads = draw(st.lists(st.tuples(*[st.sampled_from([0.5, 2.0, 4.0])] * 2), min_size=2, max_size=3))
    problems = [a_problem(fleet, columns, load) for load in loads]
    size = draw(st.integers(2, 3))
    levels = draw(st.lists(st.integers(0, len(loads) - 1), min_size=size, max_size=size))
    periods, hour = [], 0
    for level in levels:
        hours = draw(st.integers(1, 6))
        periods.append(Period(hour, hours, level))
        hour += hours
    move = draw(st.sampled_from([0.0, 1.0, 8.0, 40.0]))
    return problems, periods, Switching(move, draw(st.sampled_from([0.0, 900.0])), draw(st.sampled_from([0.0, 300.0])))


def cheapest_day(
    problems: list[ProgramInput], periods: list[Period], switching: Switching, *, side_by_side: bool
) -> float:
    """Every filling of the node that serves each period, in every combination."""
    oracles = [BruteForce(problem) for problem in problems]
    served = [[f for f in oracle.fillings() if oracle.rate_scale(f) >= 1 - 1e-7] for oracle in oracles]
    columns, free = problems[0].columns, problems[0].fleet.nodes[0].num_gpus
    best = float("inf")

    def moved(before: Filling, after: Filling) -> float:
        usd, held = 0.0, 0
        for column, old, new in zip(columns, before.counts[0], after.counts[0], strict=True):
            price = PRICE * column.num_gpus
            usd += max(0, new - old) * switching.start_usd(price) + max(0, old - new) * switching.stop_usd(price)
            held += max(old, new) * column.num_gpus
        return float("inf") if side_by_side and held > free else usd

    for way in itertools.product(*(served[period.level] for period in periods)):
        usd = sum(
            period.num_hours * oracles[period.level].dollars(filling)
            for period, filling in zip(periods, way, strict=True)
        )
        usd += sum(moved(way[number - 1], filling) for number, filling in enumerate(way))
        best = min(best, usd)
    return best


def limited(day: tuple[list[ProgramInput], list[Period], Switching]) -> bool:
    problems, periods, _ = day
    count = 1
    for period in periods:
        count *= len(BruteForce(problems[period.level]).fillings())
    return count <= 40_000


@settings(
    max_examples=80,
    phases=[Phase.generate],
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
@given(day=days().filter(limited))
def test_a_day_gets_the_optimum_of_brute_force(day: tuple[list[ProgramInput], list[Period], Switching]) -> None:
    """The same dollars as all combinations of fillings, side by side where any is, with moves at any price."""
    problems, periods, switching = day
    answer = solve_day(problems, periods, switching)
    best = cheapest_day(problems, periods, switching, side_by_side=True)
    if best == float("inf"):
        best = cheapest_day(problems, periods, switching, side_by_side=False)
    if answer is None:
        assert best == float("inf")
        return
    assert answer.usd == pytest.approx(best, abs=2e-3)
    assert answer.bound_usd <= best + 1e-6


def test_switching_pays_only_while_moves_are_cheap() -> None:
    """Two GPUs by day, one by night: at 1 $ a move the second stops for the night, at 40 $ it stays."""
    fleet = a_fleet([a_rack("r0", [a_node("n0", num_gpus=4)])])
    columns = [a_column("colocated", work=[0.5])]
    problems = [a_problem(fleet, columns, [4.0]), a_problem(fleet, columns, [2.0])]
    periods = [Period(0, 12, 0), Period(12, 8, 1)]
    cheap = solve_day(problems, periods, Switching(1.0, 0.0, 0.0))
    dear = solve_day(problems, periods, Switching(40.0, 0.0, 0.0))
    assert cheap is not None
    assert dear is not None
    assert cheap.usd == pytest.approx(PRICE * (24 + 8) + 2.0, abs=1e-2)
    assert dear.usd == pytest.approx(PRICE * 40, abs=1e-2)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    sizes=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(0, 2)), min_size=1, max_size=5),
    levels=st.lists(st.integers(0, 2), min_size=1, max_size=4),
    move=st.sampled_from([0.0, 2.0, 20.0]),
)
def test_the_best_round_is_the_best_of_all_rounds(
    sizes: list[tuple[int, int, int]], levels: list[int], move: float
) -> None:
    keys = (("a", "k"), ("b", "k"))
    choices = [
        Choice(level, tuple((key, n) for key, n in zip(keys, (a, b), strict=True) if n), 3.0 * a + 2.0 * b)
        for level, a, b in sizes
    ]
    facts = Facts({keys[0]: 3.0, keys[1]: 2.0}, {keys[0]: 1, keys[1]: 1}, {"k": 100})
    periods = [Period(n, 1 + n, level) for n, level in enumerate(levels)]
    switching = Switching(move, 600.0, 60.0)

    def usd(way: tuple[Choice, ...]) -> float:
        total = sum(p.num_hours * c.usd_per_hour for p, c in zip(periods, way, strict=True))
        for number, choice in enumerate(way):
            before, after = dict(way[number - 1].counts), dict(choice.counts)
            for key in keys:
                more = after.get(key, 0) - before.get(key, 0)
                cost = switching.start_usd if more > 0 else switching.stop_usd
                total += abs(more) * cost(facts.price[key]) if more else 0.0
        return total

    ways = itertools.product(*([c for c in choices if c.level <= p.level] for p in periods))
    best = min((usd(way) for way in ways), default=None)
    found = best_round(choices, periods, switching, facts)
    assert (found is None) == (best is None)
    if found is not None:
        assert usd(found) == pytest.approx(best)


def test_levels_run_the_commands_of_the_busiest() -> None:
    """A column whose batch differs at a lower load takes that of the busiest, and the slower estimate."""
    quiet = [a_column("decode", work=[0.3], max_num_seqs=32), a_column("prefill", work=[0.2])]
    busy = [a_column("decode", work=[0.25], max_num_seqs=64), a_column("prefill", work=[0.1])]
    changed = same_commands(tuple(quiet), tuple(busy))
    assert (changed[0].max_num_seqs, float(changed[0].work_s_per_request[0])) == (64, 0.3)
    assert float(changed[1].work_s_per_request[0]) == 0.2
