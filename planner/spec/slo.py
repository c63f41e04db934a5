"""Latency targets: `ttft=800ms@p99,tpot=50ms@p99`. TPOT is (E2E − TTFT) / (output tokens − 1)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal

from splitplan.catalogs.errors import InputError, Problem, nearest_names, shorten

TPOT_DEFINITION = "TPOT = (E2E − TTFT) / (output tokens − 1)"
LATENCIES = ("ttft", "tpot", "e2e", "itl")
DEFAULT_PERCENTILE = 90.0
MAX_TARGET_S = 86_400.0
EXAMPLE = "ttft=800ms@p99,tpot=50ms@p99,attain=95%"
_SECONDS_PER_UNIT = {"ms": Decimal("0.001"), "s": Decimal(1)}
_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_TARGET = re.compile(rf"(?P<number>{_NUMBER})\s*(?P<unit>[^\s@\d]*)\s*(?P<tail>@.*)?", re.ASCII | re.DOTALL)
_PERCENTILE = re.compile(r"@\s*[pP](\d{1,2}(?:\.\d{1,4})?)\s*", re.ASCII)
_SHARE = re.compile(r"(\d{1,3}(?:\.\d{1,20})?|\.\d{1,20})\s*(%?)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Target:
    """A bound on one latency at one percentile."""

    seconds: float
    percentile: float  # 50 <= p < 100, for instance 99.0


@dataclass(frozen=True, slots=True)
class Slo:
    """All targets of one request class. `attainment` is the share of requests that must meet all of them."""

    ttft: Target | None
    tpot: Target | None
    e2e: Target | None
    itl: Target | None
    attainment: float
    notes: tuple[str, ...] = ()  # for instance "ttft=500 read as 500 ms"

    @property
    def targets(self) -> dict[str, Target]:
        """The targets that are set, by name, in the order ttft, tpot, e2e, itl."""
        named = ((name, getattr(self, name)) for name in LATENCIES)
        return {name: target for name, target in named if target is not None}

    def __str__(self) -> str:
        return format_slo(self)


@dataclass
class _Parsed:
    """What one pass over the text collects."""

    where: str
    targets: dict[str, Target] = field(default_factory=dict)
    attainment: float | None = None
    notes: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    def reject(self, column: int, key: str, message: str, expected: str = "", next_step: str = "") -> None:
        place = f"{self.where} character {column + 1}"
        self.problems.append(Problem(message, place, key, expected, next_step))


def parse_slo(text: str, *, where: str = "SLO") -> Slo:
    """Read `name=value[ms|s][@pNN]` terms separated by commas; names ttft, tpot, e2e, itl, and `attain=95%`.

    A bare number is milliseconds (noted), a missing percentile is p90, a missing `attain` is the lowest percentile
    named. Raises InputError with every mistake, each with its position in the text.
    """
    parsed = _Parsed(where)
    seen: set[str] = set()
    for column, term in _terms(text):
        name, equals, value = term.partition("=")
        key = name.strip().casefold()
        if not term.strip():
            parsed.reject(column, "", "empty term", expected=EXAMPLE)
        elif not equals or key not in (*LATENCIES, "attain"):
            _reject_name(parsed, column, term, key)
        elif key in seen:
            parsed.reject(column, key, "given twice", expected="each name once")
        else:
            seen.add(key)
            value_column = column + len(name) + 1
            value_column += len(value) - len(value.lstrip())
            _read_value(parsed, value_column, key, value.strip())
    if not parsed.targets and not parsed.problems:
        parsed.reject(0, "", "names no latency target", expected=f"at least one of {', '.join(LATENCIES)}: {EXAMPLE}")
    if parsed.problems:
        raise InputError(parsed.problems)
    _note_what_binds_nothing(parsed)
    lowest = float(min(Decimal(repr(target.percentile)) for target in parsed.targets.values()) / 100)
    attainment = parsed.attainment if parsed.attainment is not None else lowest
    ttft, tpot, e2e, itl = (parsed.targets.get(name) for name in LATENCIES)
    return Slo(ttft, tpot, e2e, itl, attainment, tuple(parsed.notes))


def format_slo(slo: Slo) -> str:
    """The text that `parse_slo` reads back to the same targets, for instance `ttft=800ms@p99,attain=99%`."""
    terms = []
    for name, target in slo.targets.items():
        milliseconds = _plain(Decimal(repr(target.seconds)) * 1000)
        terms.append(f"{name}={milliseconds}ms@p{_plain(Decimal(repr(target.percentile)))}")
    return ",".join([*terms, f"attain={_plain(Decimal(repr(slo.attainment)) * 100)}%"])


def _terms(text: str) -> Iterator[tuple[int, str]]:
    column = 0
    for term in text.split(","):
        yield column + len(term) - len(term.lstrip()), term.strip()
        column += len(term) + 1


def _reject_name(parsed: _Parsed, column: int, term: str, key: str) -> None:
    near = nearest_names(key, (*LATENCIES, "attain"))
    hint = f"did you mean {' or '.join(near)}?" if near and key not in LATENCIES else ""
    if "=" not in term:
        parsed.reject(column, "", f"'{shorten(term, 40)}' has no `=`", expected=f"name=value, as in {EXAMPLE}")
    else:
        expected = f"one of {', '.join((*LATENCIES, 'attain'))}"
        parsed.reject(column, "", f"unknown target '{shorten(key, 40)}'", expected, hint)


def _read_value(parsed: _Parsed, column: int, key: str, value: str) -> None:
    if key == "attain":
        parsed.attainment = _share(parsed, column, value)
        return
    match = _TARGET.fullmatch(value)
    if match is None:
        parsed.reject(column, key, f"'{shorten(value, 40)}' is no duration", expected="for instance 800ms or 0.8s@p99")
        return
    seconds = _seconds(parsed, column, key, match["number"], match["unit"])
    percentile = _percentile(parsed, column + max(match.start("tail"), 0), key, match["tail"])
    if seconds is not None and percentile is not None:
        parsed.targets[key] = Target(seconds, percentile)


def _seconds(parsed: _Parsed, column: int, key: str, number: str, unit: str) -> float | None:
    expected = f"a number above 0 with ms or s, at most {MAX_TARGET_S:g} s"
    if unit and unit.casefold() not in _SECONDS_PER_UNIT:
        parsed.reject(column + len(number), key, f"unknown unit '{shorten(unit, 20)}'", expected="ms or s")
        return None
    try:
        amount = Decimal(number) * _SECONDS_PER_UNIT[unit.casefold() or "ms"]
        seconds = float(amount)
    except (ArithmeticError, ValueError):
        parsed.reject(column, key, f"'{shorten(number, 40)}' is no number", expected)
        return None
    if not 0 < seconds <= MAX_TARGET_S:
        parsed.reject(column, key, f"is {shorten(number + unit, 40)}", expected)
        return None
    if not unit:
        parsed.notes.append(f"{key}={number} read as {number} ms")
    return seconds


def _percentile(parsed: _Parsed, column: int, key: str, tail: str | None) -> float | None:
    if tail is None:
        return DEFAULT_PERCENTILE
    match = _PERCENTILE.fullmatch(tail)
    if match is None or not 50 <= float(match[1]) < 100:
        mean = "mean" in tail.casefold() or "avg" in tail.casefold()
        hint = "a mean says nothing about the slowest requests; use p50 for the median" if mean else ""
        parsed.reject(column, key, f"'{shorten(tail, 30)}' is no percentile", "@p50 to @p99.99, as in @p99", hint)
        return None
    return float(match[1])


def _share(parsed: _Parsed, column: int, value: str) -> float | None:
    expected = "a share above 0 % and below 100 %, as in 95% or 0.95"
    match = _SHARE.fullmatch(value)
    if match is None:
        parsed.reject(column, "attain", f"'{shorten(value, 40)}' is no share", expected)
        return None
    amount = Decimal(match[1])
    if not match[2] and amount > 1:
        parsed.notes.append(f"attain={value} read as {value} %")
    share = float(amount / 100 if match[2] or amount > 1 else amount)
    if not 0 < share < 1:
        parsed.reject(column, "attain", f"is {value}", expected)
        return None
    return share


def _note_what_binds_nothing(parsed: _Parsed) -> None:
    ttft, e2e = parsed.targets.get("ttft"), parsed.targets.get("e2e")
    if ttft and e2e and e2e.seconds <= ttft.seconds and e2e.percentile >= ttft.percentile:
        parsed.notes.append("e2e is at least as tight as ttft, so ttft never binds")


def _plain(number: Decimal) -> str:
    """Shortest fixed-point text of an exact decimal."""
    text = f"{number:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
