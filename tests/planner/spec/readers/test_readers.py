"""Fleets from kubectl, Slurm, topograph and nvidia-smi: places, types, what is taken, and what is left out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from splitplan.catalogs.errors import DocumentError, SplitplanError
from splitplan.planner.cli.main import app
from splitplan.planner.spec.fleet import Fleet, Node, load_fleet
from splitplan.planner.spec.readers.hosts import ImportOptions, parse_nics
from splitplan.planner.spec.readers.imports import (
    import_kubectl,
    import_slurm,
    import_topo_matrices,
    import_topograph,
    write_imported,
)
from splitplan.planner.spec.readers.nvidia_smi import parse_matrix, pci_roots
from splitplan.planner.spec.readers.slurm_topology import hostlist, read_topology
from tests.planner.spec.readers.sources import (
    SCONTROL,
    TOPO_BRIDGED,
    TOPO_HGX,
    TOPO_PCIE,
    TOPOLOGY_CONF,
    TOPOLOGY_YAML,
    kube_node,
)

IB = ImportOptions(nics=parse_nics(["ib-ndr:8"]))


def written(tmp_path: Path, name: str, content: Any) -> Path:
    path = tmp_path / name
    path.write_text(content if isinstance(content, str) else json.dumps(content, indent=1))
    return path


def kube_fleet(tmp_path: Path, nodes: list[dict[str, Any]], *labels: str, options: ImportOptions = IB) -> Fleet:
    path = written(tmp_path, "nodes.json", {"apiVersion": "v1", "kind": "List", "items": nodes})
    write_imported(import_kubectl([path], options, labels), tmp_path / "fleet.yaml")
    return load_fleet(tmp_path / "fleet.yaml")


def node(fleet: Fleet, name: str) -> Node:
    return next(node for node in fleet.nodes if node.name == name)


# ── kubectl ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_kubectl_nodes_become_racks_by_their_labels(tmp_path: Path) -> None:
    """A rack's label is unique within its block only: two blocks with a rack-1 each are two racks."""
    keys = "cloud.provider.com/topology-block", "cloud.provider.com/topology-rack"
    nodes = [
        kube_node(f"n{block}{rack}{index}", **dict(zip(keys, (f"block-{block}", f"rack-{rack}"), strict=True)))
        for block in (1, 2)
        for rack in (1, 2)
        for index in (1, 2)
    ]
    fleet = kube_fleet(tmp_path, nodes)
    assert [rack.name for rack in fleet.racks] == [f"block-{b}-rack-{r}" for b in (1, 2) for r in (1, 2)]
    assert {rack.pod for rack in fleet.racks} == {"block-1", "block-2"}
    assert fleet.num_gpus == {"h100-sxm": 64}
    assert node(fleet, "n111").host_memory_bytes == pytest.approx(2113412344 * 1024, rel=0.001)
    assert node(fleet, "n111").labels == {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    assert (node(fleet, "n111").nic_link, node(fleet, "n111").num_nics) == ("ib-ndr", 8)


@pytest.mark.parametrize(
    ("labels", "rack"),
    [
        ({"topology.k8s.aws/network-node-layer-1": "nn-1", "topology.k8s.aws/network-node-layer-3": "nn-3"}, "nn-3"),
        ({"cloud.google.com/gce-topology-block": "b7"}, "b7"),
        ({"fabric.topograph.run/tier-0": "leaf-9", "fabric.topograph.run/tier-1": "spine-1"}, "leaf-9"),
        ({"network.topology.nvidia.com/leaf": "sw3"}, "sw3"),
    ],
)
def test_kubectl_knows_the_labels_of_clouds_and_of_topograph(tmp_path: Path, labels: dict[str, str], rack: str) -> None:
    fleet = kube_fleet(tmp_path, [kube_node("a", **labels), kube_node("b", **labels)])
    assert [found.name for found in fleet.racks] == [rack]


def test_kubectl_labels_can_be_given(tmp_path: Path) -> None:
    nodes = [kube_node("a", **{"example.com/hall": "h1", "example.com/row": "r1"})]
    assert kube_fleet(tmp_path, nodes, "example.com/hall", "example.com/row").racks[0].name == "r1"
    with pytest.raises(DocumentError, match=r"no GPU node carries the label 'example\.com/aisle'"):
        kube_fleet(tmp_path, nodes, "example.com/aisle")


def test_kubectl_without_topology_says_that_racks_are_not_known(tmp_path: Path) -> None:
    path = written(tmp_path, "nodes.json", {"items": [kube_node("a"), kube_node("b")]})
    imported = import_kubectl([path], IB)
    assert [rack["name"] for rack in imported.document["racks"]] == ["unplaced"]
    assert any("does not say in which rack" in note for note in imported.notes)


def test_kubectl_leaves_out_what_cannot_take_work(tmp_path: Path) -> None:
    """Cordoned and unready nodes are named; nodes without GPUs are no matter."""
    cordoned, unready = kube_node("cordoned"), kube_node("unready")
    cordoned["spec"]["unschedulable"] = True
    unready["status"]["conditions"] = [{"type": "Ready", "status": "Unknown"}]
    path = written(tmp_path, "n.json", {"items": [kube_node("ok"), cordoned, unready, kube_node("cpu", 0, "")]})
    imported = import_kubectl([path], IB)
    assert [entry["name"] for entry in imported.document["racks"][0]["nodes"]] == ["ok"]
    assert "cordoned: left out, it is cordoned" in imported.notes
    assert "unready: left out, it is not ready" in imported.notes


def test_kubectl_counts_what_is_allocatable(tmp_path: Path) -> None:
    """A GPU that the device plugin found broken is in the capacity, not in what can be allocated."""
    broken = kube_node("a")
    broken["status"]["allocatable"] = {"nvidia.com/gpu": "7"}
    assert kube_fleet(tmp_path, [broken]).num_gpus == {"h100-sxm": 7}


def test_nvlink_cliques_span_hosts_of_a_rack(tmp_path: Path) -> None:
    """Eighteen hosts of four GB200 in one clique are one domain of 72."""
    nodes = [kube_node(f"t{i:02d}", 4, "NVIDIA-GB200", **{"nvidia.com/gpu.clique": "cluster-1.7"}) for i in range(18)]
    fleet = kube_fleet(tmp_path, nodes)
    assert {(found.gpu, found.nvlink_domain_gpus, found.rack) for found in fleet.nodes} == {
        ("gb200", 72, "cluster-1.7")
    }


def test_clique_of_an_ordinary_host_changes_nothing(tmp_path: Path) -> None:
    nodes = [kube_node(f"n{i}", **{"nvidia.com/gpu.clique": "c.1"}) for i in range(2)]
    assert {found.nvlink_domain_gpus for found in kube_fleet(tmp_path, nodes).nodes} == {8}


def test_dra_cluster_is_read_from_resource_slices(tmp_path: Path) -> None:
    """No nvidia.com/gpu anywhere: the GPUs are in ResourceSlices, of which only the newest generation counts."""

    def slice_of(name: str, generation: int, count: int, *, nested: bool) -> dict[str, Any]:
        attributes = {"type": {"string": "gpu"}, "productName": {"string": "NVIDIA H200"}}
        content: dict[str, Any] = {"attributes": attributes}
        content = {"basic": content} if nested else content
        devices: list[dict[str, Any]] = [{"name": f"gpu-{index}", **content} for index in range(count)]
        devices.append({"name": "mig", "attributes": {"type": {"string": "mig"}, "productName": {"string": "x"}}})
        pool = {"name": name, "generation": generation}
        return {
            "kind": "ResourceSlice",
            "metadata": {"name": f"{name}-{generation}"},
            "spec": {"driver": "gpu.nvidia.com", "nodeName": name, "pool": pool, "devices": devices},
        }

    nodes = written(tmp_path, "nodes.json", {"items": [kube_node("a", 0, ""), kube_node("b", 0, "")]})
    slices = [slice_of("a", 1, 3, nested=True), slice_of("a", 2, 8, nested=True), slice_of("b", 1, 4, nested=False)]
    imported = import_kubectl([nodes, written(tmp_path, "slices.json", {"items": slices})], IB)
    assert {(entry["name"], entry["gpu"], entry["gpus"]) for entry in imported.document["racks"][0]["nodes"]} == {
        ("a", "h200-sxm", 8),
        ("b", "h200-sxm", 4),
    }


def test_cluster_without_gpu_resources_is_told_about_slices(tmp_path: Path) -> None:
    path = written(tmp_path, "nodes.json", {"items": [kube_node("a", 0, "")]})
    with pytest.raises(DocumentError, match=r"none of 1 nodes advertises[\s\S]*kubectl get resourceslices"):
        import_kubectl([path], IB)


def test_mig_and_unknown_products_stop_or_are_left_out(tmp_path: Path) -> None:
    nodes = [
        kube_node("good"),
        kube_node("mig", 7, "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb"),
        kube_node("new", 8, "NVIDIA-Z900"),
    ]
    path = written(tmp_path, "nodes.json", {"items": nodes})
    with pytest.raises(DocumentError, match=r"is a MIG slice[\s\S]*unknown gpu 'NVIDIA-Z900'[\s\S]*--skip-unknown"):
        import_kubectl([path], IB)
    imported = import_kubectl([path], ImportOptions(skip_unknown=True, nics=IB.nics))
    assert [entry["name"] for entry in imported.document["racks"][0]["nodes"]] == ["good"]
    assert "new: left out, 'NVIDIA-Z900' cannot be planned with" in imported.notes


def test_efa_ports_are_counted_from_the_device_plugin(tmp_path: Path) -> None:
    aws = kube_node("p5", **{"node.kubernetes.io/instance-type": "p5.48xlarge"})
    aws["status"]["allocatable"]["vpc.amazonaws.com/efa"] = "32"
    fleet = kube_fleet(tmp_path, [aws], options=ImportOptions())
    assert (fleet.nodes[0].nic_link, fleet.nodes[0].num_nics) == ("efa-100", 32)
    assert fleet.nodes[0].nic_bytes_per_s == 400e9


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[1]", "holds no Kubernetes objects"),
        ('{"items": []}', "holds no Kubernetes objects"),
        ("{", "nodes.json:1: not valid JSON"),
        ("No resources found", "not valid JSON"),
        ('{"items": [{"metadata": {}}]}', "none of 1 nodes advertises"),
        (
            '{"items": [{"metadata": {"name": "a[1]"}, "status": {"allocatable": {"nvidia.com/gpu": "8"}}}]}',
            "no GPU type",
        ),
    ],
)
def test_what_is_no_node_list_is_told_so(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(DocumentError) as caught:
        import_kubectl([written(tmp_path, "nodes.json", content)], IB)
    assert message in str(caught.value)


def test_same_host_in_two_files_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, "n.json", {"items": [kube_node("a")]})
    with pytest.raises(DocumentError, match="host 'a' stands twice"):
        import_kubectl([path, path], IB)


