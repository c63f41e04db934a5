"""Option names of the engines, by version: every flag we emit must be one the tool has."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from importlib.resources import files

from splitplan.catalogs.errors import LaunchError, Problem, nearest_names


@lru_cache(maxsize=1)
def _inventory_names() -> tuple[str, ...]:
    folder = files("splitplan.launcher") / "flags"
    return tuple(sorted(entry.name.removesuffix(".txt") for entry in folder.iterdir() if entry.name.endswith(".txt")))


def versions(tool: str) -> list[str]:
    """The versions of a tool whose option names ship with splitplan, oldest first."""
    found = [name.removeprefix(f"{tool}-") for name in _inventory_names() if name.rpartition("-")[0] == tool]
    return sorted(found, key=_version_key)


def find_version(tool: str, wanted: str = "") -> str:
    """The full version for "0.32", "0.32.0" or "" (the newest); LaunchError names the versions there are."""
    known = versions(tool)
    matches = [version for version in known if not wanted or version == wanted or version.startswith(f"{wanted}.")]
    if not matches:
        listed = ", ".join(f"{tool}@{version}" for version in known) or "none"
        raise LaunchError(
            Problem(
                f"the option names of {tool} {wanted} are not known, so its flags cannot be checked",
                expected=f"one of {listed}",
                next_step=f"planner launch PLAN --engine {tool}@{known[-1]}" if known else "",
            )
        )
    return matches[-1]


@lru_cache(maxsize=16)
def options(tool: str, version: str) -> frozenset[str]:
    """All long option names of one version of a tool, for instance "--max-model-len"."""
    text = (files("splitplan.launcher") / "flags" / f"{tool}-{version}.txt").read_text(encoding="utf-8")
    return frozenset(line for line in text.split("\n") if line.startswith("--"))


def unknown_options(tool: str, version: str, argv: Iterable[str]) -> list[Problem]:
    """A problem for each `--option` in a command line that this version of the tool does not have."""
    known = options(tool, version)
    problems = []
    for argument in argv:
        name = argument.partition("=")[0]
        if name.startswith("--") and name not in known:
            near = nearest_names(name, known)
            hint = f"did you mean {' or '.join(near)}?" if near else ""
            problems.append(Problem(f"{tool} {version} has no option {name}", next_step=hint))
    return problems


def check_options(tool: str, version: str, argv: Sequence[str]) -> None:
    """LaunchError when a command line uses an option that this version of the tool does not have."""
    problems = unknown_options(tool, version, argv)
    if problems:
        raise LaunchError(problems)


def _version_key(version: str) -> tuple[int, ...]:
    return tuple(int(part) if part.isdigit() else 0 for part in version.split("."))
