"""What every reader collects about a host, and how hosts become a Fleet file.

What a source does not say is left out of the file and said in its notes: no NIC is invented, no rack is guessed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from splitplan.catalogs.documents import read_text
from splitplan.catalogs.errors import DocumentError, InputError, Problem, SplitplanError, shorten
from splitplan.catalogs.gpus import Gpu, find_gpu
from splitplan.catalogs.links import find_link, load_links
from splitplan.planner.spec.names import compress_names

MAX_SOURCE_BYTES = 512 * 2**20  # `kubectl get nodes -o json` takes some 15 kB a node
MAX_DESCRIPTION = 2000
MAX_DIGITS = 19
GIB = 2**30


@dataclass(frozen=True, slots=True)
class Host:
    """One GPU host as a source describes it. Empty or None: the source does not say."""

    name: str
    gpu: str  # any name of a GPU type: label, NVML name, Gres type; "": the source names none
    num_gpus: int | None
    levels: tuple[str, ...] = ()  # where it stands, widest first; the last one is its rack
    nvlink_domain: str = ""  # hosts of one NVLink domain share this
    gpu_link: str = ""
    nvlink_domain_gpus: int | None = None
    nic: str = ""
    num_nics: int = 0
    host_memory_bytes: int | None = None
    gpus_in_use: tuple[int, ...] = ()
    pci_roots: tuple[tuple[int, ...], ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    where: str = ""  # file, for messages


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """What the user adds to what the source says."""

    name: str = "imported"
    gpu: str = ""  # type of hosts for which the source names none
    gpus_per_node: int | None = None
    nics: Mapping[str, tuple[str, int]] = field(default_factory=dict)  # by GPU type ("": every type): link, ports
    skip_unknown: bool = False  # leave out hosts whose GPU type is not known instead of stopping


class Notes:
    """What was assumed or left out; the hosts of one remark share a line."""

    def __init__(self) -> None:
        self._hosts: dict[str, list[str]] = {}

    def add(self, text: str, host: str = "") -> None:
        """Note something, about a host where one is named."""
        self._hosts.setdefault(text, []).extend([host] if host else [])

    def lines(self) -> tuple[str, ...]:
        """One line per remark, in order of the first."""
        return tuple(f"{_who(hosts)}: {text}" if hosts else text for text, hosts in self._hosts.items())


def _who(hosts: Sequence[str]) -> str:
    names = sorted(set(hosts), key=natural_key)
    pattern = compress_names(names) or ", ".join(names)
    return shorten(pattern, 60) if len(pattern) <= 60 else f"{shorten(names[0], 30)} and {len(names) - 1} other hosts"


@dataclass(frozen=True, slots=True)
class Imported:
    """A Fleet file's mapping, and what was left out or assumed."""

    document: dict[str, Any]
    notes: tuple[str, ...]


def parse_nics(texts: Iterable[str]) -> dict[str, tuple[str, int]]:
    """`ib-ndr:8` for every host, `l40s=roce-100:2` for one GPU type. Raises InputError."""
    nics: dict[str, tuple[str, int]] = {}
    for text in texts:
        gpu, equals, port = text.rpartition("=")
        link, colon, count = port.partition(":")
        if colon and not (count.isascii() and count.isdigit() and 1 <= int(count) <= 64):
            raise InputError(
                Problem(f"'{shorten(text)}' is no NIC", key="--nic", expected="LINK:PORTS, as in ib-ndr:8")
            )
        found = find_link(link, key="--nic")
        if found.kind in ("nvlink", "pcie", "infinity-fabric"):
            expected = "a network: " + ", ".join(link.name for link in load_links().values() if link.kind in NETWORKS)
            raise InputError(Problem(f"'{found.name}' joins GPUs inside a host", key="--nic", expected=expected))
        nics[find_gpu(gpu, key="--nic").name if equals else ""] = (found.name, int(count or 1))
    return nics


NETWORKS = ("infiniband", "roce", "efa", "ethernet")


