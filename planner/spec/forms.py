"""Workloads written on the command line: `fixed:1024/200` and `lognormal:mean=1155,cv=1.1/mean=211,cv=1`."""

from __future__ import annotations

import math
import re

from splitplan.catalogs.errors import InputError, Problem, shorten
from splitplan.planner.spec.lengths import fixed_lengths, lognormal_lengths
from splitplan.planner.spec.workload import IntArray

FORMS = {
    "fixed": "fixed:INPUT/OUTPUT, as in fixed:1024/200",
    "lognormal": "lognormal:mean=TOKENS,cv=RATIO/mean=TOKENS,cv=RATIO, as in lognormal:mean=1155,cv=1.1/mean=211,cv=1",
}
MAX_FORM_TOKENS = 10_000_000
MAX_FORM_CV = 5.0
_INTEGER = re.compile(r"\d{1,8}", re.ASCII)
_NUMBER = re.compile(r"\d{1,8}(\.\d{1,6})?", re.ASCII)


def is_form(text: str) -> bool:
    """Whether the text is meant as a form, right or wrong."""
    return text.partition(":")[0] in FORMS and ":" in text


def form_lengths(text: str) -> tuple[IntArray, IntArray]:
    """Input and output lengths of a form, as rows of equal weight. Raises InputError with what was expected."""
    kind, _, body = text.partition(":")
    halves = body.split("/")
    if len(halves) != 2:
        raise _bad(text, f"has {len(halves)} parts between slashes")
    if kind == "fixed":
        return fixed_lengths(_tokens(text, halves[0]), _tokens(text, halves[1]))
    return lognormal_lengths(*_spread(text, halves[0]), *_spread(text, halves[1]))


def _tokens(text: str, part: str) -> int:
    if not _INTEGER.fullmatch(part.strip()) or not 1 <= int(part) <= MAX_FORM_TOKENS:
        raise _bad(text, f"'{shorten(part, 30)}' is no number of tokens from 1 to {MAX_FORM_TOKENS}")
    return int(part)


def _spread(text: str, part: str) -> tuple[float, float]:
    """(mean, cv) of `mean=1155,cv=1.1`; cv may be left out and is then 1."""
    found = {"cv": 1.0}
    for term in part.split(","):
        name, _, value = (piece.strip() for piece in term.partition("="))
        if name not in ("mean", "cv") or not _NUMBER.fullmatch(value):
            raise _bad(text, f"cannot read '{shorten(term, 30)}'")
        found[name] = float(value)
    if not 1 <= found.get("mean", math.nan) <= MAX_FORM_TOKENS:
        raise _bad(text, f"needs a mean from 1 to {MAX_FORM_TOKENS} tokens")
    if not found["cv"] <= MAX_FORM_CV:
        raise _bad(text, f"has a cv above {MAX_FORM_CV:g}")
    return found["mean"], found["cv"]


def _bad(text: str, message: str) -> InputError:
    return InputError(Problem(message, shorten(text, 60), expected=FORMS[text.partition(":")[0]]))
