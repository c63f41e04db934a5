"""Looking up keys of a config.json: under several names, with bounds, collecting what is wrong with its line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from splitplan.catalogs.documents import Document, KeyPath
from splitplan.catalogs.errors import DocumentError, Problem, shorten

MAX_DIMENSION = 10**8


class ConfigKeys:
    """One mapping of a config.json (the text part, where there are several) and the problems found in it so far."""

    def __init__(self, document: Document, at: KeyPath, data: Mapping[str, Any]) -> None:
        self.document = document
        self.at = at
        self.data = data
        self.problems: list[Problem] = []

    def integer(self, *names: str, default: int | None = None, least: int = 1) -> int:
        """The first of `names` that is set, as a whole number. Missing without a default, or out of range.

        A problem, and 1.
        """
        for name in names:
            value = self.data.get(name)
            if value is None:
                continue
            if isinstance(value, float) and value.is_integer():
                value = int(value)
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MAX_DIMENSION:
                self.refuse(name, f"is {shorten(repr(self.data[name]), 40)}", f"a whole number of at least {least}")
                return max(least, 1)
            return value
        if default is None:
            also = f" (also looked for: {', '.join(names[1:])})" if names[1:] else ""
            self.refuse(names[0], f"missing{also}", "a whole number: the config.json of a decoder-only transformer")
            return max(least, 1)
        return default

    def optional(self, *names: str, least: int = 1) -> int | None:
        """As `integer`, None where no name is set."""
        return self.integer(*names, least=least) if any(self.data.get(name) is not None for name in names) else None

    def flag(self, *names: str, default: bool) -> bool:
        """The first of `names` that is set, as a truth value."""
        for name in names:
            value = self.data.get(name)
            if isinstance(value, bool):
                return value
            if value is not None:
                self.refuse(name, f"is {shorten(repr(value), 40)}", "true or false")
        return default

    def text(self, *names: str) -> str:
        """The first of `names` that is text, else ""."""
        return next((value for name in names if isinstance(value := self.data.get(name), str)), "")

    def texts(self, name: str, length: int) -> list[str] | None:
        """A list of one text per layer; None where the key is not set."""
        value = self.data.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value) or len(value) < length:
            self.refuse(name, "is not a list with one name per layer", f"{length} names")
            return None
        return value[:length]

    def refuse(self, name: str, message: str, expected: str = "", next_step: str = "") -> None:
        """Note a problem at a key."""
        self.problems.append(self.document.problem((*self.at, name), message, expected, next_step))

    def check(self) -> None:
        """Raise what was found."""
        if self.problems:
            raise DocumentError(self.problems)
