"""From what was found to the Plan document: pools, proof, alternatives, limits, and where the numbers come from."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from splitplan.catalogs.errors import SolverError
from splitplan.catalogs.gpus import find_gpu
from splitplan.catalogs.links import find_link
from splitplan.planner.columns.column import Column
from splitplan.planner.inputs import SolveInputs
from splitplan.planner.judge.candidates import Candidate
from splitplan.planner.judge.corrections import Corrections
from splitplan.planner.judge.repair import Outcome, Workshop
from splitplan.planner.plan import Alternative, Host, Plan, Proof
from splitplan.planner.program.limits import binding_sentences
from splitplan.planner.program.optimum import MOST_HEADROOM
from splitplan.planner.program.types import Infeasible, ProgramOptions, ProgramSolution
from splitplan.planner.study import Study
from splitplan.profiler.profile import Basis, Profile
from splitplan.profiler.query import OpTimes

LENGTHS_TOGETHER = "all lengths together"
"""The variant that tells no prompt lengths apart."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One competitor: its label, what it was allowed, what came of it."""

    label: str
    options: ProgramOptions
    outcome: Outcome


def emit_plan(study: Study, shop: Workshop, chosen: Outcome, variants: Sequence[Variant]) -> Plan:
    """The plan document of the chosen outcome."""
    found = chosen.found
    assert found is not None, "only an outcome that passed is emitted"
    inputs, solution = study.inputs, found.solution
    corrections = _learned(chosen, variants)
    kv_dtype = found.pools[0].kv_dtype
    return Plan(
        inputs=inputs.recorded(),
        engine=inputs.engine.name,
        engine_version=inputs.engine.version,
        connector=inputs.connector if any(pool.role == "decode" for pool in found.pools) else "",
        pools=found.pools,
        routes=found.routes,
        colocated_share=round(found.colocated_share, 9) if 0 < found.colocated_share < 1 else None,
        kv_bytes_per_token=inputs.model.kv_bytes_per_token(kv_dtype),
        hosts=_hosts(study, found),
        num_gpus=solution.num_gpus,
        usd_per_hour=round(solution.usd_per_hour, 6),
        watts=round(solution.watts, 3),
        proof=_proof(shop, variants[-1].options, solution, corrections),
        verification=chosen.verdict,
        alternatives=tuple(_alternatives(chosen, variants)),
        length_edges=inputs.length_edges,
        rejected_columns=dict(sorted(study.columns.rejections.counts.items())),
        corrections={name: round(factor, 9) for name, factor in sorted(corrections.factor.items())},
        limits=tuple(dict.fromkeys(binding_sentences(shop.problem, solution))),
        basis=tuple(_basis(study, found)),
        notes=tuple(
            dict.fromkeys(
                [
                    *_cut_short(variants),
                    *_bucket_note(inputs, chosen, variants),
                    *_length_note(inputs),
                    *_failure_note(variants[-1].options, solution),
                    *inputs.slo.notes,
                    *inputs.fleet.notes,
                    *inputs.workload.notes,
                    *solution.notes,
                ]
            )
        ),
    )


def _bucket_note(inputs: SolveInputs, chosen: Outcome, variants: Sequence[Variant]) -> list[str]:
    """What telling prompt lengths apart brought, against the best plan that does not."""
    edges = inputs.length_edges
    if not inputs.question.length_buckets:
        return []
    if not edges:
        return ["length buckets: all prompts fall into one, so there was nothing to tell apart"]
    where = f"length buckets at {', '.join(f'{edge:,}' for edge in edges)} input tokens"
    if chosen.num_prompt_ranges == 1:
        return [f"{where}: serving them apart was no better, so every instance takes prompts of all lengths"]
    whole = [v.outcome for v in variants if v.outcome.passed and v.outcome.num_prompt_ranges == 1]
    best = min(whole, key=lambda outcome: outcome.score, default=None)
    if best is None:
        return [f"{where}: no plan passed in which every instance takes prompts of all lengths"]
    gained = abs(best.score - chosen.score) / max(abs(best.score), 1e-12)
    return [f"{where}: {chosen.in_words()} apart, {best.in_words()} together ({gained:.1%} better)"]


