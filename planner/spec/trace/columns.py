"""Names under which traces record arrival, prompt tokens, generated tokens and class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from splitplan.catalogs.errors import DocumentError, InputError, Problem, nearest_names, shorten

ROLES = ("time", "input", "output", "class")
KNOWN_NAMES: Mapping[str, tuple[str, ...]] = {
    "time": (
        *("TIMESTAMP", "arrival_s", "arrival_ms", "arrived_at", "arrival_time", "arrival_timestamp", "arrival"),
        *("timestamp_s", "timestamp_ms", "time_s", "time_ms", "time"),
    ),
    "input": (
        *("ContextTokens", "input_tokens", "input_length", "Request tokens", "prompt_tokens"),
        *("num_prefill_tokens", "prompt_len", "prompt_size", "input_len", "isl"),
    ),
    "output": (
        *("GeneratedTokens", "output_tokens", "output_length", "Response tokens", "completion_tokens"),
        *("num_decode_tokens", "token_size", "output_len", "osl"),
    ),
    "class": ("class", "request_class"),
}
WHAT_IT_HOLDS = {
    "time": "arrival times",
    "input": "prompt tokens",
    "output": "generated tokens",
    "class": "request classes",
}


@dataclass(frozen=True, slots=True)
class Columns:
    """Which name holds what. `time` is None for lengths without arrivals."""

    time: str | None
    input: str
    output: str
    klass: str | None


def fold(name: str) -> str:
    """A name without case, spaces and punctuation."""
    return "".join(character for character in name.casefold() if character.isalnum())


def match_columns(header: Sequence[str], wanted: Mapping[str, str], where: str) -> Columns:
    """Find the columns of a header. `wanted` names columns by role and goes first.

    Raises InputError for roles and columns in `wanted` that do not exist, DocumentError for a header that lacks prompt
    or generated tokens, with the nearest names.
    """
    for role, name in wanted.items():
        if role not in ROLES:
            raise InputError(Problem(f"unknown role '{shorten(role, 30)}'", where, "column", ", ".join(ROLES)))
        if name not in header:
            near = nearest_names(name, header)
            hint = f"did you mean {' or '.join(near)}?" if near else f"the header has: {_listed(header)}"
            raise InputError(Problem(f"no column '{shorten(name, 40)}'", where, f"column {role}", next_step=hint))
    by_folded = {fold(name): name for name in reversed(header)}
    found: dict[str, str | None] = {}
    for role, names in KNOWN_NAMES.items():
        known = (by_folded.get(fold(name)) for name in names)
        found[role] = wanted.get(role) or next((name for name in known if name is not None), None)
    missing = [role for role in ("input", "output") if found[role] is None]
    if missing:
        raise DocumentError([_missing(role, header, where) for role in missing])
    return Columns(found["time"], str(found["input"]), str(found["output"]), found["class"])


def _missing(role: str, header: Sequence[str], where: str) -> Problem:
    near = [name for known in KNOWN_NAMES[role] for name in nearest_names(known, header)]
    expected = f"a column of {WHAT_IT_HOLDS[role]}, such as {', '.join(KNOWN_NAMES[role][:3])}"
    if near:
        hint = f"did you mean '{shorten(near[0], 40)}'? then add --column {role}='{shorten(near[0], 40)}'"
    else:
        hint = f"name it with --column {role}=NAME"
    return Problem(
        f"no {WHAT_IT_HOLDS[role]} in the header '{_listed(header)}'", where, expected=expected, next_step=hint
    )


def _listed(header: Sequence[str]) -> str:
    return shorten(",".join(header), 120)