# ── Slurm ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def slurm_fleet(tmp_path: Path, topology: str | None, name: str = "topology.conf") -> Fleet:
    nodes = written(tmp_path, "nodes.txt", SCONTROL)
    places = written(tmp_path, name, topology) if topology else None
    write_imported(import_slurm(nodes, places, IB), tmp_path / "fleet.yaml")
    return load_fleet(tmp_path / "fleet.yaml")


def test_slurm_nodes_with_a_tree(tmp_path: Path) -> None:
    """Leaf switches are racks, what is above them pods; drained and silent nodes are left out; taken GPUs by index."""
    fleet = slurm_fleet(tmp_path, TOPOLOGY_CONF)
    assert [(rack.name, rack.pod) for rack in fleet.racks] == [("leaf1", "agg1"), ("leaf2", "agg2")]
    assert [found.name for found in fleet.nodes] == ["srv1101", "srv1102", "old01", "old02"]
    assert node(fleet, "srv1102").gpus_in_use == (0, 1, 5)
    assert node(fleet, "old01").gpus_in_use == (0, 1)
    assert fleet.num_gpus == {"h100-sxm": 13, "a100-sxm-80": 4}
    assert node(fleet, "srv1101").host_memory_bytes == pytest.approx(2_000_000 * 2**20, rel=0.001)


