"""The plan of points: what to measure for a list of models and tensor parallel sizes, in the order of its worth.

Points are operation shapes, so models and ranks that share a shape share its measurements. Each line of a table (all
dimensions fixed but the one or two that vary while serving) is refined by bisection: its ends first, then the middle,
then the quarters. `level` counts the bisections; a plan runs level by level, cheap points first, so that a run that is
cut short at any moment has covered every line evenly, and a budget sheds the finest refinements.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from splitplan.catalogs.errors import InputError, Problem
from splitplan.catalogs.models import BYTES_PER_ELEMENT, Model
from splitplan.profiler.families import FAMILIES
from splitplan.profiler.rates import Rates
from splitplan.profiler.shapes import (
    DEEPSEEK_V3_BLOCK,
    attention_shapes,
    fits_tensor_parallel,
    gemm_shapes,
    mla_heads,
    moe_shapes,
)
from splitplan.profiler.timer import Effort

TOKENS = tuple(2**power for power in range(14))  # 1 … 8192
TILE_PROBES = (17, 129, 257)  # one past a tile: GEMM time is a staircase in m, and these show where it steps
SEQUENCES = tuple(2**power for power in range(10))  # rows of the LM head: 1 … 512
NEW_TOKENS = (128, 512, 2048, 8192)
PAST_TOKENS = (0, 2048, 8192, 32768)
BATCHES = tuple(2**power for power in range(9))  # 1 … 256
CONTEXTS = (256, 1024, 4096, 16384, 65536)
MESSAGE_BYTES = tuple(2**power for power in range(12, 29, 2))  # 4 KiB … 256 MiB
COPY_BYTES = tuple(2**power for power in range(16, 31, 2))  # 64 KiB … 1 GiB
ROUTING = "power_law_1.2"  # what planning assumes of real traffic, and so what is measured
NIXL_TRANSFERS = ((2**12, 2**12), (2**26, 2**14), (2**26, 2**16), (2**26, 2**18), (2**26, 2**20), (2**26, 2**22))
"""(bytes in all, bytes of a descriptor): one small one for the latency, then 64 MiB in pieces of each size."""
SETUP_S = 0.02  # buffers and first call of a point
MAX_SHARE_OF_BUDGET = 0.04  # a single point may not eat more,
LARGEST_SHARE_OF_BUDGET = 0.1  # except the cheapest of its line, so that no line is given up whole


@dataclass(frozen=True, slots=True)
class Point:
    """One operation shape to measure. `shape` is the row's key in the family's table; `detail` helps to build it."""

    family: str
    shape: tuple[tuple[str, int | str], ...]
    detail: tuple[tuple[str, int], ...] = ()
    level: int = 0
    op_s: float = 0.0  # estimate of one call

    @property
    def key(self) -> str:
        """The point in words; equal keys are the same measurement."""
        return " ".join([self.family, *(f"{name}={value}" for name, value in self.shape)])

    def __getitem__(self, name: str) -> int:
        """A whole-number dimension, from the shape or the detail."""
        value = dict(self.shape).get(name, dict(self.detail).get(name, 0))
        assert isinstance(value, int)
        return value

    def text(self, name: str) -> str:
        """A dimension that is a word."""
        return str(dict(self.shape)[name])


@dataclass(frozen=True, slots=True)
class MeasurementPlan:
    """Points in the order in which they are measured, and what a budget left out."""

    points: tuple[Point, ...]
    shed: tuple[Point, ...]
    effort: Effort
    estimate_s: float

    @property
    def plan_hash(self) -> str:
        """Which points, in which order, at which effort."""
        text = "\n".join([repr(self.effort), *(point.key for point in self.points)])
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Request:
    """What to plan for."""

    models: tuple[Model, ...]
    tensor_parallel: tuple[int, ...] = (1,)
    dtypes: tuple[str, ...] = ("bf16",)
    kv_dtypes: tuple[str, ...] = ("bf16",)
    device_kind: str = "cuda"  # or "cpu"
    kv_limit_bytes: int = 10 * 2**30  # of one layer's KV
    link: str = ""  # between the GPUs of this host, by its catalog name
    host_gpus: int = 1
    has_nixl: bool = False


def make_plan(request: Request, rates: Rates, budget_s: float | None = None) -> MeasurementPlan:
    """The points for `request`, shed to `budget_s` by the estimates of `rates`.

    Raises InputError when a tensor parallel size divides no model, or when the budget holds not one point.
    """
    points = _distinct(request)
    if budget_s is None:
        effort = Effort()
        ordered = _in_order(_with_levels([replace(p, op_s=rates.seconds(p)) for p in points]))
        return MeasurementPlan(ordered, (), effort, _total_s(ordered, effort, rates.family_setup_s))
    return _shed([replace(p, op_s=rates.seconds(p)) for p in points], budget_s, rates.family_setup_s)


def point_cost_s(point: Point, effort: Effort) -> float:
    """Seconds one point takes: setting up, a first call that is checked, warming up, repeating."""
    effort = effort.for_call(point.op_s)
    calls = effort.min_repetitions + int(effort.warmup_s > 0)
    return SETUP_S + point.op_s + max(effort.warmup_s + effort.repeat_s, point.op_s * calls)


def _shed(points: Sequence[Point], budget_s: float, family_setup_s: float) -> MeasurementPlan:
    effort = _effort_within(budget_s, len(points))
    ceiling_s = max(MAX_SHARE_OF_BUDGET * budget_s, 2 * (effort.warmup_s + effort.repeat_s))
    effort = replace(effort, long_call_s=ceiling_s / (2 + effort.min_repetitions))
    cheapest = _cheapest_of_lines(points)
    affordable = [
        point
        for point in points
        if (cost_s := point_cost_s(point, effort)) <= ceiling_s
        or (point.key in cheapest and cost_s <= LARGEST_SHARE_OF_BUDGET * budget_s)
    ]
    kept: list[Point] = []
    spent_s = family_setup_s * len({point.family for point in affordable})
    ordered = _in_order(_with_levels(affordable))
    for point in ordered:
        cost_s = point_cost_s(point, effort)
        if spent_s + cost_s > budget_s:
            break
        kept.append(point)
        spent_s += cost_s
    if not kept:
        problem = Problem(f"a budget of {budget_s:g} s holds not one point", "", "--budget-s", "at least 20 s")
        raise InputError(problem)
    kept_keys = {point.key for point in kept}
    shed = tuple(point for point in points if point.key not in kept_keys)
    return MeasurementPlan(tuple(kept), shed, effort, spent_s)


def _effort_within(budget_s: float, count: int) -> Effort:
    """A quarter of the budget goes to repetitions when it is short, the default effort when it is long."""
    per_point_s = min(max(0.25 * budget_s / max(count, 1), 0.01), 0.125)
    return Effort(warmup_s=per_point_s / 5, repeat_s=per_point_s * 4 / 5)


def _total_s(points: Sequence[Point], effort: Effort, family_setup_s: float) -> float:
    families = {point.family for point in points}
    return family_setup_s * len(families) + sum(point_cost_s(point, effort) for point in points)


def _in_order(points: Iterable[Point]) -> tuple[Point, ...]:
    return tuple(sorted(points, key=lambda point: (point.level, point.op_s, point.key)))


def _distinct(request: Request) -> list[Point]:
    """All points of all models and ranks, each shape once."""
    found: dict[str, Point] = {}
    for model in request.models:
        sizes = [tp for tp in request.tensor_parallel if fits_tensor_parallel(model, tp)]
        if not sizes:
            tried = ", ".join(str(tp) for tp in request.tensor_parallel)
            problem = Problem(f"{model.name} does not divide over {tried} ranks", "", "--tp", "a divisor of its heads")
            raise InputError(problem)
        for tp in sizes:
            for point in _model_points(model, tp, request):
                found.setdefault(point.key, point)
    for point in _host_points(request):
        found.setdefault(point.key, point)
    return list(found.values())


def make_point(family: str, values: Mapping[str, int | str], detail: Mapping[str, int] | None = None) -> Point:
    """A point whose shape is in the family's column order."""
    return Point(family, tuple((name, values[name]) for name in FAMILIES[family]), tuple((detail or {}).items()))


