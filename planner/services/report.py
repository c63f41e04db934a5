"""The summary of several services on one fleet, for people and as data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from splitplan.planner.plan import Verification
from splitplan.planner.services.solve import Services, Split
from splitplan.planner.show.report import attainment_text

if TYPE_CHECKING:
    from rich.console import Console


def print_services(console: Console, answer: Services, saved: Mapping[str, str]) -> None:
    """Tables of services and of ways to split the fleet, proof, limits, and what comes next."""
    console.print(f"Fleet {answer.fleet}, {len(answer.plans)} services", markup=False)
    console.print()
    console.print(_services_table(answer))
    console.print()
    console.print(_splits_table(answer))
    console.print()
    for label, text in (
        ("Saves", savings_text(answer)),
        ("Proof", proof_text(answer)),
        ("Limits", "; ".join(answer.limits) or "nothing of the fleet binds"),
        ("Note", "; ".join(answer.notes)),
        ("Next", _next_text(saved)),
    ):
        _labelled(console, label, text)


def _labelled(console: Console, label: str, text: str) -> None:
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2))
    grid.add_column(width=6, style="bold")
    grid.add_column(overflow="fold")
    grid.add_row(Text(label), Text(text))
    console.print(grid)


def _services_table(answer: Services) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for heading in ("service", "asked", "plan"):
        table.add_column(heading, overflow="fold")
    for heading in ("GPUs", "$/h", "all met"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, plan in answer.plans.items():
        asked = f"{plan.inputs.rate_req_per_s:g} req/s of {plan.inputs.workload} on {plan.inputs.model}"
        met = attainment_text(plan.verification) if plan.verification else ""
        pools = answer.chosen.plans[name][0]
        table.add_row(name, asked, pools, str(plan.num_gpus), f"{plan.usd_per_hour:.2f}", met)
    return table


def _splits_table(answer: Services) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("")
    table.add_column("the fleet split", overflow="fold")
    for name in answer.plans:
        table.add_column(f"{name} $/h", justify="right", no_wrap=True)
    for heading in ("GPUs", "$/h", "targets"):
        table.add_column(heading, justify="right", no_wrap=True)
    for split in (answer.chosen, *answer.others):
        mark = "*" if split is answer.chosen else ""
        if not split.plans:
            table.add_row("", f"{split.label}: {split.reason}", *("–" for _ in answer.plans), "–", "–", "no plan")
            continue
        own = (f"{split.plans[name][2]:.2f}" for name in answer.plans)
        met = "met" if split.passed else "missed"
        style = "bold" if mark else ""
        total = f"{split.usd_per_hour:.2f}"
        table.add_row(mark, split.label, *own, str(split.num_gpus), total, met, style=style)
    return table


def savings_text(answer: Services) -> str:
    """What planning together saves against each way that people do by hand."""
    texts = []
    for split in answer.others:
        if not split.label.startswith(("one after", "by whole")):
            continue
        if not split.passed:
            texts.append(f"{split.label}: no plan")
            continue
        more = split.usd_per_hour - answer.usd_per_hour
        share = 100 * more / split.usd_per_hour if split.usd_per_hour else 0.0
        texts.append(
            f"{more:.2f} $/h ({share:.1f} %) against {split.label}" if more > 1e-6 else f"nothing against {split.label}"
        )
    return "; ".join(texts) or "not compared"


def proof_text(answer: Services) -> str:
    """What was proved of the joint program, and what was simulated."""
    proof = answer.proof
    verdicts = [plan.verification for plan in answer.plans.values() if plan.verification]
    simulated = sum(verdict.num_requests for verdict in verdicts)
    return (
        f"{proof.status} over all services together (gap {proof.gap_percent:.2f} %, {proof.solver}); all "
        f"{proof.constraints_checked} constraints re-checked; {simulated:,} requests simulated, each service beside "
        "the others' load"
    )


def _next_text(saved: Mapping[str, str]) -> str:
    if not saved:
        return "add -o FOLDER to keep a plan per service, to explain and launch each"
    first, *others = saved.values()
    text = f"planner explain {first}   planner launch {first} --dry-run"
    return f"{text}   planner launch {others[0]} --base-port 9000 --dry-run" if others else text


def as_json(answer: Services) -> dict[str, Any]:
    """The summary as plain data, every plan in full."""
    return {
        "fleet": answer.fleet,
        "num_gpus": answer.num_gpus,
        "usd_per_hour": answer.usd_per_hour,
        "watts": answer.chosen.watts,
        "proof": answer.proof.model_dump(mode="json"),
        "splits": [_split_data(split) for split in (answer.chosen, *answer.others)],
        "limits": list(answer.limits),
        "notes": list(answer.notes),
        "plans": {name: plan.model_dump(mode="json") for name, plan in answer.plans.items()},
    }


def _split_data(split: Split) -> dict[str, Any]:
    return {
        "label": split.label,
        "passed": split.passed,
        "num_gpus": split.num_gpus if split.plans else None,
        "usd_per_hour": split.usd_per_hour if split.plans else None,
        "services": {
            name: {"pools": text, "num_gpus": gpus, "usd_per_hour": dollars, **_met(split.verdicts.get(name))}
            for name, (text, gpus, dollars) in split.plans.items()
        },
        "reason": split.reason or None,
    }


def _met(verdict: Verification | None) -> dict[str, Any]:
    return {} if verdict is None else {"passed": verdict.passed, "attainment": verdict.attainment.value}