def test_slurm_says_what_it_left_out_and_assumed(tmp_path: Path) -> None:
    imported = import_slurm(written(tmp_path, "n.txt", SCONTROL), None, IB)
    assert "srv1103: left out, drain" in imported.notes
    assert "srv1104: left out, not_responding" in imported.notes
    assert any(note.startswith("old[01-02]: 2 GPUs are taken, assumed to be the first") for note in imported.notes)


def test_slurm_topology_yaml_gives_the_same_racks(tmp_path: Path) -> None:
    fleet = slurm_fleet(tmp_path, TOPOLOGY_YAML, "topology.yaml")
    assert [rack.name for rack in fleet.racks] == ["leaf1", "leaf2"]
    assert read_topology(tmp_path / "topology.yaml").block("srv1103") == "b1"


def test_slurm_blocks_are_racks_where_there_is_no_tree(tmp_path: Path) -> None:
    places = read_topology(
        written(tmp_path, "topology.conf", "BlockName=b1 Nodes=n[1-2]\nBlockName=b2 Nodes=n3\nBlockSizes=2")
    )
    assert (places.levels("n1"), places.levels("n3"), places.levels("n9")) == (("b1",), ("b2",), ())


def test_slurm_json_equals_slurm_text(tmp_path: Path) -> None:
    """`scontrol show nodes --json` of the same nodes gives the same fleet."""
    records = [
        {"name": "srv1101", "gres": "gpu:h100:8(S:0-1)", "gres_used": "gpu:h100:0(IDX:N/A)", "state": ["IDLE"]},
        {"name": "srv1102", "gres": "gpu:h100:8(S:0-1)", "gres_used": "gpu:h100:3(IDX:0-1,5)", "state": ["MIXED"]},
        {"name": "srv1103", "gres": "gpu:h100:8", "gres_used": "gpu:h100:0", "state": ["IDLE", "DRAIN"]},
        {"name": "srv1104", "gres": "gpu:h100:8", "gres_used": "gpu:h100:0", "state": ["IDLE", "NOT_RESPONDING"]},
        {"name": "old01", "gres": "gpu:a100:4,nic:ib:4", "gres_used": "gpu:a100:2", "state": ["ALLOCATED"]},
        {"name": "old02", "gres": "gpu:a100:4,nic:ib:4", "gres_used": "gpu:a100:2", "state": ["ALLOCATED"]},
    ]
    memory = {"srv": 2_000_000, "old": 512_000}
    nodes = [record | {"real_memory": memory[str(record["name"])[:3]]} for record in records]
    by_json = import_slurm(written(tmp_path, "n.json", {"nodes": nodes}), None, IB)
    by_text = import_slurm(written(tmp_path, "n.txt", SCONTROL), None, IB)
    assert by_json.document["racks"] == by_text.document["racks"]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("srv[1101-1103]", ["srv1101", "srv1102", "srv1103"]),
        ("a[01-02,9]", ["a01", "a02", "a9"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("x,y[1-2],z", ["x", "y1", "y2", "z"]),
        ("", []),
    ],
)
def test_hostlists(text: str, names: list[str]) -> None:
    assert list(hostlist(text, "topology.conf:1", "Nodes")) == names


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("SwitchName=a Nodes=n[1-", "topology.conf:1 `Nodes`: unbalanced brackets"),
        ("SwitchName=a Nodes=n1\nSwitchName=b Nodes=n1", "topology.conf:2 `Nodes`: node 'n1' hangs under 'a' and 'b'"),
        ("SwitchName=a Nodes=n1\nSwitchName=b Switches=a\nSwitchName=c Switches=a", "hangs under two others"),
        ("SwitchName=a Switches=b Nodes=n1\nSwitchName=b Switches=a", "is above itself"),
        ("hello", "topology.conf:1: cannot read 'hello'"),
        ("# nothing", "places no node"),
    ],
)
def test_broken_topologies_name_the_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(SplitplanError) as caught:
        read_topology(written(tmp_path, "topology.conf", text))
    assert message in str(caught.value)