def read_json(path: Path, what: str) -> Any:
    """A JSON file of any size within reason. Raises DocumentError with the line."""
    text = read_text(path, "file", max_bytes=MAX_SOURCE_BYTES)
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        problem = Problem(f"not valid JSON: {error.msg.lower()}", f"{path}:{error.lineno}", expected=what)
        raise DocumentError(problem) from None
    except (ValueError, RecursionError) as error:
        raise DocumentError(Problem(f"not valid JSON: {shorten(error)}", str(path), expected=what)) from None


def as_mapping(value: Any) -> Mapping[str, Any]:
    """The value if it is a mapping, else an empty one."""
    return value if isinstance(value, dict) else {}


def as_list(value: Any) -> list[Any]:
    """The value if it is a list, else an empty one."""
    return value if isinstance(value, list) else []


def build_document(hosts: Sequence[Host], options: ImportOptions, source: str, notes: Notes) -> Imported:
    """The Fleet file of these hosts, racks and nodes in natural order. Raises DocumentError with every problem."""
    known = _with_gpus(hosts, options, notes)
    if not known:
        next_step = "see docs/fleets.md for what each source must hold"
        raise DocumentError(Problem("no GPU hosts found", source, expected="hosts with GPUs", next_step=next_step))
    _check_names(known, source)
    named = _rack_names({host.levels for host, _ in known})
    pods = _pod_names({host.levels for host, _ in known})
    if () in named:
        notes.add("the source does not say in which rack some hosts stand: they are put in one rack, 'unplaced'")
    domains = _domain_sizes(known)
    racks = []
    by_rack = sorted(known, key=lambda pair: (natural_key(named[pair[0].levels]), natural_key(pair[0].name)))
    for name, members in groupby(by_rack, key=lambda pair: named[pair[0].levels]):
        rack = list(members)
        entry: dict[str, Any] = {"name": name}
        if pods.get(rack[0][0].levels):
            entry["pod"] = pods[rack[0][0].levels]
        entry["nodes"] = _node_entries(rack, domains, options, notes)
        racks.append(entry)
    lines = notes.lines()
    description = f"Imported from {source}; " + "; ".join(lines) if lines else f"Imported from {source}"
    head = {"kind": "Fleet", "version": 1, "name": options.name, "description": description[:MAX_DESCRIPTION].strip()}
    return Imported({**head, "racks": racks}, lines)


def natural_key(name: str) -> tuple[tuple[int, int | str], ...]:
    """Sorts node-2 before node-10."""
    parts = re.split(r"(\d+)", name)
    return tuple(
        (0, int(part)) if part.isdigit() and part.isascii() and len(part) < MAX_DIGITS else (1, part) for part in parts
    )


def _with_gpus(hosts: Sequence[Host], options: ImportOptions, notes: Notes) -> list[tuple[Host, Gpu]]:
    found, problems = [], []
    skipped: dict[str, list[str]] = {}
    for host in hosts:
        raw = host.gpu or options.gpu
        if not raw:
            hint = "give the type with --gpu"
            problems.append(
                Problem(f"host '{shorten(host.name, 60)}': the source names no GPU type", host.where, next_step=hint)
            )
            skipped.setdefault("no GPU type", []).append(host.name)
            continue
        try:
            found.append((host, find_gpu(raw, where=host.where, key=shorten(host.name, 60))))
        except SplitplanError as error:
            problems.extend(error.problems)
            skipped.setdefault(raw, []).append(host.name)
    if problems and not options.skip_unknown:
        way = "or leave such hosts out with --skip-unknown"
        raise DocumentError([*problems, Problem(f"{len(problems)} hosts cannot be planned with", next_step=way)])
    for raw, names in skipped.items():
        for name in names:
            notes.add(f"left out, '{shorten(raw, 40)}' cannot be planned with", name)
    return found


def _check_names(known: Sequence[tuple[Host, Gpu]], source: str) -> None:
    seen: set[str] = set()
    for host, _ in known:
        bad = (
            not host.name
            or len(host.name) > 200
            or any(mark in host.name for mark in "[]{}")
            or not host.name.isprintable()
        )
        if bad:
            raise DocumentError(Problem(f"'{shorten(host.name)}' cannot be the name of a host", host.where or source))
        if host.name in seen:
            hint = "give each host once; of several files, those of one moment"
            raise DocumentError(
                Problem(f"host '{shorten(host.name)}' stands twice", host.where or source, next_step=hint)
            )
        seen.add(host.name)


