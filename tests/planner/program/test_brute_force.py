"""The program against brute force on random small instances: same optimum, every objective, every kind of limit."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from splitplan.planner.columns.column import Column
from splitplan.planner.program.solve import solve_program
from splitplan.planner.program.types import Infeasible, ProgramInput
from splitplan.planner.spec.fleet import Fleet, PriceTier
from tests.planner.program.brute_force import BruteForce, allowed_by_dtype
from tests.planner.program.fleets import PRICES, a_column, a_fleet, a_mixed_column, a_node, a_problem, a_rack

MAX_FILLINGS = 3000
GPUS = ("h100-sxm", "a100-sxm-80")
WORKS = (0.1, 0.15, 0.2, 0.3, 0.45, 0.7)


@st.composite
def fleets(draw: st.DrawFn) -> Fleet:
    """One to three nodes of one to four GPUs in one or two racks, with thin or wide links and tight or no power."""
    racks = []
    number = 0
    for r in range(2):
        nodes = []
        for _ in range(draw(st.integers(1, 2)) if r == 0 else 1):
            gpu, size = draw(st.sampled_from(GPUS)), draw(st.integers(2, 4))
            nic = draw(st.sampled_from([0.0, 1e9, 2e9, 5e10, 5e10]))
            nodes.append(a_node(f"n{number}", gpu, size, rack=f"r{r}", nic_bytes_per_s=nic, host_watts=500.0))
            number += 1
        power = draw(st.sampled_from([None, None, None, 500.0 * len(nodes) + 900.0 * len(nodes)]))
        uplink = draw(st.sampled_from([None, 5e8, 1e9, 4e9]))
        racks.append(a_rack(f"r{r}", nodes, power_limit_watts=power, uplink_bytes_per_s=uplink))
    tiers = [
        PriceTier(gpu, kind, price, "test", most)
        for gpu in GPUS
        for kind, price, most in (("spot", draw(st.sampled_from([1.0, 2.5])), 2), ("on_demand", PRICES[gpu], 3))
    ]
    return a_fleet(racks, spine_bytes_per_s=draw(st.sampled_from([None, 1e9])), price_tiers=tuple(tiers))


@st.composite
def column_sets(draw: st.DrawFn, num_classes: int, gpus: tuple[str, ...]) -> list[Column]:
    """Two to four columns of random roles, types, sizes (1 to 3 GPUs), dtypes, reach and speed."""
    roles = draw(
        st.sampled_from([("prefill", "decode"), ("prefill", "decode", "colocated"), ("prefill", "prefill", "decode")])
    )
    columns = []
    for number, role in enumerate(roles):
        gpu = draw(st.sampled_from(gpus))
        size = draw(st.sampled_from([1, 1, 2, 3]))
        work = [draw(st.sampled_from(WORKS)) / size for _ in range(num_classes)]
        if num_classes > 1 and draw(st.integers(0, 5)) == 0:
            work[0] = np.inf
        columns.append(
            a_column(
                role,
                gpu,
                size,
                work,
                name=f"c{number} {role}",
                kv_dtype=draw(st.sampled_from(["bf16", "bf16", "bf16", "bf16", "fp8"])),
                transfer_reach=draw(st.sampled_from(["fleet", "fleet", "fleet", "rack", "node"])),
                watts=draw(st.sampled_from([300.0, 400.0, 700.0])) * size,
            )
        )
    return columns


@st.composite
def problems(draw: st.DrawFn) -> ProgramInput:
    """A small problem with an objective, and now and then a budget, a power limit or failures to survive."""
    num_classes = draw(st.integers(1, 2))
    rate = [draw(st.sampled_from([1.0, 2.0, 3.0, 4.5])) for _ in range(num_classes)]
    kv_gb = [draw(st.sampled_from([0.1, 0.4])) for _ in range(num_classes)]
    objective = draw(st.sampled_from(["cost", "cost", "goodput", "power"]))
    weights = draw(st.sampled_from([None, tuple(2.0 + b for b in range(num_classes))]))
    survive = draw(st.sampled_from(["", "", "", "", "rack", "node"]))
    fleet = draw(fleets())
    return replace(
        a_problem(
            fleet,
            draw(column_sets(num_classes, tuple(fleet.num_gpus))),
            rate,
            kv_gb=kv_gb,
            objective=objective,
            survive=survive,
            budget_usd_per_hour=draw(st.sampled_from([None, None, None, 15.0])),
            price_kinds=("on_demand", "spot") if draw(st.integers(0, 3)) == 0 else (),
            class_weights=weights if objective == "goodput" and not survive else None,
            max_power_watts=draw(st.sampled_from([None, None, None, 3000.0])),
        ),
        pairs_allowed=allowed_by_dtype,
    )


@st.composite
def mixed_problems(draw: st.DrawFn) -> ProgramInput:
    """A problem whose first rack has nodes of both types, and one or two pipelines over them, TP 1 or 2."""
    problem = draw(problems())
    size = st.integers(2, 3)
    nodes = [a_node("m0", GPUS[0], draw(size), host_watts=500.0), a_node("m1", GPUS[1], draw(size), host_watts=500.0)]
    if draw(st.booleans()):
        nodes.append(a_node("m2", draw(st.sampled_from(GPUS)), 2, host_watts=500.0))
    limits = {"power_limit_watts": draw(st.sampled_from([None, None, 3500.0])), "uplink_bytes_per_s": None}
    fleet = replace(problem.fleet, racks=(a_rack("r0", nodes, **limits), problem.fleet.racks[-1]))
    columns = list(problem.columns)
    for number in range(draw(st.integers(1, 2))):
        gpus = draw(st.sampled_from([GPUS, GPUS[::-1], (GPUS[0], GPUS[1], GPUS[1])]))
        tp = draw(st.sampled_from([1, 1, 2]))
        role = draw(st.sampled_from(["colocated", "colocated", "prefill", "decode"]))
        work = [draw(st.sampled_from(WORKS)) / 2 for _ in problem.class_names]
        columns.append(a_mixed_column(role, gpus, tp, work, name=f"mixed{number} {role}", watts=900.0 * tp))
    return replace(problem, fleet=fleet, columns=tuple(columns))


def limited(problem: ProgramInput) -> bool:
    """Small enough to enumerate in the time a test has."""
    count = 1
    oracle = BruteForce(problem)
    for node in problem.fleet.nodes:
        count *= sum(1 for _ in oracle._node_fillings(node))
    count *= sum(1 for _ in itertools.islice(oracle._mixed_fillings(), MAX_FILLINGS))
    return count <= (250 if problem.options.objective == "goodput" else MAX_FILLINGS)


@settings(
    max_examples=300,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
@given(problem=problems().filter(limited))
def test_same_optimum_as_brute_force(problem: ProgramInput) -> None:
    """Cost, power: same value, same GPUs. Goodput: same rate scale. No plan exactly when there is none."""
    same_optimum(problem)


@settings(
    max_examples=100,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
@given(problem=mixed_problems().filter(limited))
def test_mixed_pipelines_have_the_optimum_of_brute_force(problem: ProgramInput) -> None:
    """The same with pipelines that take GPUs of two types in one rack: every way to place every stage is tried."""
    same_optimum(problem)


def same_optimum(problem: ProgramInput) -> None:
    oracle, answer = BruteForce(problem), solve_program(problem)
    if problem.options.objective == "goodput":
        most = oracle.most()
        if isinstance(answer, Infeasible):
            assert most == pytest.approx(0.0, abs=1e-6)
        else:
            assert answer.value == pytest.approx(most, rel=1e-5)
        return
    expected = oracle.least(problem.options.objective)
    if expected is None:
        assert isinstance(answer, Infeasible)
        assert answer.max_rate_scale < 1.0
        return
    assert not isinstance(answer, Infeasible), answer.reasons
    assert (answer.value, answer.num_gpus) == (pytest.approx(expected[0], abs=1e-5), expected[1])
    assert answer.status == "optimal"