def _model_points(model: Model, tp: int, request: Request) -> Iterable[Point]:
    for dtype in request.dtypes:
        for gemm in gemm_shapes(model, tp):
            rows = SEQUENCES if gemm.per_sequence else sorted({*TOKENS, *TILE_PROBES})
            for m in rows:
                kept = "bf16" if gemm.always_16_bit else dtype
                yield make_point("gemm", {"dtype": kept, "n": gemm.n, "k": gemm.k, "m": m})
        for moe in moe_shapes(model, tp):
            for tokens in TOKENS:
                shape: dict[str, int | str] = {name: getattr(moe, name) for name in moe.__slots__}
                yield make_point("moe", {**shape, "dtype": dtype, "distribution": ROUTING, "tokens": tokens})
    for kv_dtype in request.kv_dtypes:
        yield from _attention_points(model, tp, kv_dtype, request.kv_limit_bytes)
        for dtype in request.dtypes:
            yield from _mla_points(model, tp, dtype, kv_dtype, request.kv_limit_bytes)
    yield from _elementwise_points(model, tp)


def _attention_points(model: Model, tp: int, kv_dtype: str, limit_bytes: int) -> Iterable[Point]:
    for shape in attention_shapes(model, tp):
        fixed: dict[str, int | str] = {name: getattr(shape, name) for name in shape.__slots__}
        fixed["kv_dtype"] = kv_dtype
        token_bytes = 2 * shape.kv_heads * shape.head_dim * BYTES_PER_ELEMENT[kv_dtype]
        for new, past in product(NEW_TOKENS, PAST_TOKENS):
            if (new + past) * token_bytes <= limit_bytes:
                yield make_point("prefill_attention", {**fixed, "batch": 1, "past": past, "new": new})
        for batch, context in product(BATCHES, CONTEXTS):
            if batch * context * token_bytes <= limit_bytes:
                yield make_point("decode_attention", {**fixed, "batch": batch, "context": context})


