"""Fewer columns before any solver runs: filters people ask for, dominance, and families that connect alike.

A filter is `[role:]test[,test…]`, where a test is a GPU name, `gpu=`, `tp=`, `pp=`, `ep=`, `kv=`, `dtype=` or `name=`;
`role=gpu` is short for `role:gpu`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from splitplan.catalogs.errors import InputError, Problem, UsageError, nearest_names
from splitplan.catalogs.gpus import find_gpu
from splitplan.planner.columns.column import ROLES, Column, Reach
from splitplan.planner.program.types import ProgramInput, ProgramOptions

REACH_ORDER: dict[Reach, int] = {"node": 0, "rack": 1, "fleet": 2}
_FIELDS: dict[str, Callable[[Column], str]] = {
    "gpu": lambda column: column.gpu,
    "tp": lambda column: str(column.tensor_parallel),
    "pp": lambda column: str(column.pipeline_parallel),
    "ep": lambda column: str(column.expert_parallel),
    "kv": lambda column: column.kv_dtype,
    "dtype": lambda column: column.weight_dtype,
    "name": lambda column: column.name,
}


@dataclass(frozen=True, slots=True)
class ColumnFilter:
    """Which columns a `--pin` or `--forbid` speaks of."""

    roles: tuple[str, ...]
    tests: tuple[tuple[str, str], ...]

    def speaks_of(self, column: Column) -> bool:
        """Whether the column has a role that the filter is about."""
        return column.role in self.roles

    def matches(self, column: Column) -> bool:
        """Whether the column is one of those described; a mixed pipeline is, by any of its GPU types."""
        return self.speaks_of(column) and all(
            _FIELDS[key](column) == value or (key == "gpu" and value in column.gpu_types) for key, value in self.tests
        )

    def is_all_of(self, column: Column) -> bool:
        """Whether all of the column is as described: a mixed pipeline only under the names of all its GPU types."""
        return self.speaks_of(column) and all(_FIELDS[key](column) == value for key, value in self.tests)


def parse_filter(text: str) -> ColumnFilter:
    """Read "decode=a100-sxm", "prefill:tp=2", "l40s" or "gpu=h100-sxm,tp=4". Raises UsageError."""
    roles: tuple[str, ...] = ROLES
    rest = text.strip()
    for role in ROLES:
        if rest.startswith((f"{role}:", f"{role}=")):
            roles, rest = (role,), rest[len(role) + 1 :]
    tests = []
    for part in rest.split(","):
        key, equals, value = part.strip().partition("=")
        if not equals:
            key, value = "gpu", key
        if key not in _FIELDS or not value:
            near = nearest_names(key, [*_FIELDS, *ROLES])
            hint = f"did you mean {' or '.join(near)}?" if near else ""
            expected = "[role:]test[,test…] with tests gpu=, tp=, pp=, ep=, kv=, dtype=, name= or a GPU name"
            raise UsageError(Problem(f"cannot read the column filter '{text}'", expected=expected, next_step=hint))
        tests.append((key, _catalog_name(value) if key == "gpu" else value))
    return ColumnFilter(roles, tuple(tests))


def _catalog_name(gpu: str) -> str:
    """The catalog's name of a GPU type under any of its names; a name it does not know stays, and matches nothing."""
    try:
        return find_gpu(gpu).name
    except InputError:
        return gpu


def unmatched_pins(columns: Sequence[Column], options: ProgramOptions) -> list[Problem]:
    """Pins and requirements that no column matches at all: nothing could ever satisfy them."""
    problems = []
    for text in (*options.pin, *options.require):
        wanted = parse_filter(text)
        found = wanted.is_all_of if text in options.pin else wanted.matches
        if any(found(column) for column in columns):
            continue
        gpus = sorted({column.gpu for column in columns if wanted.speaks_of(column)})
        message = f"no kind of instance that meets the targets on this fleet matches '{text}'"
        problems.append(Problem(message, next_step=f"there are some on: {', '.join(gpus) or 'no GPU type'}"))
    return problems


def allowed_columns(columns: Sequence[Column], options: ProgramOptions) -> tuple[Column, ...]:
    """Columns that mode, only_gpu, pin and forbid leave."""
    pins = [parse_filter(text) for text in options.pin]
    bans = [parse_filter(text) for text in options.forbid]
    return tuple(
        column
        for column in columns
        if (options.mode != "disagg" or column.role != "colocated")
        and (options.mode != "colocated" or column.role == "colocated")
        and (options.only_gpu is None or column.gpu == options.only_gpu)
        and (not options.whole_groups or bool(np.all(np.isfinite(column.work_s_per_request))))
        and all(pin.is_all_of(column) or not pin.speaks_of(column) for pin in pins)
        and not any(ban.matches(column) for ban in bans)
    )


