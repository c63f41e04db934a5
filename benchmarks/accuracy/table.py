"""The accuracy report as text and as records."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from splitplan.planner.calibrate.score import KINDS, Row, groups, is_target, total

RIVAL = {
    "tpot_median_error_percent": 10.4,
    "tpot_mean_error_percent": 17.8,
    "ttft_median_error_percent": 49.0,
    "false_slo_pass_best_guess_percent": 26.0,
}
"""aiconfigurator 0.12 on its own sample of 748 dense Hopper points (TTFT mean error 52 %)."""

OUTSIDE_PERCENT = 20.0
"""Share of a step outside the measured range from which a row's line says so."""

TARGETS = {
    "tpot_median_error_percent": 8.0,
    "tpot_p90_error_percent": 30.0,
    "ttft_unloaded_median_error_percent": 20.0,
    "ttft_unloaded_p90_error_percent": 60.0,
    "ttft_median_error_percent": 25.0,
    "ttft_p90_error_percent": 100.0,
    "offline_throughput_median_error_percent": 10.0,
    "offline_throughput_p90_error_percent": 30.0,
    "false_slo_pass_percent": 5.0,
}


def row_record(row: Row) -> dict[str, Any]:
    """One row as a JSON-able mapping; latencies in ms."""
    record: dict[str, Any] = {
        "id": row.point.id,
        "source_group": row.point.source_group,
        "gpu": row.gpu,
        "engine": row.generation,
        "mode": row.point.mode,
        "model": row.point.model,
        "dense": row.dense,
        "predicted": row.predicted,
    }
    if row.reason:
        record["reason"] = row.reason
    for kind, value in row.values.items():
        scale = 1.0 if kind == "throughput" else 1e3
        unit = "tok_s" if kind == "throughput" else "ms"
        record[f"{kind}_{unit}_measured"] = round(value.measured * scale, 3)
        if math.isfinite(value.predicted):
            record[f"{kind}_{unit}_predicted"] = round(value.predicted * scale, 3)
            record[f"{kind}_{unit}_low"] = round(value.low * scale, 3)
            record[f"{kind}_{unit}_high"] = round(value.high * scale, 3)
            record[f"{kind}_error_percent"] = round(100 * value.error, 2)
    if row.predicted:
        measured, interpolated, extrapolated, assumed = (round(100 * share, 1) for share in row.basis_shares)
        record["basis_percent"] = {
            "measured": measured,
            "interpolated": interpolated,
            "extrapolated": extrapolated,
            "assumed": assumed,
        }
    if row.notes:
        record["notes"] = list(row.notes)
    return record


def print_report(rows: Sequence[Row], *, held_out: bool, with_rows: bool) -> None:
    """The whole report on stdout."""
    out = sys.stdout.write
    if with_rows:
        for row in rows:
            out(_row_line(row) + "\n")
        out("\n")
    out(
        "Predictions by " + ("calibrations fitted without each row's source" if held_out else "the shipped calibration")
    )
    out("\n\n")
    _print_groups(groups(rows))
    out("\n")
    _print_total(total(rows))
    _print_unpredicted(rows)


def _print_groups(found: Sequence[Mapping[str, Any]]) -> None:
    head = f"{'GPU':12} {'engine':13} {'mode':18} {'models':6} {'rows':>5}"
    head += "".join(
        f" | {kind:>10}: {'n':>4} {'median':>7} {'mean':>7} {'p90':>7} {'bias':>7} {'rank':>6}" for kind in KINDS
    )
    sys.stdout.write(head + "\n")
    for group in found:
        line = f"{group['gpu']:12} {group['engine']:13} {group['mode']:18} {group['models']:6} {group['rows']:5}"
        for kind in KINDS:
            line += " | " + " " * 11 + (_cells(group[kind]) if kind in group else " " * 44)
        sys.stdout.write(line.rstrip() + "\n")


