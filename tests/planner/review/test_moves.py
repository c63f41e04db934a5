"""The order of moves from one plan to the next."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from splitplan.planner.program.rounding import served_share
from splitplan.planner.review.moves import Unit, order_moves
from tests.planner.program.fleets import a_column, a_fleet, a_node, a_problem, a_rack

SMALL, LARGE = "colocated h100-sxm tp1", "colocated h100-sxm tp2"
FLEET = a_fleet([a_rack("r0", [a_node("n0", num_gpus=4)])])
COLUMNS = [a_column("colocated", tp=1, work=[0.2]), a_column("colocated", tp=2, work=[0.1])]


def unit(column: str, *gpus: int) -> Unit:
    return Unit(column, tuple(("n0", gpu) for gpu in gpus))


def test_starts_come_before_stops() -> None:
    """Two small instances become one large one on free GPUs: it starts first, and nothing is ever short."""
    problem = a_problem(FLEET, COLUMNS, [10.0])
    moves = order_moves(problem, [unit(SMALL, 0), unit(SMALL, 1)], [unit(LARGE, 2, 3)])
    assert [move.action for move in moves] == ["start", "stop", "stop"]
    assert all(move.safe for move in moves)
    assert moves[-1].served == pytest.approx(1.0)


def test_a_stop_that_frees_gpus_waits_for_spare_capacity() -> None:
    """The GPUs of a new large one are held by small ones: a spare one elsewhere starts first, then they may go."""
    problem = a_problem(FLEET, COLUMNS, [10.0])
    before = [unit(SMALL, 0), unit(SMALL, 2)]
    after = [unit(LARGE, 0, 1), unit(SMALL, 3)]
    moves = order_moves(problem, before, after)
    assert (moves[0].action, moves[0].unit) == ("start", unit(SMALL, 3))
    assert all(move.safe for move in moves)


def test_a_drop_that_cannot_be_avoided_is_told() -> None:
    """All GPUs are full and all must change: the first stop serves less, and says how much."""
    problem = a_problem(FLEET, COLUMNS, [20.0])
    before = [unit(LARGE, 0, 1), unit(LARGE, 2, 3)]
    moves = order_moves(problem, before, [unit(SMALL, gpu) for gpu in range(4)])
    assert not moves[0].safe
    assert moves[0].served == pytest.approx(0.5)


def test_what_the_load_has_outgrown_is_not_a_drop() -> None:
    """One instance serves half of the new load already; growing to two never serves less than that."""
    problem = a_problem(FLEET, COLUMNS, [10.0])
    moves = order_moves(problem, [unit(SMALL, 0)], [unit(SMALL, 0), unit(SMALL, 1)])
    assert [(move.action, move.safe, move.served) for move in moves] == [("start", True, pytest.approx(1.0))]


def test_unknown_instances_hold_their_gpus_and_serve_nothing() -> None:
    """An instance of a column nobody knows is stopped before its GPU is used again."""
    problem = a_problem(FLEET, COLUMNS, [5.0])
    moves = order_moves(problem, [unit("old", 0), unit(SMALL, 1)], [unit(SMALL, 0), unit(SMALL, 1)])
    assert [(move.action, move.unit.column) for move in moves] == [("stop", "old"), ("start", SMALL)]


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    before=st.lists(st.sampled_from([(0,), (1,), (2,), (3,), (0, 1), (2, 3)]), max_size=4),
    after=st.lists(st.sampled_from([(0,), (1,), (2,), (3,), (0, 1), (2, 3)]), max_size=4),
    rate=st.sampled_from([4.0, 9.0, 14.0]),
)
def test_moves_lead_from_one_side_to_the_other(
    before: list[tuple[int, ...]], after: list[tuple[int, ...]], rate: float
) -> None:
    """GPUs are never held twice, the end is the new plan, and each served share is what the program itself says."""
    sides = []
    for side in (before, after):
        units, taken = [], set[int]()
        for gpus in side:
            if taken.isdisjoint(gpus):
                taken |= set(gpus)
                units.append(unit(LARGE if len(gpus) == 2 else SMALL, *gpus))
        sides.append(units)
    problem = a_problem(FLEET, COLUMNS, [rate])
    state = list(sides[0])
    for move in order_moves(problem, *sides):
        if move.action == "start":
            state.append(move.unit)
        else:
            state.remove(move.unit)
        held = list(itertools.chain.from_iterable(one.slots for one in state))
        assert len(held) == len(set(held))
        counts: dict[tuple[int, str], int] = {}
        for one in state:
            key = (0 if one.column == SMALL else 1, "r0")
            counts[key] = counts.get(key, 0) + 1
        served = served_share(problem, problem.columns, counts) if counts else 0.0
        assert move.served == pytest.approx(served, abs=1e-6)
    assert sorted(state, key=str) == sorted(sides[1], key=str)