def test_slurm_without_gres_says_what_is_needed(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match=r"none of 1 nodes has Gres=gpu…[\s\S]*GresTypes=gpu"):
        import_slurm(written(tmp_path, "n.txt", "NodeName=a Gres=(null) State=IDLE"), None, IB)
    with pytest.raises(DocumentError, match="holds no NodeName="):
        import_slurm(written(tmp_path, "n.txt", "slurm_load_node error"), None, IB)


def test_absurd_node_names_are_told(tmp_path: Path) -> None:
    nodes = written(tmp_path, "n.txt", f"NodeName={'9' * 6000} Gres=gpu:h100:8 State=IDLE")
    with pytest.raises(DocumentError, match="cannot be the name of a host"):
        import_slurm(nodes, None, IB)
    untyped = written(tmp_path, "u.txt", "NodeName=n1 Gres=gpu:8 State=IDLE\nNodeName=n2 Gres=gpu:h100:8 State=IDLE")
    imported = import_slurm(untyped, None, ImportOptions(skip_unknown=True, nics=IB.nics))
    assert "n1: left out, 'no GPU type' cannot be planned with" in imported.notes


def test_untyped_gres_takes_the_type_given(tmp_path: Path) -> None:
    nodes = written(tmp_path, "n.txt", "NodeName=a Gres=gpu:4 State=IDLE")
    with pytest.raises(DocumentError, match=r"names no GPU type[\s\S]*--gpu"):
        import_slurm(nodes, None, IB)
    assert import_slurm(nodes, None, ImportOptions(gpu="l40s")).document["racks"][0]["nodes"][0]["gpu"] == "l40s"


