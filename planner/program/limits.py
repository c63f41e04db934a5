"""The limits of the fleet that bind, in people's words."""

from __future__ import annotations

from collections.abc import Sequence

from splitplan.planner.program.types import Binding, Placed, ProgramInput, ProgramSolution

PLACES_NAMED = 4


def binding_sentences(problem: ProgramInput, solution: ProgramSolution) -> list[str]:
    """The constraints without slack, in words, the one that holds growth back most first."""
    lines = merged_sentences(solution.placed, solution.binding, problem.options.network_utilisation)
    return lines or ["nothing binds: every limit has slack"]


def merged_sentences(placed: Sequence[Placed], binding: Sequence[Binding], network_share: float) -> list[str]:
    """One sentence per column that fills up (its places together), and one per other limit."""
    places: dict[str, list[str]] = {}
    others: list[str] = []
    for entry in binding:
        kind, _, rest = entry.constraint.partition("[")
        if kind == "instance_time":
            column, place = _column_and_place(rest.rstrip("]"), placed)
            places.setdefault(column, []).append(place)
        else:
            others.append(binding_in_words(entry, network_share))
    lines = []
    for column, full in places.items():
        count = sum(entry.instances for entry in placed if entry.column == column and entry.location in full)
        text = ", ".join(dict.fromkeys(full)) if len(full) <= PLACES_NAMED else f"{len(full)} places"
        lines.append(f"{count} x {column} at {text}: full first when load grows")
    return list(dict.fromkeys([*lines, *others]))


def _column_and_place(what: str, placed: Sequence[Placed]) -> tuple[str, str]:
    """The column and location in the name of an instance_time row (column names may hold commas themselves)."""
    for entry in placed:
        if what == f"{entry.column}, {entry.location}" or what.startswith(f"{entry.column}, {entry.location} "):
            return entry.column, entry.location
    column, _, place = what.rpartition(", ")
    return column, place


def binding_in_words(entry: Binding, network_share: float) -> str:
    """One binding limit of the fleet as a sentence."""
    kind, _, rest = entry.constraint.partition("[")
    what = rest.rstrip("]")
    if kind.startswith(("nic", "rack_uplink", "pod_uplink", "spine")):
        named = kind.replace("nic_used", "NICs in use").replace("nic_share", "NIC share").replace("_", " ")
        link = "the spine" if kind == "spine" else f"the {named} of {what}"
        return f"KV transfer fills {link} (planned at {100 * network_share:.0f} % of line rate)"
    words = {"rack_power": f"power of rack {what}", "gpus_fit": f"GPUs at {what}", "budget": "the budget"}
    return f"{words.get(kind, entry.constraint)} binds"
