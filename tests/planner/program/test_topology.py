"""The fleet as locations, NVLink domains and a tree of links."""

from __future__ import annotations

import networkx as nx

from splitplan.planner.program.topology import fleet_graph, fleet_locations, rack_hosts
from splitplan.planner.spec.fleet import Pod
from tests.planner.program.fleets import a_fleet, a_node, a_rack, four_racks


def test_hosts_of_a_kind_are_one_group_wherever_they_stand() -> None:
    """Racks, and what fails together in them, do not keep alike hosts apart in the grouped relaxation."""
    racks = [a_rack(f"r{r}", [a_node(f"n{r}", rack=f"r{r}", failure_domain=f"feed{r}")]) for r in range(5)]
    (group,) = fleet_locations(a_fleet(racks), "fleet")
    assert group.num_gpus == 40
    assert group.one_host


def test_granularity_decides_what_is_a_place() -> None:
    """Eight hosts one by one; by rack the two alike hosts of each rack are one place."""
    assert len(fleet_locations(four_racks(), "node")) == 8
    assert [place.name for place in fleet_locations(four_racks(), "rack")] == ["r1", "r2", "r3", "r4"]
    assert not fleet_locations(four_racks(), "rack")[0].one_host


def test_nvlink_domains_inside_and_across_nodes() -> None:
    """A node of two four-GPU domains has two; eighteen nodes of an NVL72 are one host with one domain of 72."""
    ((_, domains),) = rack_hosts(a_rack("r", [a_node("n", nvlink_domain_gpus=4, gpus_in_use=(1,))]))
    assert [domain.num_gpus for domain in domains] == [3, 4]
    nodes = [a_node(f"n{i}", "gb200", 4, nvlink_domain_gpus=72) for i in range(18)]
    ((members, (domain,)),) = rack_hosts(a_rack("r", nodes))
    assert (len(members), domain.num_gpus) == (18, 72)


def test_groups_of_gpus_never_straddle_domains() -> None:
    """Two domains with six free GPUs each hold two groups of four, not three."""
    nodes = [a_node(f"n{i}", gpus_in_use=(0, 1)) for i in range(2)]
    (place,) = fleet_locations(a_fleet([a_rack("r", nodes)]), "rack")
    assert (place.slots_of_size(4), place.slots_of_size(2), place.slots_of_size(8)) == (2, 6, 0)


def test_links_are_a_tree_with_their_rates() -> None:
    """Node to node in two pods goes NIC, rack, pod, spine, pod, rack, NIC; each edge has its rate."""
    racks = [a_rack(f"r{r}", [a_node(f"n{r}", rack=f"r{r}")], pod=f"p{r}") for r in range(2)]
    graph = fleet_graph(a_fleet(racks, pods=(Pod("p0", 7e9),), spine_bytes_per_s=9e9))
    path = nx.shortest_path(graph, ("node", "n0"), ("node", "n1"))
    kinds = [kind for kind, _ in path]
    assert kinds == ["node", "rack", "pod", "spine", "pod", "rack", "node"]
    assert graph.edges[("pod", "p0"), ("spine", "")]["bytes_per_s"] == 7e9
    assert graph.edges[("pod", "p1"), ("spine", "")]["bytes_per_s"] is None
    assert graph.nodes["spine", ""]["bytes_per_s"] == 9e9