# ── topograph ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_topograph_layers_are_nearest_first(tmp_path: Path) -> None:
    instances = [
        {"id": "i1", "type": "H100", "network_layers": ["leaf-a", "spine-a"], "attributes": {"nvlink": "nvl-1"}},
        {"id": "i2", "type": "H100", "network_layers": ["leaf-b", "spine-a"]},
        {"id": "i3", "network_layers": ["leaf-c", "spine-b"], "labels": {"example.com/gpu-product": "A100"}},
    ]
    options = ImportOptions(gpus_per_node=8, nics=IB.nics)
    imported = import_topograph(written(tmp_path, "g.json", {"instances": instances}), options)
    racks = imported.document["racks"]
    assert [(rack["name"], rack["pod"]) for rack in racks] == [
        ("leaf-a", "spine-a"),
        ("leaf-b", "spine-a"),
        ("leaf-c", "spine-b"),
    ]
    assert [rack["nodes"][0]["gpu"] for rack in racks] == ["h100-sxm", "h100-sxm", "a100-sxm-80"]


def test_topograph_without_counts_takes_the_usual_node_and_says_so(tmp_path: Path) -> None:
    path = written(tmp_path, "g.json", {"instances": [{"id": "i1", "type": "L40S", "network_layers": ["x"]}]})
    imported = import_topograph(path, IB)
    assert imported.document["racks"][0]["nodes"][0]["gpus"] == 8
    assert any("8 per host assumed for l40s" in note for note in imported.notes)


@pytest.mark.parametrize(
    ("content", "message"), [({}, "holds no instances"), ({"instances": [{}]}, "`instances[0].id`: missing")]
)
def test_topograph_mistakes(tmp_path: Path, content: dict[str, Any], message: str) -> None:
    with pytest.raises(DocumentError) as caught:
        import_topograph(written(tmp_path, "g.json", content), IB)
    assert message in str(caught.value)


