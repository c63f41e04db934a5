"""Fleet files: what they mean, what is assumed, and what is refused."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from splitplan.catalogs.documents import parse_document
from splitplan.catalogs.errors import DocumentError, SplitplanError, UnknownNameError, UsageError
from splitplan.catalogs.gpus import find_gpu
from splitplan.planner.spec.fleet import Fleet, as_document, load_fleet
from splitplan.planner.spec.fleet_build import build_fleet
from splitplan.planner.spec.fleet_write import write_fleet
from splitplan.planner.spec.shipped import shipped_names

HEAD = "kind: Fleet\nversion: 1\nname: lab\n"


def fleet_of(text: str, price_kind: str = "on_demand") -> Fleet:
    return build_fleet(parse_document(HEAD + text, "lab.yaml", "fleet"), price_kind)


def problems_of(text: str) -> list[str]:
    with pytest.raises(DocumentError) as caught:
        fleet_of(text)
    return [str(problem) for problem in caught.value.problems]


def one_rack(node: str, rack: str = "") -> str:
    return f"racks:\n  - name: r1\n{rack}    nodes:\n      - {{{node}}}\n"


def without_hash(fleet: Fleet) -> Fleet:
    return replace(fleet, notes=(), content_hash="")


@pytest.mark.parametrize("name", shipped_names("fleet"))
def test_shipped_fleets_load_and_assume_nothing(name: str) -> None:
    """Every node, NIC and power figure of a shipped fleet is written down."""
    fleet = load_fleet(name)
    assert fleet.name == name
    assert fleet.notes == ()
    assert all(node.num_nics > 0 for node in fleet.nodes)


def test_four_racks_is_the_fleet_of_the_documentation() -> None:
    fleet = load_fleet("four-racks")
    assert fleet.num_gpus == {"h100-sxm": 16, "a100-sxm-80": 16, "l40s": 16}
    assert [rack.uplink_bytes_per_s for rack in fleet.racks] == [50e9] * 4
    assert fleet.spine_bytes_per_s == 4 * 50e9 / 2
    assert [rack.power_limit_watts for rack in fleet.racks] == [24_000, 16_000, 8_000, 8_000]


def test_identical_racks_get_nodes_of_their_own() -> None:
    fleet = load_fleet("64-racks")
    assert len(fleet.racks) == 64
    assert sum(fleet.num_gpus.values()) == 1664
    assert len({node.name for node in fleet.nodes}) == len(fleet.nodes)
    assert {node.rack for node in fleet.nodes} == {rack.name for rack in fleet.racks}


def test_links_default_to_the_gpu_catalog_and_bandwidth_is_one_way() -> None:
    fleet = fleet_of(one_rack("gpu: h100, gpus: 8, nics: {link: ib-ndr, count: 4}"))
    (node,) = fleet.nodes
    assert (node.gpu, node.gpu_link, node.nvlink_domain_gpus) == ("h100-sxm", "nvlink4", 8)
    assert node.nic_bytes_per_s == 4 * 50e9


def test_bridged_cards_reach_each_other_in_pairs_and_nvl72_across_nodes() -> None:
    fleet = fleet_of(one_rack("gpu: h100-nvl, gpus: 4") + "      - {gpu: gb200, gpus: 4, count: 18}\n")
    assert fleet.nodes[0].nvlink_domain_gpus == 2
    assert {node.nvlink_domain_gpus for node in fleet.nodes[1:]} == {72}
    assert fleet.nodes[18].name == "r1-gb200-18"


def test_names_in_ranges_and_counts() -> None:
    fleet = fleet_of(one_rack('name: "a[08-10]", gpu: l4, gpus: 1') + "      - {name: b, count: 2, gpu: l4, gpus: 1}\n")
    assert [node.name for node in fleet.nodes] == ["a08", "a09", "a10", "b-1", "b-2"]


def test_oversubscription_divides_what_lies_below() -> None:
    racks = "racks:\n  - name: r[1-4]\n    pod: p1\n    uplink_oversubscription: 2\n    nodes:\n"
    text = racks + "      - {gpu: l4, gpus: 1, nics: {link: ethernet-100}}\n"
    fleet = fleet_of(text + "pods:\n  - {name: p1, uplink_oversubscription: 4}\nspine: {oversubscription: 5}\n")
    assert fleet.racks[0].uplink_bytes_per_s == 6.25e9
    assert fleet.pods[0].uplink_bytes_per_s == 6.25e9
    assert fleet.spine_bytes_per_s == 1.25e9


def test_prices_come_from_the_file_first_and_say_where_they_are_from() -> None:
    text = one_rack("gpu: h100, gpus: 8") + "      - {gpu: l40s, gpus: 2}\n"
    prices = "prices:\n  h100: {on_demand: 7.5, spot: 2, source: our contract, max_gpus: {spot: 4}}\n"
    fleet = fleet_of(text + prices)
    assert fleet.usd_per_gpu_hour["h100-sxm"] == 7.5
    assert fleet.price_sources["h100-sxm"] == "our contract"
    assert fleet.price_sources["l40s"].startswith("RunPod")
    assert {tier.kind: tier.max_gpus for tier in fleet.price_tiers if tier.gpu == "h100-sxm"}["spot"] == 4
    assert fleet_of(text + prices, "spot").usd_per_gpu_hour["h100-sxm"] == 2


def test_the_quick_form_says_what_it_assumes() -> None:
    fleet = fleet_of("gpus: {h100: 20, l40s: 4}\n")
    assert fleet.num_gpus == {"h100-sxm": 20, "l40s": 4}
    assert [node.num_gpus for node in fleet.nodes] == [8, 8, 4, 4]
    assert any("h100-sxm: assumed nodes of 8 GPUs on nvlink4 with 8 x ib-ndr" in note for note in fleet.notes)
    assert any("uplinks" in note for note in fleet.notes)


def test_a_fleet_without_nics_loads_and_says_that_kv_cannot_leave_a_node() -> None:
    notes = fleet_of(one_rack("gpu: h100, count: 2")).notes
    assert any("no node has a NIC" in note for note in notes)


def test_power_of_hosts_is_assumed_only_where_power_is_limited() -> None:
    assert not any("host power" in note for note in fleet_of(one_rack("gpu: h100")).notes)
    limited = fleet_of(one_rack("gpu: h100", "    power_limit_kw: 20\n"))
    assert any("host power" in note for note in limited.notes)
    assert limited.nodes[0].host_watts == pytest.approx(0.8 * 8 * 700)


def test_gpus_in_use_are_not_counted() -> None:
    fleet = fleet_of(one_rack("gpu: h100, gpus: 8, gpus_in_use: [0, 3]"))
    assert fleet.num_gpus == {"h100-sxm": 6}
    assert fleet.nodes[0].free_gpus == (1, 2, 4, 5, 6, 7)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (one_rack("gpu: h1000"), "lab.yaml:7 `racks[0].nodes[0].gpu`: unknown gpu 'h1000'"),
        (one_rack("gpu: h100, nics: {link: ib-ndx}"), "unknown link 'ib-ndx'"),
        (one_rack("gpu: h100, nics: {link: nvlink4}"), "expected a network link"),
        (one_rack("gpu: h100, gpu_link: ib-ndr"), "expected nvlink, pcie"),
        (one_rack("gpu: h100, gpus: -8"), "lab.yaml:7 `racks[0].nodes[0].gpus`: is -8"),
        (one_rack("gpu: h100, gpus: 0"), "is 0"),
        (one_rack("gpu: h100, gpus: '8'"), "is '8'"),
        (one_rack("gpu: h100, gpus: 8, usd_per_gpu_hour: .nan"), "not a finite number"),
        (one_rack("gpu: h100, gpus: 8, gpus_in_use: [8]"), "GPU indices from 0 to 7"),
        (one_rack("gpu: h100, gpus: 4, pci_roots: [[0, 1], [1, 2, 3]]"), "exactly one root"),
        (one_rack("gpu: h100, gpus: 8, nvlink_domain_gpus: 3"), "a divisor or a multiple"),
        (one_rack("gpu: h100, gpuz: 8"), "did you mean gpu or gpus"),
        (one_rack("name: 'a[1-2', gpu: h100"), "unbalanced brackets"),
        (one_rack("name: 'a[2-1]', gpu: h100"), "bad range"),
        (one_rack("name: 'a[1-999999999]', gpu: h100"), "bad range"),
        (one_rack("name: 'a[1-2]', count: 2, gpu: h100"), "together with a range"),
        (one_rack("gpu: h100", "    power_limit_kw: 1\n"), "hosts without their GPUs draw"),
        (one_rack("gpu: h100", "    uplink_gbit_per_s: 1\n    uplink_oversubscription: 2\n"), "one of the two"),
        (one_rack("gpu: h100", "    uplink_oversubscription: 2\n"), "needs nodes with NICs"),
        (one_rack("gpu: h100") + "spine: {oversubscription: 2}\n", "needs the uplinks below it"),
        (one_rack("gpu: h100") + "spine: {}\n", "needs exactly one limit"),
        (one_rack("gpu: h100", "    pod: east\n") + "pods: [{name: eats}]\n", "did you mean east"),
        (one_rack("gpu: h100") + "prices: {a100: {spot: 1}}\n", "the fleet has no a100-sxm-80"),
        (one_rack("gpu: h100") + "prices: {h100: {spot: 1}, h100-sxm: {spot: 2}}\n", "second price of h100-sxm"),
        (one_rack("name: a, gpu: h100") + "      - {name: a, gpu: h100}\n", "stands twice in this rack"),
        ("racks:\n  - {name: 'r[1-2]', nodes: [{name: a, gpu: h100}]}\n", "write {rack} in the names"),
        ("racks:\n  - {name: r, nodes: [{gpu: l4}]}\n  - {name: r, nodes: [{gpu: l4}]}\n", "rack 'r' given twice"),
        ("racks:\n  - {name: r, nodes: []}\n", "lab.yaml:5 `racks[0].nodes`"),
        ("racks: []\n", "holds no GPUs"),
        ("gpus: {h100: 0}\n", "is 0"),
        ("gpus: {h100: 8, h100-sxm: 8}\n", "second count of h100-sxm"),
        ("gpus: {h100: 8}\n" + one_rack("gpu: h100"), "gives both"),
    ],
)
def test_mistakes_name_file_line_key_and_what_was_expected(text: str, message: str) -> None:
    assert any(message in problem for problem in problems_of(text)), problems_of(text)


@pytest.mark.parametrize(("kind", "hint"), [("Workload", "give a Fleet file here"), ("fleet", "write `kind: Fleet`")])
def test_another_kind_of_file_is_one_problem(kind: str, hint: str) -> None:
    with pytest.raises(DocumentError) as caught:
        build_fleet(parse_document(f"kind: {kind}\nversion: 1\nname: x\nlengths: {{}}\n", "x.yaml"))
    assert len(caught.value.problems) == 1
    assert hint in str(caught.value)


def test_several_mistakes_are_reported_in_one_go() -> None:
    assert len(problems_of(one_rack("gpu: h1000, nics: {link: xyz}") + "      - {gpu: a1000}\n")) == 3


def test_a_type_without_a_price_of_the_kind_asked_for_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A price that nobody knows is asked for, not taken for zero; a node that brings its own needs none."""
    unpriced = replace(find_gpu("h100"), prices=())
    monkeypatch.setattr("splitplan.planner.spec.reading.find_gpu", lambda name, **_: unpriced)
    with pytest.raises(DocumentError, match=r"no on_demand price of h100-sxm is known.*prices: \{h100-sxm"):
        fleet_of(one_rack("gpu: h100"))
    assert fleet_of(one_rack("gpu: h100, usd_per_gpu_hour: 3")).nodes[0].price_usd_per_gpu_hour == 3


