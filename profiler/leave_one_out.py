"""How well a table predicts its own rows: some are left out, interior ones, and predicted from the rest.

Two protocols. *Points*: one point of a line is missing, its neighbours are there, as other tools report it; it is also
what a table with a hole needs. *Values*: a whole value of an axis is missing from every line (a length nobody measured,
an n between two columns of the GEMM grid), which is what a real model's shapes need, and harder.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from splitplan.catalogs.gpus import Gpu
from splitplan.profiler.profile import OpTable, Profile
from splitplan.profiler.query import OpTimes
from splitplan.profiler.tables.collectives import CollectiveTable
from splitplan.profiler.tables.mla import DEEPSEEK_V3

FloatArray = NDArray[np.float64]

AXES: Mapping[str, tuple[str, ...]] = {
    "gemm": ("m", "n", "k"),
    "prefill_attention": ("new", "batch"),
    "decode_attention": ("context", "batch"),
    "mla_prefill": ("new",),
    "mla_decode": ("context",),
    "moe": ("tokens",),
    "all_reduce": ("num_bytes",),
}
"""What can be left out of each family; the first is the one other tools report."""


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Rows that were left out, with what the rest predicts for them. Signed relative errors, one per row."""

    keys: Mapping[str, NDArray[np.generic]]
    errors: FloatArray

    @property
    def median(self) -> float:
        """Of the absolute relative error."""
        return float(np.median(np.abs(self.errors)))

    @property
    def p90(self) -> float:
        """Of the absolute relative error."""
        return float(np.quantile(np.abs(self.errors), 0.9))


def leave_values_out(profile: Profile, gpu: Gpu, family: str, axis: str) -> HeldOut:
    """Errors when each interior value of `axis` in turn is missing from the whole table."""
    table = profile.tables[family]
    interior = _inside_its_line(table, axis)
    parts = []
    for value in np.unique(table.keys[axis])[1:-1]:
        rows = np.flatnonzero((table.keys[axis] == value) & interior)
        if len(rows):
            parts.append((rows, _predict_without(profile, gpu, family, rows, table.keys[axis] == value)))
    return _held_out(table, parts)


def leave_points_out(
    profile: Profile, gpu: Gpu, family: str, axis: str, *, passes: int = 10, limit: int = 0, seed: int = 0
) -> HeldOut:
    """Errors when one point is missing from each line (GEMM) or each grid (attention, MLA), drawn anew in each pass.

    `limit` > 0 keeps so many of the lines, drawn once.
    """
    table = profile.tables[family]
    interior = np.flatnonzero(_inside_its_line(table, axis))
    inner = take(table, interior)
    fixed = ("dtype", "n", "k") if family == "gemm" else FIXED[family]
    groups = list(groups_of(inner, fixed)) if len(interior) else []
    rng = np.random.default_rng(seed)
    if limit and len(groups) > limit:
        groups = [groups[i] for i in np.sort(rng.choice(len(groups), limit, replace=False))]
    parts = []
    for _ in range(passes if groups else 0):
        rows = np.sort(interior[[group[rng.integers(len(group))] for group in groups]])
        missing = np.zeros(len(table), dtype=bool)
        missing[rows] = True
        parts.append((rows, _predict_without(profile, gpu, family, rows, missing)))
    return _held_out(table, parts)


def _predict_without(
    profile: Profile, gpu: Gpu, family: str, rows: NDArray[np.intp], missing: NDArray[np.bool_]
) -> FloatArray:
    table = profile.tables[family]
    partial = Profile(profile.gpu, profile.engine, "", {family: take(table, np.flatnonzero(~missing))}, {})
    return predict(OpTimes(partial, gpu), family, take(table, rows)) / table.seconds[rows] - 1.0


def _held_out(table: OpTable, parts: list[tuple[NDArray[np.intp], FloatArray]]) -> HeldOut:
    nothing: NDArray[np.intp] = np.zeros(0, dtype=np.intp)
    rows = np.concatenate([nothing, *(part[0] for part in parts)])
    return HeldOut(take(table, rows).keys, np.concatenate([np.zeros(0), *(part[1] for part in parts)]))


def take(table: OpTable, rows: NDArray[np.intp]) -> OpTable:
    """Some rows of a table."""
    return OpTable(table.family, {name: column[rows] for name, column in table.keys.items()}, table.seconds[rows])


def predict(ops: OpTimes, family: str, wanted: OpTable) -> FloatArray:
    """Seconds for each row of `wanted`, by the same calls a step model makes."""
    seconds = np.empty(len(wanted))
    for rows in groups_of(wanted, FIXED[family]):
        part = take(wanted, rows)
        seconds[rows] = _ask(ops, family, part)
    return seconds


FIXED: Mapping[str, tuple[str, ...]] = {
    "gemm": ("dtype",),
    "prefill_attention": ("kv_dtype", "head_dim", "window", "heads", "kv_heads"),
    "decode_attention": ("kv_dtype", "head_dim", "window", "heads", "kv_heads"),
    "mla_prefill": ("dtype", "kv_dtype", "heads"),
    "mla_decode": ("dtype", "kv_dtype", "heads"),
    "moe": ("dtype", "distribution", "hidden", "inter", "topk", "num_experts", "tp", "ep"),
    "all_reduce": ("link", "host", "how", "ranks"),
}
"""What one call is about: the columns in which a line of look-ups is fixed."""


def _ask(ops: OpTimes, family: str, part: OpTable) -> FloatArray:
    keys = part.keys
    fixed = {name: keys[name][0].item() for name in FIXED[family]}
    if family == "gemm":
        return ops.gemm(keys["m"], keys["n"], keys["k"], fixed["dtype"]).seconds
    if family == "prefill_attention":
        return ops.prefill_attention(keys["new"], keys["past"], batch=keys["batch"], **fixed).seconds
    if family == "decode_attention":
        return ops.decode_attention(keys["batch"], keys["context"], **fixed).seconds
    if family == "mla_prefill":
        return ops.mla_prefill(keys["new"], keys["past"], batch=keys["batch"], mla=DEEPSEEK_V3, **fixed).seconds
    if family == "mla_decode":
        return ops.mla_decode(keys["batch"], keys["context"], mla=DEEPSEEK_V3, **fixed).seconds
    if family == "moe":
        return ops.moe(keys["tokens"], **fixed).seconds
    lines = CollectiveTable(ops.profile.tables[family], None) if ops.profile else None
    if lines is None:
        raise KeyError(family)
    line = (fixed["link"], fixed["host"], fixed["how"], fixed["ranks"])
    return lines.read(line, keys["num_bytes"].astype(np.float64)).seconds


def groups_of(table: OpTable, names: tuple[str, ...]) -> Iterator[NDArray[np.intp]]:
    """Rows that agree in all of `names`."""
    codes = np.zeros(len(table), dtype=np.int64)
    for name in names:
        values, code = np.unique(table.keys[name], return_inverse=True)
        codes = codes * len(values) + code
    order = np.argsort(codes, kind="stable")
    yield from np.split(order, np.flatnonzero(np.diff(codes[order])) + 1)


def _inside_its_line(table: OpTable, axis: str) -> NDArray[np.bool_]:
    """Whether a row has neighbours on both sides among the rows that differ from it in `axis` only."""
    names = tuple(name for name in table.keys if name != axis)
    inside = np.zeros(len(table), dtype=bool)
    for rows in groups_of(table, names):
        values = table.keys[axis][rows]
        inside[rows] = (values > values.min()) & (values < values.max())
    return inside
