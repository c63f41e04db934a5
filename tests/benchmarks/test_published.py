"""Published planning inputs: the published answer, or a better one by the same objective."""

from __future__ import annotations

import pytest

from benchmarks.published import answers, cases, helix
from benchmarks.published.helix_memory import resident_tokens


def test_melange_example_exactly() -> None:
    """Three A10G and one A100 at 6.70 $/h, as Mélange's own solver says."""
    plan, cost = answers.melange(split=False)
    assert plan == cases.MELANGE_PLAN
    assert cost == pytest.approx(cases.MELANGE_COST)


def test_split_buckets_are_cheaper() -> None:
    """Routing part of a bucket elsewhere fills one A10G and one A100 exactly: 4.68 $/h."""
    plan, cost = answers.melange(split=True)
    assert plan == {"a10g": 1, "a100-sxm-80": 1}
    assert cost == pytest.approx(4.68)


def test_melange_example_through_groups_of_buckets() -> None:
    """As the planner's own length buckets ask it: the same plan at the same price; cheaper where types may share."""
    plan, cost = answers.melange_by_groups(whole_kinds=True)
    assert plan == cases.MELANGE_PLAN
    assert cost == pytest.approx(cases.MELANGE_COST)
    assert 4.68 - 1e-9 <= answers.melange_by_groups(whole_kinds=False)[1] < cases.MELANGE_COST


def test_variant_autoscaler_picks_the_same_accelerator() -> None:
    """One Gaudi2 is the cheapest that meets 24 ms ITL."""
    assert answers.variant_autoscaler()[0] == {cases.WVA_ACCELERATOR: cases.WVA_REPLICAS}


def test_never_more_than_the_inventory() -> None:
    """The published plan took two L20 where there was one; here it is one, and seven A10."""
    assert answers.scarce_inventory()[0] == cases.AIBRIX_PLAN


@pytest.mark.parametrize("table", [cases.HELIX_10, cases.HELIX_24], ids=lambda table: table.name)
def test_helix_node_sets_reach_its_objective(table: cases.LayerTable) -> None:
    """Mixed pipelines reach Helix's own objective or pass it, within its bound and its nodes."""
    found = answers.compose(table)
    assert table.helix_objective - 1e-3 <= found.tokens_per_s <= table.helix_bound + 1e-3
    for kind, many in table.nodes.items():
        assert sum(nodes[kind] for _, nodes in found.pipelines) <= many


def test_helix_composition_of_24_nodes() -> None:
    """2,045.64 tok/s from one pipeline of all 24 nodes: so deep that only a simulation can call it a win."""
    found = answers.compose(cases.HELIX_24)
    assert found.tokens_per_s == pytest.approx(2045.641)
    assert found.depth == 24


@pytest.mark.parametrize("table", [cases.HELIX_10, cases.HELIX_24], ids=lambda table: table.name)
def test_helix_node_sets_through_the_planners_program(table: cases.LayerTable) -> None:
    """Mixed pipeline columns in the main program give what composing patterns by hand gives, checked constraint by
    constraint, and every pipeline holds each of the model's layers once."""
    found = helix.through_program(table)
    assert found.tokens_per_s == pytest.approx(answers.compose(table).tokens_per_s)
    assert found.tokens_per_s >= table.helix_objective - 1e-3
    for column in helix.pipeline_columns(table):
        assert sum(stage.layers for stage in column.stages) == table.num_layers
        for stage in column.stages:
            held = table.tokens_per_s[stage.gpu][stage.layers - 1]
            assert (
                max(held, *table.tokens_per_s[stage.gpu][stage.layers :], 0.0)
                >= 1 / column.work_s_per_request[0] - 1e-6
            )


def test_helix_deep_pipeline_loses_to_half_the_nodes_where_users_are_few() -> None:
    """24 users: twelve stages on half of the nodes decode more tokens/s than 24 stages that promise twice as much,
    and each token comes sooner. Hand-offs over 1 Gbit/s and 1 ms are what the objective leaves out."""
    deep, shallow = (helix.chosen_columns(cases.HELIX_24, depth) for depth in (64, 12))
    promised = [sum(1 / float(column.work_s_per_request[0]) for column in columns) for columns in (deep, shallow)]
    assert promised[0] > 1.9 * promised[1]
    one, other = (helix.simulated(cases.HELIX_24, columns, 24) for columns in (deep, shallow))
    assert other.tokens_per_s > one.tokens_per_s
    assert other.tpot_s < one.tpot_s
    alone = sum(1 / cases.HELIX_24.tokens_per_s[stage.gpu][stage.layers - 1] for stage in deep[0].stages)
    assert one.tpot_s == pytest.approx(alone + 23 * 1.262e-3, rel=0.02)  # a token through all stages, 23 hand-offs


def test_nodes_of_a_pipeline_hold_kv_for_their_layers() -> None:
    """Eight layers of 70B on a 40 GB A100 leave least: 0.9 · 40 GB less 13.8 GB of weights, over 8 · 4,096 bytes."""
    (column,) = helix.chosen_columns(cases.HELIX_24, 64)
    assert max(stage.layers for stage in column.stages if stage.gpu == "A100") == 8
    assert resident_tokens(cases.HELIX_24, column) == int((36e9 - 8 * 2 * 69e9 / 80) / (8 * 4096))
