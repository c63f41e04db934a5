"""The question a plan answers, as names, paths and wishes: enough to ask it again, and kept in the plan as text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypeVar

from splitplan.catalogs.errors import InputError, Problem, shorten
from splitplan.planner.columns.options import ColumnOptions
from splitplan.planner.plan import Plan
from splitplan.planner.program.types import ProgramOptions
from splitplan.planner.spec.held import NOTHING, Held, held_as_text, held_from_text

PriceKind = Literal["on_demand", "reserved", "spot"]
OptionsT = TypeVar("OptionsT", ColumnOptions, ProgramOptions)


@dataclass(frozen=True, slots=True)
class Question:
    """What was asked."""

    model: str
    fleet: str
    workload: str
    slo: str
    rate_req_per_s: float | None = None
    program: ProgramOptions = field(default_factory=lambda: ProgramOptions(max_kinds=1))
    columns: ColumnOptions = field(default_factory=ColumnOptions)
    price_kind: PriceKind = "on_demand"
    class_weights: tuple[tuple[str, float], ...] = ()  # (class, worth of one of its requests), for weighted goodput
    profiles: tuple[str, ...] = ()  # files that take the place of shipped profiles
    length_buckets: str = ""  # "auto", a number, or edges in input tokens: see `spec/length_buckets.py`; "": none
    seed: int = 0
    held: Held = NOTHING  # what other services have of the fleet


def options_as_text(question: Question) -> dict[str, str]:
    """All options that differ from their defaults, as text: words as they are, everything else as JSON."""
    kept = _changed(question.columns, ColumnOptions()) | _changed(question.program, ProgramOptions())
    if question.price_kind != "on_demand":
        kept["price_kind"] = question.price_kind
    if question.class_weights:
        kept["class_weights_by_name"] = json.dumps(dict(question.class_weights))
    if question.profiles:
        kept["profiles"] = "|".join(question.profiles)
    if question.length_buckets:
        kept["length_buckets"] = question.length_buckets
    if question.held != NOTHING:
        kept["held"] = held_as_text(question.held)
    return kept


def question_of(plan: Plan) -> Question:
    """The question a saved plan answers."""
    inputs, kept = plan.inputs, plan.inputs.options
    return Question(
        model=inputs.model,
        fleet=inputs.fleet,
        workload=inputs.workload,
        slo=inputs.slo,
        rate_req_per_s=inputs.rate_req_per_s,
        program=_restored(ProgramOptions(), kept),
        columns=_restored(ColumnOptions(), kept),
        price_kind=kept.get("price_kind", "on_demand"),  # type: ignore[arg-type]
        class_weights=tuple(_object_of(kept, "class_weights_by_name").items()),
        profiles=tuple(part for part in kept.get("profiles", "").split("|") if part),
        length_buckets=kept.get("length_buckets", ""),
        seed=inputs.seed,
        held=held_from_text(kept.get("held", "")),
    )


def _changed(options: Any, defaults: Any) -> dict[str, str]:
    pairs = ((item.name, getattr(options, item.name), getattr(defaults, item.name)) for item in fields(options))
    return {
        name: value if isinstance(value, str) else json.dumps(value) for name, value, usual in pairs if value != usual
    }


def _object_of(kept: Mapping[str, str], name: str) -> dict[str, float]:
    try:
        found = json.loads(kept.get(name, "{}"))
        return {str(key): float(value) for key, value in found.items()}
    except (ValueError, AttributeError, TypeError):
        raise InputError(_unreadable(name, kept[name])) from None


def _unreadable(name: str, text: str) -> Problem:
    key = f"inputs.options.{name}"
    return Problem(f"is {shorten(repr(text))}", "plan", key, "a value as planner solve writes it")


def _restored(defaults: OptionsT, kept: Mapping[str, str]) -> OptionsT:
    values: dict[str, Any] = {}
    for item in fields(defaults):
        usual, text = getattr(defaults, item.name), kept.get(item.name)
        if text is None:
            continue
        try:
            value = text if isinstance(usual, str) or item.name in WORDS else json.loads(text)
        except ValueError:
            raise InputError(_unreadable(item.name, text)) from None
        values[item.name] = tuple(value) if isinstance(value, list) else value
    return type(defaults)(**values)


WORDS = ("only_gpu", "granularity")  # words whose default is none
