"""What one pass over a Fleet or Workload file finds: problems with their place, assumptions, catalog facts by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from splitplan.catalogs.documents import Document, KeyPath, dotted
from splitplan.catalogs.errors import DocumentError, Problem, SplitplanError, nearest_names, shorten
from splitplan.catalogs.gpus import Gpu, find_gpu
from splitplan.catalogs.links import Link, find_link
from splitplan.planner.spec.names import expand_names

BYTES_PER_GBIT = 1e9 / 8
_T = TypeVar("_T")


def bytes_per_s_of(gbit_per_s: float) -> float:
    """Gbit/s in whole bytes per second, so that what is written in either unit reads back to the same number."""
    return float(round(gbit_per_s * BYTES_PER_GBIT))


def gbit_per_s_of(bytes_per_s: float) -> float:
    """The inverse of `bytes_per_s_of`."""
    return bytes_per_s / BYTES_PER_GBIT


def check_kind(document: Document, kind: str) -> None:
    """Raise DocumentError when the file says that it is something else: its other keys then say nothing."""
    found = document.data.get("kind")
    if found is not None and found != kind:
        near = f"write `kind: {kind}`" if nearest_names(str(found), [kind]) else f"give a {kind} file here"
        raise DocumentError(document.problem(("kind",), f"is {shorten(repr(found), 40)}", f"'{kind}'", near))


@dataclass
class Reading:
    """One pass over a document: what was wrong and what was assumed."""

    document: Document
    problems: list[Problem] = field(default_factory=list)
    notes: dict[str, None] = field(default_factory=dict)  # in order, each once

    def reject(self, at: KeyPath, message: str, expected: str = "", next_step: str = "") -> None:
        """Record a problem at a key."""
        self.problems.append(self.document.problem(at, message, expected, next_step))

    def note(self, text: str) -> None:
        """Record an assumption once."""
        self.notes.setdefault(text)

    def gpu(self, name: str, at: KeyPath) -> Gpu | None:
        """A catalog GPU, or a recorded problem."""
        return self.attempt(lambda: find_gpu(name, where=self.document.where(at), key=dotted(at)))

    def link(self, name: str, at: KeyPath, *, network: bool) -> Link | None:
        """A catalog link that is (or is not) a network, or a recorded problem."""
        link = self.attempt(lambda: find_link(name, where=self.document.where(at), key=dotted(at)))
        inside = ("nvlink", "pcie", "infinity-fabric")
        if link is not None and network == (link.kind in inside):
            expected = "a network link such as infiniband or ethernet" if network else "nvlink, pcie or infinity-fabric"
            self.reject(at, f"'{link.name}' is of kind {link.kind}", expected)
            return None
        return link

    def names(self, pattern: str, at: KeyPath) -> tuple[str, ...]:
        """The names of a pattern, or () and a recorded problem."""
        where, key = self.document.where(at), dotted(at)
        return self.attempt(lambda: expand_names(pattern, where=where, key=key)) or ()

    def attempt(self, call: Callable[[], _T]) -> _T | None:
        """What `call` returns, or None after its problems were recorded."""
        try:
            return call()
        except SplitplanError as error:
            self.problems.extend(error.problems)
            return None

    def stop_on_problems(self) -> None:
        """Raise DocumentError with everything recorded so far."""
        if self.problems:
            raise DocumentError(self.problems)