def _cut_short(variants: Sequence[Variant]) -> list[str]:
    """What the time limit kept from being searched to its end."""
    labels = [variant.label or "all together" for variant in variants if variant.outcome.out_of_time]
    return [f"the time limit cut the search short: {', '.join(labels)}"] if labels else []


def _failure_note(options: ProgramOptions, solution: ProgramSolution) -> list[str]:
    states = [state for state in solution.states if state.gone]
    if not options.survive or not states:
        return []
    gone = sum(len(state.stands_for) for state in states)
    return [
        f"with any one {options.survive} gone ({gone} hold instances, {len(states)} of them unlike), what is left was "
        "simulated and serves the load within the targets; the moment of the failure was not"
    ]


def _length_note(inputs: SolveInputs) -> list[str]:
    share = inputs.too_long_share
    if share <= 0:
        return []
    limit = inputs.model.max_position_embeddings
    return [f"{share:.2%} of requests are longer than the model's {limit:,} tokens: refused, and counted as missed"]


def _hosts(study: Study, found: Candidate) -> tuple[Host, ...]:
    used = {slot.node for pool in found.pools for instance in pool.instances for slot in instance.gpus}
    return tuple(
        Host(name=node.name, rack=node.rack, num_gpus=node.num_gpus, labels=dict(node.labels))
        for node in study.inputs.fleet.nodes
        if node.name in used
    )


def _learned(chosen: Outcome, variants: Sequence[Variant]) -> Corrections:
    """What all variants learned of each column, at its worst; of the chosen plan's own columns, what it passed with."""
    factor: dict[str, float] = {}
    for variant in variants:
        for name, value in variant.outcome.corrections.factor.items():
            factor[name] = max(factor.get(name, value), value)
    own = {item.column for item in chosen.found.solution.placed} if chosen.found else set()
    factor.update({name: chosen.corrections.factor.get(name, 1.0) for name in own})
    return Corrections({name: value for name, value in factor.items() if value != 1.0})


def _proof(shop: Workshop, options: ProgramOptions, solution: ProgramSolution, corrections: Corrections) -> Proof:
    """The bound of the open program over the corrected columns, against the chosen plan."""
    goodput = solution.objective == "goodput"
    best = max if goodput else min
    try:
        last = shop.solve(options, corrections)
        bound = solution.value if isinstance(last, Infeasible) else best(last.bound, solution.value)
    except SolverError:  # no time left for a proof: what is sure without one
        bound = MOST_HEADROOM if goodput else 0.0
    gap = 100 * abs(solution.value - bound) / max(abs(solution.value), 1e-12)
    return Proof(
        status="optimal" if gap <= 1e-4 else "feasible",
        objective=solution.objective,
        value=round(solution.value, 6),
        bound=round(bound, 6),
        gap_percent=round(gap, 4),
        solver=solution.solver,
        constraints_checked=solution.constraints_checked,
    )


def _alternatives(chosen: Outcome, variants: Sequence[Variant]) -> list[Alternative]:
    """The variants that lost, each plan once, cheapest first; those without a plan last."""
    rows: list[Alternative] = []
    labels: dict[object, list[str]] = {}
    plans: dict[object, Outcome] = {}
    for variant in variants:
        if variant.label and variant.outcome.found is not None:
            key = variant.outcome.found.counts
            labels.setdefault(key, []).append(variant.label)
            plans.setdefault(key, variant.outcome)
        elif variant.label:
            rows.append(Alternative(label=variant.label, reason=_reason(variant.outcome)))
    own = chosen.found.counts if chosen.found else None
    for counts, outcome in plans.items():
        label = ", ".join(labels[counts])
        if counts == own:
            rows.append(Alternative(label=label, reason="the chosen plan"))
        elif outcome.found is not None:
            rows.append(_alternative(label, outcome, outcome.found))
    return sorted(rows, key=lambda row: (not row.pools, row.usd_per_hour))


def _alternative(label: str, outcome: Outcome, found: Candidate) -> Alternative:
    return Alternative(
        label=label,
        pools=found.pools,
        num_gpus=found.solution.num_gpus,
        usd_per_hour=round(found.solution.usd_per_hour, 6),
        verification=outcome.verdict,
        reason="" if outcome.passed else _reason(outcome),
    )