def connections(columns: Sequence[Column], allowed: Callable[[Column, Column], bool]) -> list[frozenset[int]]:
    """For every column the indices of the columns it may exchange KV with (() for colocated ones)."""
    partners: list[set[int]] = [set() for _ in columns]
    for index, prefill in enumerate(columns):
        if prefill.role != "prefill":
            continue
        for other, decode in enumerate(columns):
            if decode.role == "decode" and allowed(prefill, decode):
                partners[index].add(other)
                partners[other].add(index)
    return [frozenset(group) for group in partners]


def undominated(columns: Sequence[Column], allowed: Callable[[Column, Column], bool]) -> tuple[Column, ...]:
    """Drop each column that m copies of another replace on the same GPUs: no slower, no hungrier, no less connected.

    Exact only where the smaller instance divides the larger one, so that the larger one's slot holds the copies.
    """
    partners = connections(columns, allowed)
    kept = list(range(len(columns)))
    for index in range(len(columns)):
        rivals = (other for other in kept if other != index)
        if any(_replaces(columns[other], columns[index], partners[other], partners[index]) for other in rivals):
            kept.remove(index)
    return tuple(columns[index] for index in kept)


def _replaces(one: Column, other: Column, partners: frozenset[int], other_partners: frozenset[int]) -> bool:
    if (one.role, one.gpu, one.gpu_link) != (other.role, other.gpu, other.gpu_link):
        return False
    if (one.above_tokens, one.up_to_tokens) != (other.above_tokens, other.up_to_tokens):
        return False  # worked out for other prompts
    if other.num_gpus % one.num_gpus or other.tensor_parallel % one.tensor_parallel:
        return False
    if one.pipeline_parallel > other.pipeline_parallel or one.kv_dtype != other.kv_dtype:
        return False
    if REACH_ORDER[one.transfer_reach] < REACH_ORDER[other.transfer_reach] or not other_partners <= partners:
        return False
    if (one.stages or other.stages) and set(one.parts) != set(other.parts):
        return False
    copies = other.num_gpus // one.num_gpus
    if one.watts * copies > other.watts:
        return False
    return bool(np.all(one.work_s_per_request <= other.work_s_per_request * copies))


@dataclass(frozen=True, slots=True)
class Kind:
    """KV flows that are alike: from a family of prefill columns to a family of decode columns."""

    name: str
    prefill: tuple[int, ...]  # column indices
    decode: tuple[int, ...]
    kv_dtype: str
    reach: Reach


@dataclass(frozen=True, slots=True)
class Families:
    """Columns that connect alike, and the kinds of flow between them."""

    prefill: tuple[tuple[int, ...], ...]
    decode: tuple[tuple[int, ...], ...]
    kinds: tuple[Kind, ...]


def families(columns: Sequence[Column], allowed: Callable[[Column, Column], bool]) -> Families:
    """Group columns with the same partners, KV dtype and reach; one kind of flow per connected pair of groups."""
    partners = connections(columns, allowed)
    prefill = _alike(columns, partners, "prefill")
    decode = _alike(columns, partners, "decode")
    kinds = []
    for number, senders in enumerate(prefill):
        for other, receivers in enumerate(decode):
            if receivers[0] not in partners[senders[0]]:
                continue
            first, last = columns[senders[0]], columns[receivers[0]]
            reach = min(first.transfer_reach, last.transfer_reach, key=REACH_ORDER.__getitem__)
            kinds.append(Kind(f"P{number}-D{other}", senders, receivers, first.kv_dtype, reach))
    return Families(prefill, decode, tuple(kinds))


def _alike(columns: Sequence[Column], partners: Sequence[frozenset[int]], role: str) -> tuple[tuple[int, ...], ...]:
    groups: dict[tuple[object, ...], list[int]] = {}
    for index, column in enumerate(columns):
        if column.role == role and partners[index]:
            groups.setdefault((partners[index], column.kv_dtype, column.transfer_reach), []).append(index)
    return tuple(tuple(group) for group in groups.values())


def serveable(columns: Iterable[Column], class_index: int, role: str) -> bool:
    """Whether any column of the role can take the class."""
    return any(column.role == role and np.isfinite(column.work_s_per_request[class_index]) for column in columns)


def reduce_columns(problem: ProgramInput) -> tuple[Column, ...]:
    """The columns the program works on. A required kind is never dropped for a better one."""
    allowed = allowed_columns(problem.columns, problem.options)
    wanted = [parse_filter(text) for text in problem.options.require]
    running = {entry.column for entry in problem.running}
    kept = {column.name for column in undominated(allowed, problem.pairs_allowed)} | running
    return tuple(
        column for column in allowed if column.name in kept or any(filter_.matches(column) for filter_ in wanted)
    )