# ── nvidia-smi ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_topology_matrix_of_an_nvswitch_host(tmp_path: Path) -> None:
    """NVLink hides PCIe between the GPUs; those that share a near NIC share a root; a far NIC is not counted."""
    options = ImportOptions(gpu="h100", nics=parse_nics(["ib-ndr:2"]))
    write_imported(import_topo_matrices([written(tmp_path, "hgx1.txt", TOPO_HGX)], options), tmp_path / "fleet.yaml")
    host = load_fleet(tmp_path / "fleet.yaml").nodes[0]
    assert (host.name, host.num_gpus, host.gpu_link, host.nvlink_domain_gpus) == ("hgx1", 4, "nvlink4", 4)
    assert host.pci_roots == ((0, 1), (2, 3))


def test_topology_matrix_of_a_pcie_host(tmp_path: Path) -> None:
    options = ImportOptions(gpu="l40s", nics=parse_nics(["roce-200:2"]))
    imported = import_topo_matrices([written(tmp_path, "pc.txt", TOPO_PCIE)], options)
    entry = imported.document["racks"][0]["nodes"][0]
    assert (entry["gpu_link"], entry["pci_roots"]) == ("pcie4-x16", [[0, 1], [2, 3]])


def test_topology_matrix_of_bridged_pairs(tmp_path: Path) -> None:
    """Two cards per bridge: NVLink domains of two on a host of four."""
    options = ImportOptions(gpu="h100-nvl", nics=parse_nics(["ib-ndr:2"]))
    write_imported(import_topo_matrices([written(tmp_path, "nvl.txt", TOPO_BRIDGED)], options), tmp_path / "fleet.yaml")
    host = load_fleet(tmp_path / "fleet.yaml").nodes[0]
    assert (host.gpu_link, host.nvlink_domain_gpus, host.num_gpus) == ("nvlink-bridge-h100", 2, 4)


def test_fewer_links_than_the_type_has_are_noted(tmp_path: Path) -> None:
    options = ImportOptions(gpu="h100", nics=IB.nics)
    notes = import_topo_matrices([written(tmp_path, "x.txt", TOPO_BRIDGED)], options).notes
    assert any("NV12 between some GPUs, 18 links make the full rate" in note for note in notes)


def test_colours_of_the_header_are_no_matter() -> None:
    coloured = TOPO_PCIE.replace("\tGPU0\tGPU1", "\t\x1b[4mGPU0\tGPU1", 1).replace(
        "NUMA Affinity", "NUMA Affinity\x1b[0m", 1
    )
    assert pci_roots(parse_matrix(coloured, "x")) == [[0, 1], [2, 3]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no header line"),
        ("NVIDIA-SMI has failed", "holds no header line"),
        (TOPO_PCIE[:80], "torn"),
        ("\n".join(TOPO_PCIE.splitlines()[:3]), "no row for GPU2, GPU3"),
        (TOPO_PCIE.replace("PXB", "???"), "x:4: the row of GPU2 is torn"),
    ],
)
def test_torn_matrices(text: str, message: str) -> None:
    with pytest.raises(DocumentError) as caught:
        parse_matrix(text, "x")
    assert message in str(caught.value)


# ── all of them ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("text", ["ib-ndr:0", "ib-ndr:x", "ib-ndr:100", "nvlink4:8", "warp:8", "z900=ib-ndr:8"])
def test_wrong_nics_are_told(text: str) -> None:
    with pytest.raises(SplitplanError):
        parse_nics([text])


def test_nics_by_type_come_before_the_general_one(tmp_path: Path) -> None:
    nodes = [kube_node("a"), kube_node("b", 8, "NVIDIA-L40S")]
    fleet = kube_fleet(tmp_path, nodes, options=ImportOptions(nics=parse_nics(["ib-ndr:8", "l40s=roce-100:2"])))
    assert (node(fleet, "a").nic_link, node(fleet, "b").nic_link) == ("ib-ndr", "roce-100")


