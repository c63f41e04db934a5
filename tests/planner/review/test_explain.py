"""Explanations: what binds, what more would bring, who came second, why a type is idle."""

from __future__ import annotations

from dataclasses import replace

import pytest

from splitplan.planner.program.limits import merged_sentences
from splitplan.planner.program.solve import solve_program
from splitplan.planner.program.types import Binding, Placed, ProgramInput, ProgramSolution
from splitplan.planner.review.explain import Question, Variant, about, explain
from tests.planner.program.fleets import a_column, a_fleet, a_node, a_problem, a_rack, four_racks


def asked(problem: ProgramInput, **changes: object) -> Question:
    solution = solve_program(problem)
    assert isinstance(solution, ProgramSolution)
    return replace(Question(problem, solution), **changes)  # type: ignore[arg-type]


def test_one_more_node_is_worth_what_it_saves() -> None:
    """Eight A100 carry half the load, H100 at 4.76 the rest: another A100 node saves 4 x 4.76 - 8 x 2.21 = 1.36 $/h."""
    racks = [
        a_rack("r1", [a_node("h1", rack="r1")]),
        a_rack("r2", [a_node("a1", "a100-sxm-80", rack="r2")]),
    ]
    columns = [a_column("colocated", work=[0.1]), a_column("colocated", "a100-sxm-80", work=[0.2])]
    answer = explain(asked(a_problem(a_fleet(racks), columns, [80.0])))
    worth = {entry.change: entry.gain for entry in answer.worth}
    assert worth["one more a100-sxm-80 node (8 GPUs) in rack r2"] == pytest.approx(4 * 4.76 - 8 * 2.21)
    assert worth["one more h100-sxm node (8 GPUs) in rack r1"] == pytest.approx(0.0)
    assert worth["10 % less load"] == pytest.approx(2.21)
    assert answer.worth[0].gain == max(worth.values())


def test_runner_up_and_the_price_at_which_it_wins() -> None:
    """Two A100 at 2.21 beat one H100 at 4.76 by 0.34 $/h; above 2.38 each, or below 4.42 for the H100, they do not."""
    columns = [a_column("colocated", work=[0.2]), a_column("colocated", "a100-sxm-80", work=[0.4])]
    runner = explain(asked(a_problem(four_racks(), columns, [5.0]))).runner_up
    assert runner is not None
    assert runner.without == "colocated on a100-sxm-80"
    assert runner.more == pytest.approx(0.34)
    assert set(runner.wins_when) == {
        "h100-sxm below 4.42 $/GPU/h (now 4.76)",
        "a100-sxm-80 above 2.38 $/GPU/h (now 2.21)",
    }


def test_an_unused_type_names_its_entry_price() -> None:
    """The price found is the true threshold: a cent below it the type is used, a cent above it is not."""
    columns = [a_column("colocated", work=[0.2]), a_column("colocated", "a100-sxm-80", work=[0.4])]
    problem = a_problem(four_racks(), columns, [13.0])
    question = asked(problem)
    unused = {entry.gpu: entry for entry in explain(question).unused}
    assert set(unused) == {"h100-sxm", "l40s"}
    assert "no kind of instance on it" in unused["l40s"].reason
    price = unused["h100-sxm"].enters_at_usd_per_gpu_hour
    assert price is not None
    for change, used in ((-0.01, True), (0.01, False)):
        prices = {**problem.fleet.usd_per_gpu_hour, "h100-sxm": price + change}
        again = solve_program(replace(problem, fleet=replace(problem.fleet, usd_per_gpu_hour=prices)))
        assert isinstance(again, ProgramSolution)
        assert any("h100" in placed.column for placed in again.placed) == used


def test_a_binding_uplink_is_named_and_priced() -> None:
    """7.95 of 12 req/s get out to cheap decodes, too few for one dear one to do the rest; 10 % more and it can."""
    near = [a_node("h0", rack="r0"), a_node("a0", "a100-sxm-80", rack="r0", price_usd_per_gpu_hour=4.0)]
    far = [a_node("a1", "a100-sxm-80", rack="r1", price_usd_per_gpu_hour=1.0)]
    racks = [a_rack("r0", near, uplink_bytes_per_s=5.3e9), a_rack("r1", far, uplink_bytes_per_s=None)]
    columns = [a_column("prefill", work=[0.1]), a_column("decode", "a100-sxm-80", work=[0.25])]
    answer = explain(asked(a_problem(a_fleet(racks), columns, [12.0])))
    worth = {entry.change: entry.gain for entry in answer.worth}
    assert worth["10 % more on every rack uplink"] == pytest.approx(3.0)
    alone = [a_rack("r0", near[:1], uplink_bytes_per_s=5.3e9), racks[1]]
    answer = explain(asked(a_problem(a_fleet(alone), columns, [7.9])))
    assert any("rack uplink out of r0" in line for line in answer.binding)


def test_other_targets_are_priced_as_variants() -> None:
    """A variant with faster columns (looser targets) says what the looser target saves."""
    columns = [a_column("colocated", work=[0.25])]
    problem = a_problem(four_racks(), columns, [8.0])
    looser = replace(problem, columns=(a_column("colocated", work=[0.125]),))
    question = asked(problem, variants=(Variant("50 ms more TTFT", looser),))
    worth = {entry.change: entry for entry in explain(question).worth}
    assert str(worth["50 ms more TTFT"]) == "50 ms more TTFT: saves 4.76 $/h"


def test_goodput_is_explained_in_load() -> None:
    """For a given fleet, one more node is worth the load it adds."""
    fleet = a_fleet([a_rack("r0", [a_node("n0")])])
    question = asked(a_problem(fleet, [a_column("colocated", work=[0.2])], [40.0], objective="goodput"))
    worth = {entry.change: str(entry) for entry in explain(question).worth}
    name = "one more h100-sxm node (8 GPUs) in rack r0"
    assert worth[name] == f"{name}: serves 100 % of the load more"


def test_about_one_component() -> None:
    """A rack, a GPU type or a column name gets its own lines; an unknown name gets none."""
    columns = [a_column("prefill", "l40s", work=[0.5]), a_column("decode", "a100-sxm-80", work=[0.4])]
    question = asked(a_problem(four_racks(), columns, [5.0]))
    assert any("decode a100-sxm-80 tp1" in line for line in about(question, "r2"))
    assert about(question, "a100-sxm-80")
    assert any("no kind of instance" in line for line in about(question, "h100-sxm"))
    assert about(question, "r99") == []


def test_places_of_one_column_are_told_together() -> None:
    """Four full places make one sentence with all instances; column names with commas are read right."""
    name = "prefill h100-sxm tp1, KV within the rack"
    placed = [Placed(name, "prefill", f"n{i}", "r0", 2, (1.0,), 0.9) for i in range(5)]
    binding = [Binding(f"instance_time[{name}, n{i}]", 0.1) for i in range(3)]
    binding.append(Binding("rack_uplink_out[r0]", 0.2))
    assert merged_sentences(placed, binding, 0.6) == [
        f"6 x {name} at n0, n1, n2: full first when load grows",
        "KV transfer fills the rack uplink out of r0 (planned at 60 % of line rate)",
    ]
