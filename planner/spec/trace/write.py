"""Our own trace format: JSON lines with `arrival_s`, `input_tokens`, `output_tokens`, and what else a request has."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from splitplan.planner.spec.workload import Requests


def json_lines(requests: Requests, class_names: Sequence[str]) -> Iterator[str]:
    """One line per request, in order of arrival; before them, the size of prefix blocks where there are any."""
    if requests.prefix is not None:
        yield json.dumps({"kind": "Trace", "version": 1, "block_tokens": requests.prefix.block_tokens})
    for record in records(requests, class_names):
        yield json.dumps(record)


def records(requests: Requests, class_names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The same as mappings. Keys that say nothing (one class, nothing cached) are left out."""
    columns = zip(
        requests.arrival_s.tolist(),
        requests.input_tokens.tolist(),
        requests.output_tokens.tolist(),
        requests.class_index.tolist(),
        requests.cached_tokens.tolist(),
        strict=True,
    )
    bounds = [] if requests.prefix is None else requests.prefix.offsets.tolist()
    for row, (arrival_s, prompt, output, index, cached) in enumerate(columns):
        record: dict[str, Any] = {"arrival_s": arrival_s, "input_tokens": prompt, "output_tokens": output}
        if len(class_names) > 1:
            record["class"] = class_names[index]
        if cached:
            record["cached_tokens"] = cached
        if requests.prefix is not None:
            record["hash_ids"] = requests.prefix.hashes[bounds[row] : bounds[row + 1]].tolist()
        yield record