def test_an_unknown_price_kind_offers_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean reserved"):
        fleet_of(one_rack("gpu: h100"), "reservd")


def test_an_unknown_fleet_name_offers_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="four-racks"):
        load_fleet("fourracks")
    with pytest.raises(DocumentError, match="no such fleet"):
        load_fleet("nowhere/four-racks.yaml")


@pytest.mark.parametrize("name", shipped_names("fleet"))
def test_what_is_written_reads_back_to_the_same_fleet(name: str, tmp_path: Path) -> None:
    fleet = load_fleet(name)
    write_fleet(fleet, tmp_path / "fleet.yaml")
    again = load_fleet(tmp_path / "fleet.yaml")
    assert without_hash(again) == without_hash(fleet)
    assert again.content_hash == fleet.content_hash


def test_the_hash_follows_the_meaning_not_the_spelling() -> None:
    plain = fleet_of(one_rack("name: a, gpu: h100, gpus: 8, host_memory_gib: 1024, host_watts: 4480"))
    assert fleet_of(one_rack("name: a, gpu: h100-sxm")).content_hash == plain.content_hash
    assert fleet_of(one_rack("name: a, gpu: h100-sxm, gpus: 4")).content_hash != plain.content_hash


node_files = st.fixed_dictionaries(
    {"gpu": st.sampled_from(["h100", "a100", "l40s", "h100-nvl"] * 4 + ["nonsense"])},
    optional={
        "gpus": st.sampled_from([8, 4, 8, 2, 0]),
        "count": st.sampled_from([1, 2, 3]),
        "name": st.sampled_from(["{rack}-a", "{rack}-b[1-2]", "{rack}-c", "d["]),
        "nics": st.one_of(st.none(), st.fixed_dictionaries({"link": st.sampled_from(["ib-ndr", "roce-100", "x"])})),
        "gpus_in_use": st.lists(st.integers(0, 8), max_size=2, unique=True),
        "host_watts": st.floats(-1, 3000),
        "pci_roots": st.sampled_from([[], [], [[0, 1], [2, 3]]]),
        "failure_domain": st.sampled_from(["feed-a", "r1"]),
    },
)
rack_files = st.fixed_dictionaries(
    {"name": st.sampled_from(["r1", "r2", "r3", "q[1-2]"]), "nodes": st.lists(node_files, min_size=1, max_size=2)},
    optional={
        "pod": st.sampled_from(["p", "q"]),
        "uplink_gbit_per_s": st.sampled_from([100, 33.3, 400.0]),
        "uplink_oversubscription": st.sampled_from([1, 3, 7.7]),
        "power_limit_kw": st.sampled_from([0.5, 50, 33.33]),
    },
)
fleet_files = st.fixed_dictionaries(
    {
        "kind": st.just("Fleet"),
        "version": st.just(1),
        "name": st.just("x"),
        "racks": st.lists(rack_files, max_size=3, unique_by=str),
    },
    optional={
        "spine": st.sampled_from([{"gbit_per_s": 800}, {"oversubscription": 2}]),
        "pods": st.sampled_from([[], [{"name": "p", "uplink_oversubscription": 2}]]),
        "budget_usd_per_hour": st.sampled_from([100, 33.3]),
    },
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(fleet_files)
def test_any_fleet_file_loads_and_reads_back_or_is_refused_politely(data: dict[str, Any]) -> None:
    """A fleet that loads survives being written; one that does not says why, with a place."""
    with contextlib.suppress(SplitplanError):
        fleet = build_fleet(parse_document(yaml.safe_dump(data), "x.yaml"))
        again = build_fleet(parse_document(yaml.safe_dump(as_document(fleet)), "again.yaml"))
        assert without_hash(again) == without_hash(fleet)


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=200))
def test_any_text_is_refused_politely(text: str) -> None:
    with contextlib.suppress(SplitplanError):
        fleet_of(text)
