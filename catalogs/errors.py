"""Every error splitplan raises on purpose, in one tree.

SplitplanError                    anything below; the command line prints it and exits with `exit_code`
├── InputError                    what was given is wrong (exit 1)
│   ├── UnknownNameError          a name that no catalog knows; carries the nearest ones
│   └── DocumentError             one or more problems in one file, each with file, line and key
├── UsageError                    options that contradict each other (exit 2)
├── MissingExtraError             an optional dependency is needed; names the extra (exit 1)
├── NoPlanError                   no plan meets the targets; carries the reasons (exit 3)
├── SolverError                   the solver stopped without an answer (exit 1)
│   └── OutOfTimeError            the time that was given is over (exit 1)
├── ProfileError                  measuring or importing a profile failed (exit 1)
└── LaunchError                   rendering or starting a cluster failed (exit 1)
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong, where it is, what was expected, and what to do next."""

    message: str
    where: str = ""
    key: str = ""
    expected: str = ""
    next_step: str = ""

    def __str__(self) -> str:
        place = " ".join(part for part in (self.where, f"`{self.key}`" if self.key else "") if part)
        text = f"{place}: {self.message}" if place else self.message
        if self.expected:
            text += f"; expected {self.expected}"
        if self.next_step:
            text += f"\n  next: {self.next_step}"
        return text


class SplitplanError(Exception):
    """Base of every deliberate error. `problems` lists all that was found in one go."""

    exit_code = 1

    def __init__(self, problems: str | Problem | Sequence[Problem]) -> None:
        if isinstance(problems, str):
            problems = Problem(problems)
        if isinstance(problems, Problem):
            problems = (problems,)
        self.problems: tuple[Problem, ...] = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class InputError(SplitplanError):
    """Something the user gave is wrong."""


class UnknownNameError(InputError):
    """A name that is in no catalog; the message offers the nearest ones."""

    def __init__(self, kind: str, name: str, known: Iterable[str], *, where: str = "", key: str = "") -> None:
        near = nearest_names(name, known)
        hint = f"did you mean {' or '.join(near)}?" if near else f"see `planner catalog list {kind}s`"
        super().__init__(Problem(f"unknown {kind} '{shorten(name)}'", where, key, next_step=hint))


class DocumentError(InputError):
    """One or more problems in a file."""


class UsageError(SplitplanError):
    """Command-line options that cannot go together."""

    exit_code = 2


class MissingExtraError(SplitplanError):
    """A feature needs an optional dependency that is not installed."""

    def __init__(self, feature: str, extra: str) -> None:
        super().__init__(
            Problem(f"{feature} needs an optional dependency", next_step=f"pip install 'splitplan[{extra}]'")
        )


class NoPlanError(SplitplanError):
    """No plan meets the targets on this fleet: each problem is one reason with a way out."""

    exit_code = 3


class SolverError(SplitplanError):
    """The solver stopped without a usable answer."""


class OutOfTimeError(SolverError):
    """The time that a command was given is over."""


class ProfileError(SplitplanError):
    """Measuring or importing a profile failed."""


class LaunchError(SplitplanError):
    """Rendering, checking or starting a cluster failed."""


def nearest_names(name: str, known: Iterable[str], limit: int = 3) -> list[str]:
    """The closest known names, best first, compared without case."""
    by_folded = {candidate.casefold(): candidate for candidate in known}
    return [by_folded[match] for match in difflib.get_close_matches(name.casefold()[:100], by_folded, limit, 0.6)]


def shorten(text: object, limit: int = 80) -> str:
    """A user's value as one printable line of at most `limit` characters; control characters become "�"."""
    line = " ".join(str(text)[: 10 * limit].split())
    line = "".join(character if character.isprintable() else "\ufffd" for character in line)
    return line if len(line) <= limit else line[: limit - 1] + "…"
