"""`scontrol show nodes` (text, one line per node, or --json) → hosts. The topology is read by slurm_topology.py."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from splitplan.catalogs.documents import read_text
from splitplan.catalogs.errors import DocumentError, Problem, shorten
from splitplan.planner.spec.names import expand_names
from splitplan.planner.spec.readers.hosts import MAX_SOURCE_BYTES, Host, Notes, as_list, as_mapping, read_json
from splitplan.planner.spec.readers.slurm_topology import Places

WHAT = "the output of `scontrol show nodes`, or of `scontrol show nodes --json`"
UNFIT_STATES = (
    "DOWN",
    "DRAIN",
    "DRAINED",
    "DRAINING",
    "FAIL",
    "FAILING",
    "MAINT",
    "NOT_RESPONDING",
    "FUTURE",
    "UNKNOWN",
)
_FIELD = re.compile(r"(?:^|\s)([A-Za-z_]+)=(\S*)")
_GRES = re.compile(r"gpu(?::(?P<type>[^:(,\s]+))?:(?P<count>\d+)(?P<detail>\([^)]*\))?")
_INDEX = re.compile(r"IDX:([\d,-]+)")


def read_slurm(path: Path, places: Places) -> tuple[list[Host], Notes]:
    """(hosts, notes): nodes with `Gres=gpu…` that can take work, placed by the topology."""
    notes = Notes()
    hosts = []
    num_nodes = 0
    for record in _records(path):
        for name in expand_names(record.get("NodeName", ""), where=str(path), key="NodeName"):
            num_nodes += 1
            hosts += _hosts(name, record, places, str(path), notes)
    if not hosts and not notes.lines():
        hint = "GPUs need GresTypes=gpu in slurm.conf and Gres=gpu:TYPE:COUNT on the node lines"
        message = f"none of {num_nodes} nodes has Gres=gpu…" if num_nodes else "holds no NodeName="
        raise DocumentError(Problem(message, str(path), expected=WHAT, next_step=hint))
    return hosts, notes


def _records(path: Path) -> Iterator[Mapping[str, str]]:
    text = read_text(path, "list of Slurm nodes", max_bytes=MAX_SOURCE_BYTES)
    if text.lstrip().startswith("{"):
        for node in map(as_mapping, as_list(as_mapping(read_json(path, WHAT)).get("nodes"))):
            yield _json_record(node)
        return
    starts = [match.start() for match in re.finditer(r"(?m)^\s*NodeName=", text)]
    for start, end in pairwise([*starts, len(text)]):
        record: dict[str, str] = {}
        for match in _FIELD.finditer(text[start:end]):
            record.setdefault(match[1], match[2])
        yield record


def _json_record(node: Mapping[str, Any]) -> Mapping[str, str]:
    memory = node.get("real_memory")
    state = node.get("state")
    return {
        "NodeName": str(node.get("name") or node.get("hostname") or ""),
        "Gres": str(node.get("gres") or ""),
        "GresUsed": str(node.get("gres_used") or ""),
        "RealMemory": str(as_mapping(memory).get("number", memory)),
        "State": "+".join(map(str, state)) if isinstance(state, list) else str(state or ""),
        "AllocTRES": str(node.get("tres_used") or ""),
    }


def _hosts(name: str, record: Mapping[str, str], places: Places, where: str, notes: Notes) -> list[Host]:
    found = [(match["type"] or "", int(match["count"])) for match in _GRES.finditer(record.get("Gres", ""))]
    found = [(kind, count) for kind, count in found if 0 < count <= 128]
    if not found:
        return []
    states = re.split(r"[+*~#!%$@^-]+", record.get("State", "").upper())
    unfit = [state for state in states if state in UNFIT_STATES]
    if "*" in record.get("State", ""):
        unfit.append("NOT_RESPONDING")
    if unfit:
        notes.add(f"left out, {unfit[0].lower()}", name)
        return []
    if len({kind for kind, _ in found}) > 1:
        kinds = ", ".join(kind for kind, _ in found)
        notes.add(f"left out, several GPU types ({shorten(kinds, 60)})", name)
        return []
    kind, num_gpus = found[0][0], sum(count for _, count in found)
    memory_mib = record.get("RealMemory", "")
    return [
        Host(
            name=name,
            gpu=kind,
            num_gpus=num_gpus,
            levels=places.levels(name),
            nvlink_domain=places.block(name),
            host_memory_bytes=int(memory_mib) * 2**20 if memory_mib.isascii() and memory_mib.isdigit() else None,
            gpus_in_use=_in_use(name, record, num_gpus, notes),
            where=where,
        )
    ]


def _in_use(name: str, record: Mapping[str, str], num_gpus: int, notes: Notes) -> tuple[int, ...]:
    """Indices of taken GPUs where Slurm was asked for details (`-d`), else as many as it counts, from the first on."""
    used = _GRES.search(record.get("GresUsed", ""))
    index = _INDEX.search(used["detail"] or "") if used else None
    if index:
        taken = {int(number) for part in index[1].split(",") if part for number in expand_names(f"[{part}]")}
        return tuple(sorted(number for number in taken if number < num_gpus))
    counted = re.search(r"gres/gpu=(\d+)", record.get("AllocTRES", ""))
    count = min(int(used["count"]) if used else int(counted[1]) if counted else 0, num_gpus)
    if count:
        notes.add(f"{count} GPUs are taken, assumed to be the first; `scontrol -d` says which", name)
    return tuple(range(count))
