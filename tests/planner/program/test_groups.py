"""Length buckets in the program: each class in one group of classes, taken in proportion; against brute force."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from splitplan.planner.columns.column import Column
from splitplan.planner.program.groups import group_of
from splitplan.planner.program.solve import solve_program
from splitplan.planner.program.types import Infeasible, ProgramInput, ProgramSolution
from tests.planner.program.brute_force import BruteForce, Filling
from tests.planner.program.fleets import PRICES, a_column, a_fleet, a_node, a_problem, a_rack
from tests.planner.program.test_brute_force import WORKS, fleets

MAX_FILLINGS = 1500
RUNS = ((0,), (1,), (0, 1))


def for_run(column: Column, run: tuple[int, ...], work: dict[int, float]) -> Column:
    """The column as one worked out for the classes of a run."""
    bounds = (100 if 0 not in run else 0, 0 if 1 in run else 100)
    values = np.array([work[b] if b in run else np.inf for b in range(2)])
    name = f"{column.name} {run}"
    return replace(column, name=name, work_s_per_request=values, above_tokens=bounds[0], up_to_tokens=bounds[1])


class GroupedBruteForce(BruteForce):
    """Every way to pick groups; an instance serves one share of all classes of its group."""

    def rate_scale(self, filling: Filling) -> float:
        """The same groups serve whatever is left of the fleet."""
        return max(
            (
                min(self._of_partition(state, *pair) for state in self.states(filling))
                for pair in self._partitions(filling)
            ),
            default=0.0,
        )

    def _partitions(self, filling: Filling) -> Iterator[tuple[dict[int, tuple[int, ...]], dict[int, tuple[int, ...]]]]:
        """For both stages the group that serves each class; none may be in two."""
        used = [c for c in range(len(self.columns)) if any(counts[c] for counts in filling.counts)]
        stages = []
        for decode in (False, True):
            groups = {group_of(self.columns[c]) for c in used if (self.columns[c].role == "decode") == decode}
            if any(set(one) & set(other) for one, other in itertools.combinations(groups, 2)):
                return
            stages.append({b: group for group in groups for b in group})
        yield stages[0], stages[1]

    def _of_partition(
        self, filling: Filling, entry: dict[int, tuple[int, ...]], decode: dict[int, tuple[int, ...]]
    ) -> float:
        """Rates as shares of the asked ones: every instance has one share for all classes of its group."""
        from scipy.optimize import linprog

        rate = self.problem.rate_req_per_s
        if any(rate[b] > 0 and b not in entry for b in range(2)):
            return 0.0
        placed = [(i, c) for i, counts in enumerate(filling.counts) for c, count in enumerate(counts) if count]
        share = {place: 1 + number for number, place in enumerate(placed)}
        size, equal, upper, limits = 1 + len(placed), [], [], []
        flows: list[tuple[tuple[int, int], tuple[int, int], int]] = []
        for b in range(2):
            flows += [(s, t, b) for s in placed for t in placed if self._may_feed(s, t, b)]
        width = size + len(flows)

        def row(terms: dict[int, float]) -> np.ndarray:
            values = np.zeros(width)
            for variable, value in terms.items():
                values[variable] += value
            return values

        for b in range(2):
            if rate[b] <= 0:
                continue
            takes = [p for p in placed if self.columns[p[1]].role != "decode" and b in group_of(self.columns[p[1]])]
            equal.append(row({0: -1.0} | {share[p]: 1.0 for p in takes}))
            for place in placed:
                column = self.columns[place[1]]
                if column.role == "colocated" or b not in group_of(column):
                    continue
                end = 0 if column.role == "prefill" else 1
                mine = {size + k: 1.0 for k, flow in enumerate(flows) if flow[end] == place and flow[2] == b}
                equal.append(row({share[place]: -1.0} | mine))
        for place in placed:
            group = group_of(self.columns[place[1]])
            upper.append(row({share[place]: sum(self._work(place, b) * rate[b] for b in group)}))
            limits.append(float(filling.counts[place[0]][place[1]]))
        for link, limit in self._limits().items():
            loads = {
                size + k: self._sent(flow) * rate[flow[2]] for k, flow in enumerate(flows) if link in self._way(flow)
            }
            upper.append(row(loads))
            limits.append(limit)
        objective = row({0: -1.0})
        answer = linprog(
            objective, np.array(upper), limits, np.array(equal), np.zeros(len(equal)), bounds=[(0, 1e4)] * width
        )
        return float(answer.x[0]) if answer.status == 0 else 0.0

    def _sent(self, flow: tuple[tuple[int, int], tuple[int, int], int]) -> float:
        return float(self.problem.kv_bytes_per_request["bf16"][flow[2]]) / 1e9

    def _way(self, flow: tuple[tuple[int, int], tuple[int, int], int]) -> set[tuple[str, str]]:
        start, end = self.nodes[flow[0][0]], self.nodes[flow[1][0]]
        if start is end:
            return set()
        links = {("out", start.name), ("in", end.name)}
        return links if start.rack == end.rack else links | {("up", start.rack), ("down", end.rack), ("spine", "")}

    def _limits(self) -> dict[tuple[str, str], float]:
        found = {}
        for node in self.nodes:
            found |= {(way, node.name): node.nic_bytes_per_s * self.share / 1e9 for way in ("out", "in")}
        for rack in self.problem.fleet.racks:
            if rack.uplink_bytes_per_s is not None:
                found |= {(way, rack.name): rack.uplink_bytes_per_s * self.share / 1e9 for way in ("up", "down")}
        if self.problem.fleet.spine_bytes_per_s is not None:
            found["spine", ""] = self.problem.fleet.spine_bytes_per_s * self.share / 1e9
        return found


@st.composite
def problems(draw: st.DrawFn) -> ProgramInput:
    """Two buckets; columns of random roles for one of them or both, faster at what they were made for or not."""
    fleet = draw(fleets())
    columns = []
    for number in range(draw(st.integers(3, 4))):
        role = (
            ("prefill", "decode", "colocated", "prefill")[number]
            if number < 2
            else draw(st.sampled_from(["prefill", "decode", "colocated"]))
        )
        gpu, size = draw(st.sampled_from(tuple(fleet.num_gpus))), draw(st.sampled_from([1, 1, 2]))
        work = {b: draw(st.sampled_from(WORKS)) / size for b in range(2)}
        column = a_column(role, gpu, size, (1.0, 1.0), name=f"c{number} {role}", watts=400.0 * size)
        columns.append(for_run(column, draw(st.sampled_from(RUNS)), work))
    rate = [draw(st.sampled_from([0.5, 1.0, 2.0, 3.0])) for _ in range(2)]
    kv_gb = [draw(st.sampled_from([0.1, 0.4])), draw(st.sampled_from([0.4, 1.0]))]
    objective = draw(st.sampled_from(["cost", "cost", "goodput", "power"]))
    fleet = replace(fleet, price_tiers=())
    survive = draw(st.sampled_from(["", "", "", "rack", "node"]))
    return a_problem(fleet, columns, rate, kv_gb=kv_gb, objective=objective, class_groups=True, survive=survive)


def limited(problem: ProgramInput) -> bool:
    """Small enough to enumerate in the time a test has."""
    oracle, count = BruteForce(problem), 1
    for node in problem.fleet.nodes:
        count *= sum(1 for _ in oracle._node_fillings(node))
    return count <= (150 if problem.options.objective == "goodput" else MAX_FILLINGS)


@settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
@given(problem=problems().filter(limited))
def test_same_optimum_as_brute_force_over_all_groups(problem: ProgramInput) -> None:
    """Cost and power: same value, same GPUs; goodput: same rate scale; no plan exactly when there is none."""
    oracle, answer = GroupedBruteForce(problem), solve_program(problem)
    if problem.options.objective == "goodput":
        value = 0.0 if isinstance(answer, Infeasible) else answer.value
        assert value == pytest.approx(oracle.most(), rel=1e-5, abs=1e-6)
        return
    expected = oracle.least(problem.options.objective)
    if expected is None:
        assert isinstance(answer, Infeasible)
        return
    assert not isinstance(answer, Infeasible), answer.reasons
    assert (answer.value, answer.num_gpus) == (pytest.approx(expected[0], abs=1e-5), expected[1])


def two_types(**options: object) -> ProgramInput:
    """Short prompts are cheap on L40S, long ones only bearable on H100; a column for both is slow at either."""
    fleet = a_fleet([a_rack("r0", [a_node("h0"), a_node("l0", "l40s")])])
    columns = [
        for_run(a_column("colocated", gpu, 1, (1.0, 1.0)), run, work)
        for gpu, work in (("h100-sxm", {0: 0.05, 1: 0.2}), ("l40s", {0: 0.1, 1: 1.5}))
        for run in RUNS
    ]
    return a_problem(fleet, columns, (10.0, 5.0), class_groups=True, **options)


def solved(problem: ProgramInput) -> ProgramSolution:
    answer = solve_program(problem)
    assert isinstance(answer, ProgramSolution), answer
    return answer


def test_short_prompts_go_to_one_type_and_long_ones_to_another() -> None:
    """Mélange's idea: one L40S takes the short prompts, one H100 the long ones; together it takes two more L40S."""
    apart, together = solved(two_types()), solved(two_types(whole_groups=True))
    assert apart.usd_per_hour == pytest.approx(PRICES["h100-sxm"] + PRICES["l40s"])
    assert together.usd_per_hour == pytest.approx(PRICES["h100-sxm"] + 3 * PRICES["l40s"])
    assert {placed.column: placed.rate_req_per_s for placed in apart.placed} == {
        "colocated h100-sxm tp1 (1,)": (0.0, 5.0),
        "colocated l40s tp1 (0,)": (10.0, 0.0),
    }


def test_a_column_for_both_buckets_does_not_pick_one_of_them() -> None:
    """Without the rule the program would give the short prompts of a mixed column to the L40S and call it served."""
    problem = two_types(whole_groups=True)
    free = solved(replace(problem, options=replace(problem.options, class_groups=False)))
    assert free.usd_per_hour < solved(problem).usd_per_hour


def test_buckets_are_never_dearer_than_without() -> None:
    """Whatever the targets and prices: columns for all prompts are among those the program may pick."""
    for price in (0.5, 2.0, 6.0):
        problem = two_types()
        fleet = replace(problem.fleet, usd_per_gpu_hour={**problem.fleet.usd_per_gpu_hour, "l40s": price})
        problem = replace(problem, fleet=fleet)
        whole = replace(problem, options=replace(problem.options, whole_groups=True))
        assert solved(problem).usd_per_hour <= solved(whole).usd_per_hour + 1e-9


def test_whole_classes_and_groups_hold_together() -> None:
    """A bucket that may not be split over columns is prefilled by one column of its one group."""
    answer = solved(two_types(whole_classes=True))
    for b in range(2):
        assert len({placed.column for placed in answer.placed if placed.rate_req_per_s[b] > 0}) == 1
