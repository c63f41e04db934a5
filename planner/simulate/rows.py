"""The simulator's two flat arrays while they are filled."""

from __future__ import annotations

import numpy as np

from splitplan.planner.simulate import layout as at
from splitplan.planner.simulate.deployment import Deployment
from splitplan.planner.spec.workload import FloatArray, IntArray, Requests


class Rows:
    """The two arrays while they are filled: rows at common offsets, then what is added behind them."""

    def __init__(self, deployment: Deployment, requests: Requests) -> None:
        lanes = sum(max(instance.step.num_stages, 1) for instance in deployment.instances)
        num_instances = len(deployment.instances)
        flows = most_flows(deployment, requests) + lanes
        ways = min(flows, num_instances**2) + num_instances + 1  # between instances, from each host, from the store
        counts = (lanes, len(requests), flows, ways, len(deployment.links) + num_instances + 1)
        widths = (at.E_WIDTH, at.R_WIDTH, at.F_WIDTH, at.W_WIDTH, at.L_WIDTH)
        offsets = np.cumsum([at.G_WIDTH, *(count * width for count, width in zip(counts, widths, strict=True))])
        names = ("engines", "requests", "flows", "ways", "links")
        self.first = dict(zip(names, (int(offset) for offset in offsets[:-1]), strict=True))
        self.shape = dict(zip(names, zip(counts, widths, strict=True), strict=True))
        self.ints: IntArray = np.zeros(offsets[-1], dtype=np.int64)
        self.floats: FloatArray = np.zeros(offsets[-1], dtype=np.float64)
        self.more_ints: list[IntArray] = []
        self.more_floats: list[FloatArray] = []
        self.end_ints = self.end_floats = int(offsets[-1])

    def ints_of(self, name: str) -> IntArray:
        """The integer rows of one kind, [row, field]."""
        first, (count, width) = self.first[name], self.shape[name]
        return self.ints[first : first + count * width].reshape(count, width)

    def floats_of(self, name: str) -> FloatArray:
        """The float rows of one kind, [row, field]."""
        first, (count, width) = self.first[name], self.shape[name]
        return self.floats[first : first + count * width].reshape(count, width)

    def add_ints(self, values: IntArray) -> int:
        """Put values behind everything; their offset."""
        self.more_ints.append(values)
        self.end_ints += values.size
        return self.end_ints - values.size

    def add_floats(self, values: FloatArray) -> int:
        """Put values behind everything; their offset."""
        self.more_floats.append(np.ascontiguousarray(values, dtype=np.float64).ravel())
        self.end_floats += values.size
        return self.end_floats - values.size

    def link_handle(self, link: int | None) -> int:
        """A link's handle; -1 for none."""
        return -1 if link is None else self.first["links"] + link * at.L_WIDTH


def most_flows(deployment: Deployment, requests: Requests) -> int:
    """Transfers at a time: each holds KV blocks at its receiver, but for prompts of one token."""
    if (np.asarray(requests.input_tokens) <= 1).any():
        return len(requests)
    blocks = sum(instance.kv_capacity_tokens // instance.block_tokens for instance in deployment.instances)
    return min(len(requests), blocks)


def lane_rows(deployment: Deployment) -> list[int]:
    """The row of each instance's first lane."""
    rows = [0]
    for instance in deployment.instances:
        rows.append(rows[-1] + max(instance.step.num_stages, 1))
    return rows[:-1]
