"""NICs of hosts that the program merges: what is planned fits the NICs of the hosts it is assigned to."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from splitplan.planner.place.assign import assign
from splitplan.planner.place.routes import overloaded_links
from splitplan.planner.program import nics
from splitplan.planner.program.limits import binding_in_words
from splitplan.planner.program.solve import solve_program
from splitplan.planner.program.types import ProgramInput, ProgramSolution
from splitplan.planner.program.verify import verify
from splitplan.planner.spec.fleet import Fleet
from tests.planner.program.fleets import a_column, a_fleet, a_node, a_problem, a_rack


def racks_of_four(nic_bytes_per_s: float) -> Fleet:
    racks = [
        a_rack(
            f"r{r}",
            [a_node(f"r{r}n{i}", rack=f"r{r}", nic_bytes_per_s=nic_bytes_per_s) for i in range(4)],
            uplink_bytes_per_s=None,
        )
        for r in range(2)
    ]
    return a_fleet(racks)


def solved(problem: ProgramInput) -> ProgramSolution:
    answer = solve_program(problem)
    assert isinstance(answer, ProgramSolution), answer
    return answer


def test_one_instance_cannot_use_the_nics_of_its_whole_rack() -> None:
    """10 GB/s of KV from TP8 prefill: one host sends 4.8 GB/s of its 8, so three instances are needed, not one."""
    columns = [a_column("prefill", tp=8, work=[0.1]), a_column("decode", tp=8, work=[0.02])]
    problem = a_problem(racks_of_four(8e9), columns, [10.0], kv_gb=[1.0], granularity="rack")
    solution = solved(problem)
    counts = {role: sum(p.instances for p in solution.placed if p.role == role) for role in ("prefill", "decode")}
    assert counts == {"prefill": 3, "decode": 3}
    assert overloaded_links(problem, assign(problem, solution).link_loads) == []
    fewer = tuple(replace(placed, instances=1, utilisation=1.0) for placed in solution.placed)
    assert any("nodes in use" in text for text in verify(problem, replace(solution, placed=fewer)).failures)


def test_what_is_planned_fits_the_hosts_it_is_assigned_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """40 random questions over merged hosts: no NIC of the concrete graph carries more than planned, or it is said.

    Some of them need the second solve, with fair NICs; the value is never below the bound of the first.
    """
    again = []
    fair = nics.with_fair_nics
    monkeypatch.setattr(
        "splitplan.planner.program.solve.with_fair_nics", lambda problem: again.append(problem) or fair(problem)
    )
    rng, said = np.random.default_rng(7), 0
    for _ in range(40):
        columns = [
            a_column("prefill", tp=int(rng.choice([1, 2, 4])), work=[0.1]),
            a_column("prefill", tp=8, work=[0.02]),
            a_column("decode", tp=int(rng.choice([1, 2, 4])), work=[0.1]),
        ]
        fleet = racks_of_four(float(rng.choice([4e9, 8e9, 16e9])))
        problem = a_problem(fleet, columns, [float(rng.uniform(5, 40))], kv_gb=[0.4], granularity="rack")
        answer = solve_program(problem)
        if isinstance(answer, ProgramSolution):
            over = overloaded_links(problem, assign(problem, answer).link_loads)
            assert not over or any("more KV than planned" in note for note in answer.notes)
            assert answer.bound <= answer.value + 1e-9
            said += bool(over)
    assert again
    assert said <= 4


def test_nics_nobody_needs_hold_nothing_back() -> None:
    """Places without instances are not named among the limits; a NIC that is full is, in words."""
    columns = [a_column("prefill", tp=8, work=[0.1]), a_column("decode", tp=8, work=[0.02])]
    wide = a_problem(racks_of_four(8e11), columns, [10.0], kv_gb=[1.0], granularity="rack")
    assert not any(entry.constraint.startswith("nic") for entry in solved(wide).binding)
    narrow = a_problem(racks_of_four(4e9), columns, [4.5], kv_gb=[1.0], granularity="rack")
    full = [entry for entry in solved(narrow).binding if entry.constraint.startswith("nic_used")]
    assert full
    assert "KV transfer fills the NICs in use" in binding_in_words(full[0], 0.6)