def _mla_points(model: Model, tp: int, dtype: str, kv_dtype: str, limit_bytes: int) -> Iterable[Point]:
    """The tables of latent attention are of DeepSeek-V3's dimensions and differ in heads; others scale from them."""
    detail = {name: getattr(DEEPSEEK_V3_BLOCK, name) for name in DEEPSEEK_V3_BLOCK.__slots__ if name != "heads"}
    token_bytes = (detail["kv_lora"] + detail["rope_dim"]) * BYTES_PER_ELEMENT[kv_dtype]
    for heads in mla_heads(model, tp):
        fixed: dict[str, int | str] = {"dtype": dtype, "kv_dtype": kv_dtype, "heads": heads, "batch": 1}
        for new, past in product(NEW_TOKENS, PAST_TOKENS):
            yield make_point("mla_prefill", {**fixed, "past": past, "new": new}, detail)
        for batch, context in product(BATCHES, CONTEXTS):
            if batch * context * token_bytes <= limit_bytes:
                yield make_point("mla_decode", {**fixed, "batch": batch, "context": context}, detail)


def _elementwise_points(model: Model, tp: int) -> Iterable[Point]:
    """Fused residual and norm read two rows and write two; SwiGLU reads two, writes one; rotary reads and writes."""
    width = model.intermediate_size // tp if model.moe is None else model.moe.moe_intermediate_size
    kinds = [
        ("rmsnorm", 4 * model.hidden_size, {"columns": model.hidden_size}),
        ("swiglu", 3 * width, {"columns": width}),
    ]
    for shape in attention_shapes(model, tp):
        columns = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
        heads = {"heads": shape.heads, "kv_heads": shape.kv_heads, "head_dim": shape.head_dim}
        kinds.append(("rotary", 2 * columns, {"columns": columns, **heads}))
    for tokens, (kind, values, detail) in product(TOKENS, kinds):
        yield make_point("elementwise", {"kind": kind, "num_bytes": 2 * tokens * values}, {"tokens": tokens, **detail})