def _rack_names(places: set[tuple[str, ...]]) -> dict[tuple[str, ...], str]:
    """A name per place: the nearest level where that is unique, else with as many levels before it as it takes."""
    depth = max((len(place) for place in places), default=0)
    for used in range(1, depth + 1):
        names = {place: "-".join(clean(part) for part in place[-used:]) for place in places if place}
        if len(set(names.values())) == len(names):
            break
    else:
        names = {place: f"rack-{index}" for index, place in enumerate(sorted(places), 1) if place}
    return names | ({(): "unplaced"} if () in places else {})


def _pod_names(places: set[tuple[str, ...]]) -> dict[tuple[str, ...], str]:
    """The level above each rack, where there is more than one of them."""
    parents = {place[:-1] for place in places if len(place) > 1}
    if len(parents) < 2:
        return {}
    names = _rack_names(parents)
    return {place: names[place[:-1]] for place in places if len(place) > 1}


def clean(name: str) -> str:
    """A label value as part of a rack's name."""
    return re.sub(r"[^\w.:-]+", "-", name).strip("-")[:60] or "unnamed"


def _domain_sizes(known: Sequence[tuple[Host, Gpu]]) -> dict[tuple[tuple[str, ...], str], int]:
    """GPUs of every NVLink domain that spans hosts of a rack; only fabrics made to span hosts can."""
    sizes: dict[tuple[tuple[str, ...], str], int] = {}
    for host, gpu in known:
        fabric = load_links()[gpu.nvlink].domain_gpus if gpu.nvlink else None
        if host.nvlink_domain and fabric and fabric > gpu.gpus_per_node:
            key = (host.levels, host.nvlink_domain)
            sizes[key] = sizes.get(key, 0) + (host.num_gpus or gpu.gpus_per_node)
    return sizes


def _node_entries(
    rack: Sequence[tuple[Host, Gpu]],
    domains: Mapping[tuple[tuple[str, ...], str], int],
    options: ImportOptions,
    notes: Notes,
) -> list[dict[str, Any]]:
    entries = [(host.name, _node_entry(host, gpu, domains, options, notes)) for host, gpu in rack]
    found = []
    for _, run in groupby(entries, key=lambda pair: json.dumps(pair[1])):
        members = list(run)
        pattern = compress_names([name for name, _ in members])
        names = [pattern] if pattern is not None else [name for name, _ in members]
        found += [{"name": name, **members[0][1]} for name in names]
    return found


def _node_entry(
    host: Host,
    gpu: Gpu,
    domains: Mapping[tuple[tuple[str, ...], str], int],
    options: ImportOptions,
    notes: Notes,
) -> dict[str, Any]:
    num_gpus = host.num_gpus or options.gpus_per_node
    if num_gpus is None:
        num_gpus = gpu.gpus_per_node
        notes.add(f"the source does not count GPUs: {num_gpus} per host assumed for {gpu.name}")
    nic, num_nics = (host.nic, host.num_nics) if host.nic else options.nics.get(gpu.name, options.nics.get("", ("", 0)))
    if not nic:
        notes.add(f"no NIC is known for hosts with {gpu.name}: give --nic, or KV cannot leave them")
    domain = domains.get((host.levels, host.nvlink_domain)) or host.nvlink_domain_gpus
    entry: dict[str, Any] = {
        "gpu": gpu.name,
        "gpus": num_gpus,
        "gpu_link": host.gpu_link or None,
        "nvlink_domain_gpus": domain if domain != num_gpus else None,
        "nics": {"link": nic, "count": num_nics} if nic else None,
        "host_memory_gib": round(host.host_memory_bytes / GIB, 1) if host.host_memory_bytes else None,
        "pci_roots": [list(root) for root in host.pci_roots] or None,
        "labels": dict(host.labels) or None,
        "gpus_in_use": list(host.gpus_in_use) or None,
    }
    return {key: value for key, value in entry.items() if value is not None}
