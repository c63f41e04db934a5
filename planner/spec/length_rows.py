"""The joint sample of lengths that a Workload file describes, one way or another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from splitplan.catalogs.documents import KeyPath
from splitplan.catalogs.errors import nearest_names, shorten
from splitplan.planner.spec.lengths import fixed_lengths, lognormal_lengths
from splitplan.planner.spec.reading import Reading
from splitplan.planner.spec.shipped import shipped_names
from splitplan.planner.spec.workload import FloatArray, IntArray, load_workload
from splitplan.planner.spec.workload_schema import LengthsFile, SampleFile


@dataclass(frozen=True, slots=True)
class LengthRows:
    """Rows of a joint sample; all arrays have length m, `weight` sums to 1."""

    input_tokens: IntArray
    output_tokens: IntArray
    cached_tokens: IntArray
    class_index: IntArray
    weight: FloatArray


def rows_of_file(lengths: LengthsFile, prefix_hit_ratio: float, at: KeyPath, reading: Reading) -> LengthRows:
    """The rows of one `lengths` entry, all of class 0; problems are recorded at `at`."""
    ways = [name for name in ("fixed", "lognormal", "sample", "like") if getattr(lengths, name) is not None]
    if len(ways) != 1:
        found = " and ".join(ways) or "nothing"
        reading.reject(at, f"gives {found}", expected="exactly one of fixed, lognormal, sample, like")
        return _rows(*fixed_lengths(1, 1), prefix_hit_ratio)
    if lengths.fixed is not None:
        return _rows(*fixed_lengths(lengths.fixed.input, lengths.fixed.output), prefix_hit_ratio)
    if lengths.lognormal is not None:
        prompt, answer = lengths.lognormal.input, lengths.lognormal.output
        return _rows(*lognormal_lengths(prompt.mean, prompt.cv, answer.mean, answer.cv), prefix_hit_ratio)
    if lengths.sample is not None:
        return _rows_of_sample(lengths.sample, prefix_hit_ratio, (*at, "sample"), reading)
    return _rows_like(str(lengths.like), (*at, "like"), reading)


def joined(parts: Sequence[tuple[LengthRows, float]]) -> LengthRows:
    """Rows of several classes, each weighted by its share of requests."""
    weight = np.concatenate([rows.weight * share for rows, share in parts] or [np.ones(0)])
    return LengthRows(
        np.concatenate([rows.input_tokens for rows, _ in parts]) if parts else np.zeros(0, dtype=np.int64),
        np.concatenate([rows.output_tokens for rows, _ in parts]) if parts else np.zeros(0, dtype=np.int64),
        np.concatenate([rows.cached_tokens for rows, _ in parts]) if parts else np.zeros(0, dtype=np.int64),
        np.concatenate([rows.class_index for rows, _ in parts]) if parts else np.zeros(0, dtype=np.int64),
        weight / weight.sum() if len(weight) else weight,
    )


def _rows(
    input_tokens: IntArray, output_tokens: IntArray, prefix_hit_ratio: float, weight: FloatArray | None = None
) -> LengthRows:
    weight = np.ones(len(input_tokens)) if weight is None else weight
    cached = np.minimum(np.rint(prefix_hit_ratio * input_tokens).astype(np.int64), input_tokens - 1)
    return LengthRows(input_tokens, output_tokens, cached, np.zeros_like(input_tokens), weight / weight.sum())


def _rows_of_sample(sample: SampleFile, prefix_hit_ratio: float, at: KeyPath, reading: Reading) -> LengthRows:
    num_rows = len(sample.input_tokens)
    for name in ("output_tokens", "weight", "cached_tokens"):
        values = getattr(sample, name)
        if len(values) != num_rows and (values or name == "output_tokens"):
            reading.reject((*at, name), f"has {len(values)} entries", f"{num_rows}, as many as `input_tokens`")
            return _rows(*fixed_lengths(1, 1), 0.0)
    weight = np.array(sample.weight or [1.0] * num_rows, dtype=np.float64)
    if weight.sum() <= 0:
        reading.reject((*at, "weight"), "are all 0", expected="weights with a sum above 0")
        return _rows(*fixed_lengths(1, 1), 0.0)
    rows = _rows(np.array(sample.input_tokens), np.array(sample.output_tokens), prefix_hit_ratio, weight)
    if not sample.cached_tokens:
        return rows
    cached = np.array(sample.cached_tokens)
    if (cached >= rows.input_tokens).any():
        row = int(np.argmax(cached >= rows.input_tokens))
        message, expected = f"row {row} holds {cached[row]}", f"less than its input_tokens, {rows.input_tokens[row]}"
        reading.reject((*at, "cached_tokens"), message, expected)
    return replace(rows, cached_tokens=cached)


def _rows_like(name: str, at: KeyPath, reading: Reading) -> LengthRows:
    if name not in shipped_names("workload"):
        near = nearest_names(name, shipped_names("workload"))
        hint = f"did you mean {' or '.join(near)}?" if near else ""
        reading.reject(at, f"unknown workload '{shorten(name)}'", ", ".join(shipped_names("workload")), hint)
        return _rows(*fixed_lengths(1, 1), 0.0)
    known = load_workload(name, rate_req_per_s=1.0)
    rows = _rows(known.input_tokens, known.output_tokens, known.prefix_hit_ratio, known.weight)
    return rows if known.cached_tokens is None else replace(rows, cached_tokens=known.cached_tokens)