def _reason(outcome: Outcome) -> str:
    if outcome.reasons:
        return outcome.reasons[0]
    if outcome.verdict is not None and outcome.verdict.misses:
        return "; ".join(outcome.verdict.misses)
    return "nothing fits"


def _basis(study: Study, found: Candidate) -> list[str]:
    """Where the numbers come from, one line per GPU type used, and what was not measured at all."""
    lines = []
    columns = {column.name: column for column in study.columns.columns}
    used = list(dict.fromkeys(gpu for pool in found.pools for gpu in pool.gpu_types))
    for gpu in used:
        profile = study.inputs.profiles.get(gpu)
        shares = [share for name in found.assignment.instances for share in _shares_on(columns[name], gpu)]
        if profile is None:
            lines.append(f"{gpu}: nothing measured, roofline on datasheet facts (assumed)")
            continue
        means = {basis: sum(share[basis] for share in shares) / len(shares) for basis in Basis}
        words = ", ".join(f"{mean:.0%} {basis.name.lower()}" for basis, mean in means.items() if mean >= 0.005)
        overhead = study.inputs.overheads[gpu]
        lines.append(
            f"{gpu}: op tables of {profile.engine} {profile.engine_version}; of a typical step {words}; "
            f"9 in 10 published points within ×{overhead.tpot_spread:.2f} (TPOT) and ×{overhead.ttft_spread:.2f} (TTFT)"
            f"{_confidence_text(study.inputs, gpu)}"
        )
        lines += _host_notes(profile, gpu, [columns[name] for name in found.assignment.instances])
    if any(pool.role == "decode" for pool in found.pools):
        lines.append("KV transfer: link model on catalog figures, not measured on this fleet")
    lines.append("router: assumed to send each request to the least loaded instance")
    lines.append("prices per GPU-hour: " + ", ".join(_price_text(study, found, gpu) for gpu in used))
    return lines


def _shares_on(column: Column, gpu: str) -> list[tuple[float, float, float, float]]:
    """Basis shares of a column's steps on one GPU type; of a mixed pipeline, of its stages there."""
    if not column.stages:
        return [column.step.basis_shares] if column.gpu == gpu else []
    pairs = zip(column.stages, column.step.stages, strict=True)
    return [step.basis_shares for stage, step in pairs if stage.gpu == gpu]


def _confidence_text(inputs: SolveInputs, gpu: str) -> str:
    """At which quantile of their error step times were planned with; "" for the best guess."""
    confidence, factor = inputs.question.columns.confidence, inputs.step_factors[gpu]
    return f"; planned with step times ×{factor:.2f}, which {confidence:g} % stay below" if factor != 1.0 else ""


def _host_notes(profile: Profile, gpu: str, used: list[Column]) -> list[str]:
    """Which kind of PCIe host the all-reduces of these columns were measured on: there are two, ten times apart."""
    ops = OpTimes(profile, find_gpu(gpu))
    parts = [part for column in used for part in column.parts]
    shapes = {(part.size, part.gpu_link) for part in parts if part.gpu == gpu and part.gpu_link}
    notes = [ops.host_note(ranks, find_link(link)) for ranks, link in sorted(shapes)]
    return [f"{gpu}: {note}" for note in notes if note]


def _price_text(study: Study, found: Candidate, gpu: str) -> str:
    """`h100-sxm $3.99 (RunPod secure, 2026-11-09)`, or what is bought at each kind of price where kinds are mixed.

    Addresses of sources stay in the catalog.
    """
    fleet = study.inputs.fleet
    bought = [entry for entry in found.solution.bought if entry.gpu == gpu]
    if len(study.inputs.question.program.price_kinds) > 1 and bought:
        parts = [f"{entry.num_gpus} at ${entry.usd_per_gpu_hour:g} {entry.kind}" for entry in bought]
        return f"{gpu} {' and '.join(parts)}"
    source = " ".join(re.sub(r"\s*\[[^\]]*\]", "", fleet.price_sources.get(gpu, "assumed")).split())
    return f"{gpu} ${fleet.usd_per_gpu_hour[gpu]:g} ({source})"