def _cells(values: Mapping[str, Any]) -> str:
    cells = [f"{values['count']:5}"]
    cells += [f"{_percent(values[name]):>7}" for name in ("median", "mean", "p90", "bias")]
    rank = values["rank_correlation"]
    cells.append(f"{'' if rank is None else f'{rank:.3f}':>6}")
    return " ".join(cells)


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _print_total(found: Mapping[str, Any]) -> None:
    sys.stdout.write("Dense models on H100, H200 and A100 (percent)\n")
    sys.stdout.write(f"  {'rows':42} {found['rows']:8}   predicted {found['predicted_rows']}\n")
    for name, value in found.items():
        if not name.endswith("percent"):
            continue
        target = f"target {TARGETS[name]:g}" if name in TARGETS else ""
        rival = f"aiconfigurator 0.12: {RIVAL[name]:g}" if name in RIVAL else ""
        sys.stdout.write(f"  {name:42} {_percent(value):>8}   {target:12} {rival}".rstrip() + "\n")
    for share, slo in found["slo"].items():
        figures = ", ".join(f"{key} {value}" for key, value in slo.items() if value is not None)
        sys.stdout.write(f"  SLO at the {share} quantile: {figures}\n")


def _print_unpredicted(rows: Sequence[Row]) -> None:
    reasons = Counter((row.reason, is_target(row)) for row in rows if row.reason)
    for (reason, target), count in reasons.most_common():
        sys.stdout.write(f"not predicted: {count} rows{' (target)' if target else ''}: {reason}\n")


def _row_line(row: Row) -> str:
    cells = [f"{row.point.id[:60]:60} {row.gpu:11} {row.generation:13}"]
    for kind, value in row.values.items():
        scale = 1.0 if kind == "throughput" else 1e3
        cells.append(f"{kind} {value.measured * scale:.1f} measured, {value.predicted * scale:.1f} predicted")
    beyond = 100 * (row.basis_shares[2] + row.basis_shares[3])
    if row.predicted and beyond >= OUTSIDE_PERCENT:
        cells.append(f"{beyond:.0f} % outside the measured range")
    cells += row.notes
    return "  ".join(cells) + (f"  not predicted: {row.reason}" if row.reason else "")


def print_markdown(rows: Sequence[Row]) -> None:
    """The tables of docs/accuracy.md."""
    out = sys.stdout.write
    found = total(rows)
    out("| dense models on H100, H200, A100 | percent | target | aiconfigurator 0.12 |\n|---|---|---|---|\n")
    out(f"| rows predicted | {found['predicted_rows']} of {found['rows']} | 95 % | |\n")
    for name, value in found.items():
        if name.endswith("percent"):
            label = name.removesuffix("_percent").replace("_", " ")
            out(f"| {label} | {_percent(value)} | {TARGETS.get(name, '')} | {RIVAL.get(name, '')} |\n")
    out("\n| predicted to meet a target at the | 1000/40: passes, false %, recall % | 500/30 |\n|---|---|---|\n")
    for share, slo in found["slo"].items():
        cells = [
            f"{slo[f'passes {name}']}, {_percent(slo[f'percent {name}'])}, {_percent(slo[f'recall {name}'])}"
            for name in ("1000/40", "500/30")
        ]
        out(f"| {share} quantile | " + " | ".join(cells) + " |\n")
    out("\n| GPU | engine | mode | models | rows | TTFT median, p90, bias, rank, order | TPOT | throughput |\n")
    out("|---|---|---|---|---|---|---|---|\n")
    for group in groups(rows):
        cells = [str(group[name]) for name in ("gpu", "engine", "mode", "models", "rows")]
        cells += [_markdown_cell(group.get(kind)) for kind in KINDS]
        out("| " + " | ".join(cells) + " |\n")


def _markdown_cell(values: Mapping[str, Any] | None) -> str:
    if values is None:
        return ""
    rank, ordered = values["rank_correlation"], values["ordered_percent"]
    figures = ", ".join(_percent(values[name]) for name in ("median", "p90", "bias"))
    order = "" if rank is None else f", {rank:.3f}, {_percent(ordered)}"
    return f"{values['count']}: {figures}{order}"
