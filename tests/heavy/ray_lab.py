"""A Ray cluster of raylets on this machine, each with made-up GPUs and labels: run by the Python that has ray.

    python tests/heavy/ray_lab.py '{"h100-0": ["H100", 8], …}'

Prints the cluster's address; ends when its standard input does.
"""

from __future__ import annotations

import json
import os
import sys

OBJECT_STORE_BYTES = 80 * 2**20


def main() -> None:
    """Start, say where, wait, stop."""
    os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"
    from ray.cluster_utils import Cluster

    stdout, sys.stdout = sys.stdout, sys.stderr
    common = {"object_store_memory": OBJECT_STORE_BYTES}
    head = {**common, "num_cpus": 1, "num_gpus": 0, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    for name, (accelerator, gpus) in json.loads(sys.argv[1]).items():
        labels = {"splitplan.io/node": name, "ray.io/accelerator-type": accelerator}
        cluster.add_node(num_cpus=2, num_gpus=gpus, labels=labels, **common)
    stdout.write(f"{cluster.address}\n")
    stdout.flush()
    sys.stdin.read()
    cluster.shutdown()


if __name__ == "__main__":
    main()
