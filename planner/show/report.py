"""A plan as people read it: what was asked, the decision and what lost, the proof, the limits, the basis."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from splitplan.planner.inputs import SolveInputs
from splitplan.planner.plan import Alternative, ClassVerdict, Estimate, Plan, Pool, Verification
from splitplan.planner.show.drawing import draw_racks
from splitplan.planner.spec.slo import Slo, Target

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

GBIT = 1e9 / 8
NARROW = 110
"""Below this many columns the table has one column for what a plan consists of."""

MOST_NODES_DRAWN = 16
"""Of larger fleets only the nodes in use are drawn."""


def print_plan(console: Console, plan: Plan, inputs: SolveInputs, *, saved_as: str = "") -> None:
    """The whole report on a console."""
    for label, text in (("Fleet", fleet_line(inputs)), ("Asked", asked_line(inputs))):
        _labelled(console, label, text)
    console.print()
    console.print(decision_table(plan, inputs.slo, narrow=console.width < NARROW))
    for name, verdict in (plan.verification.classes if plan.verification else {}).items():
        console.print(f"  class {name}: {class_text(verdict)}", markup=False)
    for line in length_lines(plan):
        console.print(f"  {line}", markup=False)
    for item in plan.alternatives:
        if not item.pools:
            console.print(f"  {item.label}: {item.reason}", markup=False)
    console.print()
    console.print(draw_racks(plan, inputs.fleet if len(inputs.fleet.nodes) <= MOST_NODES_DRAWN else None))
    console.print()
    _labelled(console, "Proof", proof_line(plan))
    _labelled(console, "Limits", "; ".join(plan.limits) or "nothing of the fleet binds")
    _labelled(console, "Basis", "; ".join(plan.basis))
    for text in plan.notes:
        _labelled(console, "Note", text)
    _labelled(
        console,
        "Next",
        next_line(saved_as) if saved_as else "add -o plan.yaml to keep the plan, to explain and launch it",
    )


def _labelled(console: Console, label: str, text: str) -> None:
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2))
    grid.add_column(width=6, style="bold")
    grid.add_column(overflow="fold")
    grid.add_row(Text(label), Text(text))
    console.print(grid)


def fleet_line(inputs: SolveInputs) -> str:
    """`four-racks: 16 h100-sxm, 16 a100-sxm-80 in 4 racks; leaf 400 Gbit/s`."""
    fleet = inputs.fleet
    counts = ", ".join(f"{count} {gpu}" for gpu, count in fleet.num_gpus.items())
    text = f"{fleet.name}: {counts} in {_plural(len(fleet.racks), 'rack')}"
    uplinks = {rack.uplink_bytes_per_s for rack in fleet.racks if rack.uplink_bytes_per_s is not None}
    if uplinks:
        low, high = min(uplinks) / GBIT, max(uplinks) / GBIT
        text += f"; rack uplink {low:g} Gbit/s" if low == high else f"; rack uplinks {low:g}–{high:g} Gbit/s"
    if fleet.spine_bytes_per_s is not None:
        text += f", spine {fleet.spine_bytes_per_s / GBIT:g} Gbit/s"
    return text


def asked_line(inputs: SolveInputs) -> str:
    """The workload and the targets in words."""
    workload = inputs.workload
    mean_in = float((workload.input_tokens * workload.weight).sum())
    mean_out = float((workload.output_tokens * workload.weight).sum())
    shape = f"{mean_in:.0f} in / {mean_out:.0f} out, CV {workload.arrival_scv**0.5:.2f}"
    if workload.prefix_hit_ratio > 0:
        shape += f", {workload.prefix_hit_ratio:.0%} of prompts cached"
    text = f"{workload.rate_req_per_s:g} req/s of {workload.name} ({shape}) on {inputs.model.name}; "
    if len(workload.classes) < 2:
        return text + slo_words(inputs.slo)
    shares = [float(workload.weight[workload.class_index == number].sum()) for number in range(len(workload.classes))]
    classes = zip(workload.classes, shares, inputs.class_slos, strict=True)
    return text + "; ".join(f"{item.name} {share:.0%}: {slo_words(slo)}" for item, share, slo in classes)


def slo_words(slo: Slo) -> str:
    """`TTFT p99 <= 800 ms, TPOT p99 <= 50 ms, 99 % of requests all of them`."""
    parts = [f"{name} p{target.percentile:g} <= {target.seconds * 1e3:g} ms" for name, target in targets(slo)]
    return ", ".join([*parts, f"{slo.attainment * 100:.4g} % of requests all of them"])


def targets(slo: Slo) -> Iterable[tuple[str, Target]]:
    """The targets that are set, by name."""
    named = (("TTFT", slo.ttft), ("TPOT", slo.tpot), ("E2E", slo.e2e), ("ITL", slo.itl))
    return [(name, target) for name, target in named if target is not None]


def decision_table(plan: Plan, slo: Slo, *, narrow: bool = False) -> Table:
    """The chosen plan, marked, above the ones that lost. `narrow` puts what a plan consists of into one column."""
    from rich import box
    from rich.table import Table

    ttft_p = f"p{slo.ttft.percentile:g}" if slo.ttft else "p99"
    tpot_p = f"p{slo.tpot.percentile:g}" if slo.tpot else "p99"
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("")
    for heading in ("plan",) if narrow else ("plan", "prefill or colocated", "decode"):
        table.add_column(heading, overflow="fold")
    for heading in ("GPUs", "$/h", f"TTFT p50/{ttft_p}", f"TPOT p50/{tpot_p}", "all met"):
        table.add_column(heading, justify="right", no_wrap=True)
    chosen = Alternative(
        label=plan_label(plan.pools),
        pools=plan.pools,
        num_gpus=plan.num_gpus,
        usd_per_hour=plan.usd_per_hour,
        verification=plan.verification,
    )
    for mark, row in [("*", chosen), *((" ", item) for item in plan.alternatives if item.pools)]:
        cells = _row(mark, row, ttft_p, tpot_p)
        if narrow:
            parts = [part for part in cells[2:4] if part != "–"]
            cells = [mark, f"{cells[1]}: {' → '.join(parts)}", *cells[4:]]
        table.add_row(*cells, style="bold" if mark == "*" else "")
    return table


def _row(mark: str, item: Alternative, ttft_p: str, tpot_p: str) -> list[str]:
    verdict = item.verification
    cells = [mark, item.label, pools_text(item.pools, ("prefill", "colocated")), pools_text(item.pools, ("decode",))]
    cells += [str(item.num_gpus), f"{item.usd_per_hour:.2f}"]
    if verdict is None:
        return [*cells, "", "", "not simulated"]
    cells += [_pair(verdict.ttft_ms, ttft_p), _pair(verdict.tpot_ms, tpot_p), attainment_text(verdict)]
    return cells


def plan_label(pools: Sequence[Pool]) -> str:
    """`mixed, disaggregated`, `h100-sxm, colocated`, …"""
    gpus = list(dict.fromkeys(gpu for pool in pools for gpu in pool.gpu_types))
    roles = {pool.role for pool in pools}
    kind = "colocated" if roles == {"colocated"} else "disaggregated" if "colocated" not in roles else "hybrid"
    return f"{gpus[0] if len(gpus) == 1 else 'mixed'}, {kind}"


def pools_text(pools: Iterable[Pool], roles: Sequence[str]) -> str:
    """`3 × h100-sxm TP2, 1 × l40s TP4 (batch 96)` of the pools in these roles."""
    return ", ".join(pool_text(pool) for pool in pools if pool.role in roles) or "–"


def pool_text(pool: Pool) -> str:
    """One pool in a few words."""
    text = f"{len(pool.instances)}× {pool.gpu} TP{pool.tensor_parallel}"
    if pool.pipeline_parallel > 1:
        text += f" PP{pool.pipeline_parallel}"
    if pool.stages:
        text += f" of {'+'.join(str(stage.layers) for stage in pool.stages)} layers"
    if pool.expert_parallel > 1:
        text += f" EP{pool.expert_parallel}"
    if pool.role == "decode":
        return f"{text} (batch {pool.max_num_seqs})"
    how = "colocated, " if pool.role == "colocated" else ""
    return f"{text} ({how}chunk {pool.max_num_batched_tokens})"


def length_lines(plan: Plan) -> list[str]:
    """Where prompt lengths are told apart: who serves each range, and how its requests fared."""
    if not plan.tells_lengths_apart:
        return []
    lines = []
    verdicts = plan.verification.lengths if plan.verification else {}
    for prompts in plan.prompt_ranges:
        mine = [pool for pool in plan.pools if pool.prompts.covers(prompts)]
        ways = [pools_text(mine, (role,)) for role in ("prefill", "decode", "colocated")]
        entry = " → ".join(way for way in ways[:2] if way != "–")
        text = "; ".join(part for part in (entry, ways[2]) if part and part != "–")
        verdict = verdicts.get(str(prompts))
        lines.append(f"{prompts}: {text}" + (f": {class_text(verdict)}" if verdict else ""))
    return lines


def _pair(figures: dict[str, Estimate], percentile: str) -> str:
    if percentile not in figures or "p50" not in figures:
        return "–"
    return f"{figures['p50'].value:.0f}/{figures[percentile].value:.0f} ms"


def attainment_text(verdict: Verification) -> str:
    """`99.4 ±0.2 %`, with what it misses."""
    met = verdict.attainment
    text = f"{met.value * 100:.1f} ±{(met.high - met.low) * 50:.1f} %"
    return text if verdict.passed else f"{text}, misses"


def proof_line(plan: Plan) -> str:
    """What the solver proved, what was re-checked, how much was simulated."""
    proof = plan.proof
    text = f"{proof.status} (gap {proof.gap_percent:.2f} %, {proof.solver}); "
    text += f"all {proof.constraints_checked} constraints re-checked"
    if plan.corrections:
        text += f"; over columns of which {len(plan.corrections)} were corrected by simulation"
    if plan.verification:
        verdict = plan.verification
        text += f"; {verdict.num_requests:,} requests simulated, {_plural(verdict.num_seeds, 'seed')}"
        text += "; TPOT = (E2E − TTFT) / (output tokens − 1)"
    rejected = sum(plan.rejected_columns.values())
    if rejected:
        reasons = sorted(plan.rejected_columns.items(), key=lambda item: (-item[1], item[0]))
        text += f"; {rejected} candidates rejected ({', '.join(f'{count} {reason}' for reason, count in reasons)})"
    return text


def next_line(path: str) -> str:
    """Commands that go on from here."""
    return f"planner explain {path}   planner launch {path} --dry-run   planner simulate {path}"


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def class_text(verdict: ClassVerdict) -> str:
    """`TTFT p99 741 ms of 800, TPOT p99 33 ms of 40, 99.3 ±0.2 % met all`."""
    parts = [f"{item.name} {item.value_ms:.0f} ms of {item.limit_ms:g}" for item in verdict.targets]
    met = verdict.attainment
    return ", ".join([*parts, f"{met.value * 100:.1f} ±{(met.high - met.low) * 50:.1f} % met all"])


def replay_table(verdict: Verification) -> Table:
    """Latencies of a replay with their intervals."""
    from rich import box
    from rich.table import Table

    title = (
        f"{verdict.num_requests:,} requests at {verdict.rate_req_per_s:g} req/s, {_plural(verdict.num_seeds, 'seed')}"
    )
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("ms, with 95 % interval")
    names = list(verdict.ttft_ms)
    for name in names:
        table.add_column(name, justify="right")
    for label, figures in (("TTFT", verdict.ttft_ms), ("TPOT", verdict.tpot_ms), ("E2E", verdict.e2e_ms)):
        table.add_row(label, *(_with_interval(figures.get(name)) for name in names))
    table.add_row("all targets met", attainment_text(verdict))
    return table


def _with_interval(figure: Estimate | None) -> str:
    return f"{figure.value:.1f} ({figure.low:.1f}–{figure.high:.1f})" if figure else "–"