def _host_points(request: Request) -> Iterable[Point]:
    """Copies between host and device and between GPUs, and collectives among this host's GPUs."""
    directions = (
        ("device-to-device",)
        if request.device_kind == "cpu"
        else ("host-to-device", "device-to-host", "device-to-device")
    )
    if request.host_gpus > 1 and request.device_kind != "cpu":
        directions = (*directions, "peer-to-peer")
    copy_limit = 2**26 if request.device_kind == "cpu" else 2**30
    for direction in directions:
        ranks = 2 if direction == "peer-to-peer" else 1
        for num_bytes in COPY_BYTES:
            if num_bytes <= copy_limit:
                values: dict[str, int | str] = {"link": direction, "host": "", "how": "copy", "ranks": ranks}
                yield make_point("send", {**values, "num_bytes": num_bytes})
    if request.has_nixl:
        place = "dram" if request.device_kind == "cpu" else "vram"
        for num_bytes, descriptor_bytes in NIXL_TRANSFERS:
            values = {"link": "nixl", "host": place, "how": f"descriptors-{descriptor_bytes}", "ranks": 2}
            yield make_point("send", {**values, "num_bytes": num_bytes})
    limit = 2**24 if request.device_kind == "cpu" else 2**28
    how = "eager" if request.device_kind == "cpu" else "nccl"
    for ranks in sorted({tp for tp in request.tensor_parallel if tp > 1}):
        if ranks > request.host_gpus:
            continue
        for family in ("all_reduce", "all_gather", "send"):
            for num_bytes in MESSAGE_BYTES:
                if num_bytes <= limit:
                    values = {"link": request.link, "host": "", "how": how, "ranks": ranks, "num_bytes": num_bytes}
                    yield make_point(family, values)


VARYING: Mapping[str, tuple[str, ...]] = {
    "gemm": ("m",),
    "prefill_attention": ("past", "new"),
    "decode_attention": ("batch", "context"),
    "mla_prefill": ("past", "new"),
    "mla_decode": ("batch", "context"),
    "moe": ("tokens",),
    "elementwise": ("num_bytes",),
    "all_reduce": ("num_bytes",),
    "all_gather": ("num_bytes",),
    "send": ("num_bytes",),
}
"""The dimensions that vary while serving; the others name a line."""


def _lines(points: Iterable[Point]) -> list[list[Point]]:
    """Points that differ only in what varies while serving."""
    lines: dict[tuple[object, ...], list[Point]] = {}
    for point in points:
        fixed = tuple((name, value) for name, value in point.shape if name not in VARYING[point.family])
        lines.setdefault((point.family, fixed), []).append(point)
    return list(lines.values())


def _cheapest_of_lines(points: Iterable[Point]) -> set[str]:
    return {min(line, key=lambda point: (point.op_s, point.key)).key for line in _lines(points)}


def _with_levels(points: Sequence[Point]) -> list[Point]:
    """Each point with its refinement level: along each varying dimension, ends are 0, the middle is 1, and so on."""
    levelled = []
    for line in _lines(points):
        names = VARYING[line[0].family]
        by_axis = {name: _axis_levels({point[name] for point in line}) for name in names}
        levelled += [replace(p, level=sum(by_axis[name][p[name]] for name in names)) for p in line]
    return levelled


def _axis_levels(values: Iterable[int]) -> dict[int, int]:
    """Level of each value of one axis. Tile probes come after the regular grid, however few values there are."""
    regular = sorted(value for value in set(values) if value not in TILE_PROBES)
    levels = dict(zip(regular, refinement_levels(len(regular)), strict=True))
    finest = max(levels.values(), default=0)
    return levels | {value: finest for value in values if value in TILE_PROBES}


def refinement_levels(count: int) -> list[int]:
    """Bisection levels of `count` ordered places: [0, 2, 1, 2, 0] for five."""
    levels = [0] * count

    def bisect(low: int, high: int, level: int) -> None:
        if high - low > 1:
            middle = (low + high) // 2
            levels[middle] = level
            bisect(low, middle, level + 1)
            bisect(middle, high, level + 1)

    bisect(0, count - 1, 1)
    return levels
