"""Cluster descriptions for the tests, written for them in the formats of the tools."""

from __future__ import annotations

from typing import Any


def kube_node(name: str, gpus: int = 8, product: str = "NVIDIA-H100-80GB-HBM3", **labels: str) -> dict[str, Any]:
    """A node as `kubectl get nodes -o json` shows it, as far as readers look."""
    resources = {"cpu": "192", "memory": "2113412344Ki"} | ({"nvidia.com/gpu": str(gpus)} if gpus else {})
    named = {key.replace("__", "/").replace("_", "-"): value for key, value in labels.items()}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": ({"nvidia.com/gpu.product": product} if product else {}) | named},
        "spec": {},
        "status": {
            "capacity": resources,
            "allocatable": resources,
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


SCONTROL = """\
NodeName=srv1101 Arch=x86_64 CoresPerSocket=48
   CPUAlloc=0 CPUEfctv=192 CPUTot=192 CPULoad=0.10
   AvailableFeatures=(null)
   Gres=gpu:h100:8(S:0-1)
   NodeAddr=srv1101 NodeHostName=srv1101 Version=23.11.4
   OS=Linux 5.15.0-1034 #34-Ubuntu SMP
   RealMemory=2000000 AllocMem=0 FreeMem=1900000 Sockets=2 Boards=1
   State=IDLE ThreadsPerCore=2 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A
   CfgTRES=cpu=192,mem=2000000M,billing=192,gres/gpu=8,gres/gpu:h100=8
   AllocTRES=

NodeName=srv1102 Arch=x86_64 CoresPerSocket=48
   Gres=gpu:h100:8(S:0-1)
   GresUsed=gpu:h100:3(IDX:0-1,5)
   RealMemory=2000000
   State=MIXED ThreadsPerCore=2
   AllocTRES=cpu=24,gres/gpu=3,gres/gpu:h100=3

NodeName=srv1103 Arch=x86_64
   Gres=gpu:h100:8(S:0-1)
   RealMemory=2000000
   State=IDLE+DRAIN ThreadsPerCore=2
   Reason=fan broken [root@2026-11-20T10:00:00]

NodeName=srv1104 Arch=x86_64
   Gres=gpu:h100:8(S:0-1)
   State=IDLE* ThreadsPerCore=2

NodeName=old[01-02] Arch=x86_64
   Gres=gpu:a100:4,nic:ib:4
   RealMemory=512000
   State=ALLOCATED
   AllocTRES=cpu=10,gres/gpu=2

NodeName=login1 Arch=x86_64
   Gres=(null)
   State=IDLE
"""

TOPOLOGY_CONF = """\
# three levels: leaves, aggregation, core
SwitchName=leaf1 Nodes=srv[1101-1104] LinkSpeed=400
SwitchName=leaf2 Nodes=old[01-02],login1
switchname=agg1 Switches=leaf1
SwitchName=agg2 Switches=leaf2
SwitchName=core Switches=agg[1-2]
"""

TOPOLOGY_YAML = """\
- topology: fabric
  cluster_default: true
  tree:
    switches:
      - switch: core
        children: leaf[1-2]
      - switch: leaf1
        nodes: srv[1101-1104]
      - switch: leaf2
        nodes: old[01-02]
- topology: nvl
  block:
    block_sizes: [4, 16]
    blocks:
      - block: b1
        nodes: srv[1101-1104]
- topology: plain
  flat: true
"""

TOPO_HGX = """\
\tGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tNIC1\tNIC2\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tNV18\tNV18\tNV18\tPIX\tSYS\tSYS\t0-47,96-143\t0\t\tN/A
GPU1\tNV18\t X \tNV18\tNV18\tPXB\tSYS\tSYS\t0-47,96-143\t0\t\tN/A
GPU2\tNV18\tNV18\t X \tNV18\tSYS\tPIX\tSYS\t48-95,144-191\t1\t\tN/A
GPU3\tNV18\tNV18\tNV18\t X \tSYS\tPXB\tSYS\t48-95,144-191\t1\t\tN/A
NIC0\tPIX\tPXB\tSYS\tSYS\t X \tSYS\tSYS
NIC1\tSYS\tSYS\tPIX\tPXB\tSYS\t X \tSYS
NIC2\tSYS\tSYS\tSYS\tSYS\tSYS\tSYS\t X

Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  NV#  = Connection traversing a bonded set of # NVLinks

NIC Legend:

  NIC0: mlx5_0
"""

TOPO_PCIE = """\
\tGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity\tNUMA Affinity
GPU0\t X \tPIX\tSYS\tSYS\t0-31\t0
GPU1\tPIX\t X \tSYS\tSYS\t0-31\t0
GPU2\tSYS\tSYS\t X \tPXB\t32-63\t1
GPU3\tSYS\tSYS\tPXB\t X \t32-63\t1
"""

TOPO_BRIDGED = """\
\tGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity
GPU0\t X \tNV12\tPHB\tPHB\t0-31
GPU1\tNV12\t X \tPHB\tPHB\t0-31
GPU2\tPHB\tPHB\t X \tNV12\t0-31
GPU3\tPHB\tPHB\tNV12\t X \t0-31
"""
