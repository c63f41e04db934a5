"""Host names in ranges: `gpu[01-04,7]` ↔ gpu01 gpu02 gpu03 gpu04 gpu7, as Slurm's hostlists write them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import product

from splitplan.catalogs.errors import InputError, Problem, shorten

MAX_NAMES = 100_000
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?", re.ASCII)
_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
_NUMBERED = re.compile(r"(.*?)(\d{1,9})", re.ASCII | re.DOTALL)


def expand_names(pattern: str, *, where: str = "", key: str = "") -> tuple[str, ...]:
    """All names of a pattern with any number of brackets, in order. Raises InputError with what is wrong."""
    expected = "a name or ranges in brackets, as in gpu[01-04,7]"
    pieces = _BRACKETS.split(pattern)
    if any(bracket in piece for piece in pieces[::2] for bracket in "[]"):
        raise InputError(Problem(f"unbalanced brackets in '{shorten(pattern, 60)}'", where, key, expected))
    choices: list[Sequence[str]] = []
    num_names = 1
    for index, piece in enumerate(pieces):
        numbers = (piece,) if index % 2 == 0 else _numbers(piece)
        if not numbers:
            raise InputError(Problem(f"bad range '[{shorten(piece, 40)}]'", where, key, expected))
        num_names *= len(numbers)
        choices.append(numbers)
    if num_names > MAX_NAMES:
        message = f"'{shorten(pattern, 60)}' names more than {MAX_NAMES} things"
        raise InputError(Problem(message, where, key, f"at most {MAX_NAMES} names"))
    return tuple("".join(parts) for parts in product(*choices))


def _numbers(piece: str) -> tuple[str, ...]:
    """`01-03,7` as ("01", "02", "03", "7"); () when it is no list of ranges."""
    found: list[str] = []
    for part in piece.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            return ()
        first, last = match[1], match[2] or match[1]
        if int(last) < int(first) or int(last) - int(first) > MAX_NAMES:
            return ()
        found.extend(f"{number:0{len(first)}d}" for number in range(int(first), int(last) + 1))
    return tuple(found)


def compress_names(names: Sequence[str]) -> str | None:
    """One pattern that expands to exactly these names in this order, or None when they do not form one run."""
    if len(names) == 1:
        return names[0] if "[" not in names[0] and "]" not in names[0] else None
    split = [_NUMBERED.fullmatch(name) for name in names]
    if not names or any(match is None or "[" in match[1] or "]" in match[1] for match in split):
        return None
    heads = {match[1] for match in split if match}
    numbers = [match[2] for match in split if match]
    if len(heads) != 1:
        return None
    pattern = f"{heads.pop()}[{','.join(_runs(numbers))}]"
    return pattern if expand_names(pattern) == tuple(names) else None


def _runs(numbers: Sequence[str]) -> Iterator[str]:
    start = previous = numbers[0]
    for number in [*numbers[1:], ""]:
        if number and int(number) == int(previous) + 1 and number == f"{int(number):0{len(start)}d}":
            previous = number
            continue
        yield start if start == previous else f"{start}-{previous}"
        start = previous = number
