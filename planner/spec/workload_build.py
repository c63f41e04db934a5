"""From a Workload file, a form such as `fixed:1024/200`, or a trace to a Workload."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from splitplan.catalogs.documents import Document, KeyPath, read_document, validate
from splitplan.catalogs.errors import DocumentError, InputError, Problem, SplitplanError, shorten
from splitplan.planner.spec.forms import form_lengths, is_form
from splitplan.planner.spec.length_rows import LengthRows, joined, rows_of_file
from splitplan.planner.spec.reading import Reading, check_kind
from splitplan.planner.spec.shipped import file_of
from splitplan.planner.spec.slo import Slo, parse_slo
from splitplan.planner.spec.trace.read import read_trace
from splitplan.planner.spec.workload import Gaps, Profile, RequestClass, Workload, check_rate
from splitplan.planner.spec.workload_schema import ArrivalsFile, TraceFile, WorkloadFile
from splitplan.planner.spec.workload_trace import workload_of_trace

MAX_WORKLOAD_BYTES = 16 * 2**20
HEAD_BYTES = 4096
MAX_GAP_OVER_MEAN = 1e9
NOTEWORTHY_BUSIEST_MINUTE = 1.2
MIN_SHARE_SUM, MAX_SHARE_SUM = 0.999, 1.001


def read_workload(
    name_or_path: str | Path,
    rate_req_per_s: float | None,
    *,
    start_s: float,
    end_s: float | None,
    columns: Mapping[str, str],
) -> Workload:
    """See `splitplan.planner.spec.workload.load_workload`."""
    name = str(name_or_path)
    if rate_req_per_s is not None:
        check_rate(rate_req_per_s, where=name)
    if is_form(name):
        workload = _workload_of_form(name, rate_req_per_s)
    elif is_description(path := file_of("workload", name)):
        document = read_document(path, "workload", max_bytes=MAX_WORKLOAD_BYTES)
        if start_s or end_s is not None or columns:
            raise InputError(Problem("is a description: it has no window to cut and no columns", str(path)))
        workload = build_workload(document, rate_req_per_s)
    else:
        trace = read_trace(path, columns=columns, start_s=start_s, end_s=end_s)
        workload = workload_of_trace(trace, path.name, rate_req_per_s)
    return replace(workload, content_hash=workload_hash(workload))


def is_description(path: Path) -> bool:
    """Whether a file is a Workload file, rather than a trace: by its ending, else by how it begins."""
    if path.suffix in (".yaml", ".yml"):
        return True
    try:
        with open(path, "rb") as handle:
            head = handle.read(HEAD_BYTES)
    except (OSError, ValueError):
        return False  # the reader of traces says what is wrong
    return re.search(rb"""(?m)(^|[{,"'\s])kind["']?\s*:\s*["']?Workload\b""", head) is not None


def build_workload(document: Document, rate_req_per_s: float | None = None) -> Workload:
    """Check a parsed Workload file and build the workload. Raises DocumentError with every problem."""
    check_kind(document, "Workload")
    file = validate(document, WorkloadFile)
    reading = Reading(document)
    ways = [name for name in ("lengths", "classes", "trace") if getattr(file, name)]
    if len(ways) != 1:
        message = f"gives {' and '.join(ways)}" if ways else "says nothing of requests"
        reading.reject((), message, expected="one of `lengths`, `classes` and `trace`")
    if file.rate_req_per_s is not None and file.hourly_req_per_s:
        reading.reject(("hourly_req_per_s",), "given together with `rate_req_per_s`", expected="one of the two")
    if file.hourly_req_per_s and not any(file.hourly_req_per_s):
        reading.reject(("hourly_req_per_s",), "has no request in any hour", expected="at least one rate above 0")
    if file.trace is not None:
        return _replayed(file, file.trace, rate_req_per_s, reading)
    rows = _rows(file, reading)
    gaps = _gaps(file.arrivals, reading)
    profile = _profile(file.arrivals, reading)
    classes = _classes(file, reading)
    reading.stop_on_problems()
    own_rate = max(file.hourly_req_per_s) if file.hourly_req_per_s else file.rate_req_per_s
    rate = _known_rate(own_rate, rate_req_per_s, file.name, document.path)
    scale = rate / own_rate if own_rate else 1.0
    return Workload(
        name=file.name,
        rate_req_per_s=rate,
        arrival_scv=_scv(file.arrivals, gaps),
        classes=classes,
        input_tokens=rows.input_tokens,
        output_tokens=rows.output_tokens,
        class_index=rows.class_index,
        weight=rows.weight,
        prefix_hit_ratio=float(rows.cached_tokens @ rows.weight / (rows.input_tokens @ rows.weight)),
        source=file.source or document.path,
        cached_tokens=rows.cached_tokens,
        gaps=gaps,
        hourly_req_per_s=tuple(hour * scale for hour in file.hourly_req_per_s),
        notes=_stationary_note(file),
        profile=profile,
    )


def _stationary_note(file: WorkloadFile) -> tuple[str, ...]:
    steady = file.arrivals.profile is None
    if not steady or file.busiest_minute is None or file.busiest_minute < NOTEWORTHY_BUSIEST_MINUTE:
        return ()
    return (
        f"{file.name}: the busiest minute of its trace had {file.busiest_minute:.2f} times the mean rate; "
        "samples are stationary at the mean, so plan with a higher --rate, fit with --profile 60, "
        "or replay the trace itself",
    )


def _replayed(file: WorkloadFile, part: TraceFile, rate_req_per_s: float | None, reading: Reading) -> Workload:
    """The workload of a file that names a trace."""
    if file.hourly_req_per_s:
        reading.reject(("hourly_req_per_s",), "given together with `trace`", expected="one of the two")
    slos = {name: _slo(text, ("trace", "slo", name), reading) for name, text in part.slo.items()}
    path = Path(reading.document.path).parent / part.path
    columns = {str(role): name for role, name in part.columns.items()}
    trace = reading.attempt(lambda: read_trace(path, columns=columns, start_s=part.start_s, end_s=part.end_s))
    if trace is None:
        raise DocumentError(reading.problems)
    for name in part.slo:
        if name not in trace.class_names:
            expected = f"one of {', '.join(trace.class_names)}"
            reading.reject(("trace", "slo", name), f"the trace has no class '{shorten(name, 60)}'", expected)
    reading.stop_on_problems()
    rate = rate_req_per_s if rate_req_per_s is not None else file.rate_req_per_s
    known_slos = {name: slo for name, slo in slos.items() if slo is not None}
    workload = workload_of_trace(trace, file.name, rate, known_slos)
    return replace(workload, source=file.source or workload.source)


def _known_rate(own: float | None, wanted: float | None, name: str, where: str) -> float:
    """The rate asked for, else the workload's own; traffic that nobody stated is an error, not zero."""
    rate = wanted if wanted is not None else own
    if rate is None:
        hint = "add --rate 10, or rate_req_per_s to the file"
        message = f"{name} says how long requests are but not how many come"
        raise InputError(Problem(message, where, "rate_req_per_s", "requests per second", hint))
    return rate


def _workload_of_form(text: str, rate_req_per_s: float | None) -> Workload:
    input_tokens, output_tokens = form_lengths(text)
    num_rows = len(input_tokens)
    return Workload(
        name=text,
        rate_req_per_s=_known_rate(None, rate_req_per_s, text, ""),
        arrival_scv=1.0,
        classes=(RequestClass("all"),),
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        class_index=np.zeros(num_rows, dtype=np.int64),
        weight=np.full(num_rows, 1.0 / num_rows),
        prefix_hit_ratio=0.0,
        source="formula",
        notes=("arrivals assumed Poisson",),
    )


def _rows(file: WorkloadFile, reading: Reading) -> LengthRows:
    if file.lengths is not None:
        return rows_of_file(file.lengths, file.prefix_hit_ratio, ("lengths",), reading)
    parts: list[tuple[LengthRows, float]] = []
    for index, class_file in enumerate(file.classes):
        hit_ratio = class_file.prefix_hit_ratio
        hit_ratio = file.prefix_hit_ratio if hit_ratio is None else hit_ratio
        rows = rows_of_file(class_file.lengths, hit_ratio, ("classes", index, "lengths"), reading)
        parts.append((replace(rows, class_index=rows.class_index + index), class_file.share))
    total = math.fsum(share for _, share in parts)
    if parts and not MIN_SHARE_SUM <= total <= MAX_SHARE_SUM:
        reading.reject(("classes",), f"shares add up to {total:g}", expected="shares of requests that add up to 1")
    return joined(parts)


def _classes(file: WorkloadFile, reading: Reading) -> tuple[RequestClass, ...]:
    if not file.classes:
        return (RequestClass("all"),)
    classes: list[RequestClass] = []
    for index, class_file in enumerate(file.classes):
        at: KeyPath = ("classes", index)
        if any(known.name == class_file.name for known in classes):
            reading.reject((*at, "name"), f"class '{class_file.name}' given twice", expected="each name once")
        slo = None if class_file.slo is None else _slo(class_file.slo, (*at, "slo"), reading)
        classes.append(RequestClass(class_file.name, slo))
    return tuple(classes)


def _slo(text: str, at: KeyPath, reading: Reading) -> Slo | None:
    try:
        return parse_slo(text, where="")
    except SplitplanError as error:
        for problem in error.problems:
            message = f"{problem.where.strip()}: {problem.message}" if problem.where else problem.message
            reading.reject(at, message, problem.expected, problem.next_step)
        return None


def _gaps(arrivals: ArrivalsFile, reading: Reading) -> Gaps | None:
    if not arrivals.gaps:
        if arrivals.weight:
            reading.reject(("arrivals", "weight"), "given without `gaps`", expected="one weight for each gap")
        return None
    weight = np.array(arrivals.weight or [1.0] * len(arrivals.gaps))
    value = np.array(arrivals.gaps, dtype=np.float64)
    if len(weight) != len(value) or weight.sum() <= 0:
        reading.reject(("arrivals", "weight"), f"has {len(weight)} entries", f"{len(value)}, as many as `gaps`")
        return None
    weight = weight / weight.sum()
    mean = float(value @ weight)
    if mean * MAX_GAP_OVER_MEAN <= value.max():
        message = "are all 0" if not value.any() else f"have a mean of {mean:g} and a longest of {value.max():g}"
        expected = f"a mean above 0, and none above {MAX_GAP_OVER_MEAN:g} times the mean"
        reading.reject(("arrivals", "gaps"), message, expected)
        return None
    return Gaps(value / mean, weight)


def _profile(arrivals: ArrivalsFile, reading: Reading) -> Profile | None:
    if arrivals.profile is None:
        return None
    factor = np.array(arrivals.profile.factor, dtype=np.float64)
    if factor.mean() <= 0:
        reading.reject(("arrivals", "profile", "factor"), "are all 0", expected="at least one factor above 0")
        return None
    return Profile(arrivals.profile.step_s, factor / factor.mean())


def _scv(arrivals: ArrivalsFile, gaps: Gaps | None) -> float:
    return arrivals.scv if gaps is None else float((gaps.value - 1.0) ** 2 @ gaps.weight)


def workload_hash(workload: Workload) -> str:
    """SHA-256 over everything that `sample` and the planner depend on."""
    digest = hashlib.sha256()
    plain: Sequence[object] = (
        workload.rate_req_per_s,
        workload.arrival_scv,
        workload.classes,
        workload.prefix_hit_ratio,
        workload.hourly_req_per_s,
    )
    digest.update(repr(plain).encode())
    arrays = [workload.input_tokens, workload.output_tokens, workload.class_index, workload.weight]
    arrays += [] if workload.cached_tokens is None else [workload.cached_tokens]
    arrays += [] if workload.gaps is None else [workload.gaps.value, workload.gaps.weight]
    arrays += [] if workload.profile is None else [workload.profile.factor * workload.profile.step_s]
    if workload.trace is not None:
        trace = workload.trace
        arrays += [trace.arrival_s, trace.input_tokens, trace.output_tokens, trace.class_index, trace.cached_tokens]
        arrays += [] if trace.prefix is None else [trace.prefix.offsets, trace.prefix.hashes]
    for array in arrays:
        digest.update(f"{array.dtype}{array.shape}".encode())
        same = len(array) > 0 and bool((array == array[0]).all())
        kept = array[:1] if same else array  # a long row of one value would be made up in memory just to be hashed
        digest.update(np.ascontiguousarray(kept).view(np.uint8).data)
    return digest.hexdigest()