def test_import_is_the_same_whatever_the_order_of_nodes(tmp_path: Path) -> None:
    nodes = [kube_node(f"n{i}", **{"topology.kubernetes.io/rack": f"r{i % 3}"}) for i in range(12)]
    first = import_kubectl([written(tmp_path, "a.json", {"items": nodes})], IB)
    second = import_kubectl([written(tmp_path, "b.json", {"items": nodes[::-1]})], IB)
    assert first == second


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=120, deadline=None)
@given(key=st.sampled_from(["metadata", "spec", "status", "kind"]), inner=st.text(max_size=6), value=junk)
def test_strange_nodes_raise_nothing_but_our_errors(key: str, inner: str, value: Any) -> None:
    import tempfile

    strange = kube_node("a")
    strange[key] = value if not inner else {**(strange[key] if isinstance(strange[key], dict) else {}), inner: value}
    with tempfile.TemporaryDirectory() as folder:
        path = written(Path(folder), "n.json", {"items": [strange, kube_node("b")]})
        try:
            names = [entry["name"] for entry in import_kubectl([path], IB).document["racks"][0]["nodes"]]
        except SplitplanError as error:
            names = [str(error)]
    assert names


def _damage(source: str) -> st.SearchStrategy[str]:
    """A source with a piece cut out or something put in."""
    places = st.integers(0, len(source))
    scraps = st.sampled_from(
        ["[", "]", "=", ",", "\n", "(", "gpu:", "-", "\t", "é", "{", "9" * 30, "NodeName=", "X", "NV"]
    )
    return st.builds(lambda at, cut, put: source[:at] + put + source[at + cut :], places, st.integers(0, 40), scraps)


@settings(max_examples=150, deadline=None)
@given(nodes=_damage(SCONTROL), conf=_damage(TOPOLOGY_CONF), as_yaml=_damage(TOPOLOGY_YAML), matrix=_damage(TOPO_HGX))
def test_damaged_sources_raise_nothing_but_our_errors(nodes: str, conf: str, as_yaml: str, matrix: str) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        calls = [
            lambda: import_slurm(written(folder, "n.txt", nodes), written(folder, "topology.conf", conf), IB),
            lambda: import_slurm(written(folder, "n.txt", nodes), written(folder, "topology.yaml", as_yaml), IB),
            lambda: import_topo_matrices([written(folder, "m.txt", matrix)], ImportOptions(gpu="h100", nics=IB.nics)),
        ]
        for call in calls:
            try:
                result = str(call().document)
            except SplitplanError as error:
                result = str(error)
            assert result


def test_command_writes_a_file_that_loads(tmp_path: Path) -> None:
    nodes = written(tmp_path, "nodes.txt", SCONTROL)
    topology = written(tmp_path, "topology.conf", TOPOLOGY_CONF)
    target = tmp_path / "fleet.yaml"
    arguments = ["fleet", "import", "slurm", str(nodes), "--topology", str(topology), "--nic", "ib-hdr:4"]
    result = CliRunner().invoke(app, [*arguments, "-o", str(target)], catch_exceptions=False)
    assert result.exit_code == 0
    assert result.stdout == ""
    assert load_fleet(target).num_gpus == {"h100-sxm": 13, "a100-sxm-80": 4}
    printed = CliRunner().invoke(app, arguments, catch_exceptions=False).stdout
    assert yaml.safe_load(printed) == yaml.safe_load(target.read_text())
    as_json = json.loads(CliRunner().invoke(app, [*arguments, "--json"], catch_exceptions=False).stdout)
    assert as_json["kind"] == "fleet-import"
    assert as_json["fleet"] == yaml.safe_load(printed)


def test_nothing_is_left_behind_where_the_file_cannot_be_written(tmp_path: Path) -> None:
    path = written(tmp_path, "n.json", {"items": [kube_node("a")]})
    with pytest.raises(DocumentError, match="cannot write the fleet"):
        write_imported(import_kubectl([path], IB), tmp_path / "missing" / "fleet.yaml")
    assert sorted(item.name for item in tmp_path.iterdir()) == ["n.json"]
