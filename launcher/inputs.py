"""A saved plan is exactly what gets launched: the fleet, model and profiles it was made from must still be the same."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

from splitplan.catalogs.errors import InputError, LaunchError, Problem, SplitplanError, UsageError, shorten
from splitplan.planner.plan import Plan

CHECKED = ("fleet", "model", "profiles")


def changed_inputs(plan: Plan, plan_path: str | Path = "") -> dict[str, str]:
    """By input ("fleet", "model", "profiles"): in what way it is not what the plan was made from; {} when all match.

    Paths in the plan are tried as they are, then relative to the plan's own folder.
    """
    folder = Path(plan_path).parent if plan_path else Path()
    found = {
        "fleet": _difference(lambda: _fleet_hash(plan, folder), plan.inputs.fleet_hash),
        "model": _difference(lambda: _model_hash(plan, folder), plan.inputs.model_hash),
        "profiles": _profile_difference(plan, folder),
    }
    return {name: reason for name, reason in found.items() if reason}


def check_inputs(plan: Plan, plan_path: str | Path = "", *, accept: Collection[str] = ()) -> dict[str, str]:
    """LaunchError when an input changed that is not in `accept` (names of CHECKED, or "all"); returns what changed."""
    unknown = sorted(set(accept) - {*CHECKED, "all"})
    if unknown:
        raise UsageError(Problem(f"unknown input {shorten(unknown[0])!r}", expected=", ".join((*CHECKED, "all"))))
    changed = changed_inputs(plan, plan_path)
    refused = {name: reason for name, reason in changed.items() if name not in accept and "all" not in accept}
    if refused:
        raise LaunchError(
            [
                Problem(
                    f"the {name} the plan was made from {reason}",
                    str(plan_path),
                    f"inputs.{name}",
                    next_step=f"planner solve again, or launch with --accept-changed {name}",
                )
                for name, reason in refused.items()
            ]
        )
    return changed


def _difference(current: Callable[[], str], planned: str) -> str:
    try:
        found = current()
    except SplitplanError as error:
        return f"cannot be read any more ({shorten(error.problems[0], 200)})"
    return "" if found == planned else f"has changed (planned {planned[:12] or '-'}, now {found[:12] or '-'})"


def _profile_difference(plan: Plan, folder: Path) -> str:
    try:
        given = _given_profiles(plan, folder)
    except SplitplanError as error:
        return f"cannot be read any more ({shorten(error.problems[0], 200)})"
    for gpu, planned in sorted(plan.inputs.profile_hashes.items()):
        current = given[gpu] if gpu in given else _shipped_profile_hash(plan, gpu)
        if current != planned:
            return f"for {shorten(gpu)} have changed (planned {planned[:12] or '-'}, now {current[:12] or '-'})"
    return ""


def _fleet_hash(plan: Plan, folder: Path) -> str:
    from splitplan.planner.spec.fleet import load_fleet

    kind = plan.inputs.options.get("price_kind", "on_demand")
    return load_fleet(resolved(plan.inputs.fleet, folder), price_kind=kind).content_hash


def _model_hash(plan: Plan, folder: Path) -> str:
    from splitplan.catalogs.models import find_model

    return find_model(resolved(plan.inputs.model, folder)).content_hash


def _given_profiles(plan: Plan, folder: Path) -> dict[str, str]:
    """Hashes of the profile files the plan was made with, by GPU type."""
    from splitplan.profiler.store import load_profile

    paths = [part for part in plan.inputs.options.get("profiles", "").split("|") if part]
    profiles = [load_profile(Path(resolved(path, folder))) for path in paths]
    return {profile.gpu: profile.content_hash for profile in profiles}


def _shipped_profile_hash(plan: Plan, gpu: str) -> str:
    """The hash of the profile that ships for a GPU type; "" where none does (the plan then used a roofline)."""
    from splitplan.profiler.store import find_profile

    try:
        return find_profile(gpu, plan.engine.removeprefix("dynamo-")).content_hash
    except InputError:
        return ""


def resolved(name: str, folder: Path) -> str:
    """A path named in a plan: as it is, else relative to the plan's own folder."""
    beside = folder / name
    return str(beside) if not Path(name).exists() and beside.exists() else name
