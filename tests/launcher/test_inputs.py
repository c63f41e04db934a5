"""A plan whose inputs changed is not launched by accident."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from splitplan.catalogs.errors import LaunchError, UsageError
from splitplan.catalogs.models import find_model
from splitplan.launcher.inputs import changed_inputs, check_inputs
from splitplan.planner.plan import Plan
from splitplan.planner.spec.fleet import load_fleet
from splitplan.profiler.store import find_profile
from tests.launcher.plans import mixed_plan


def real_plan(folder: Path) -> Plan:
    """A plan whose hashes are those of a fleet file in `folder`, a catalog model and shipped profiles."""
    (folder / "fleet.yaml").write_text(yaml.safe_dump(fleet_document()))
    plan = mixed_plan()
    inputs = plan.inputs.model_copy(
        update={
            "fleet": "fleet.yaml",
            "fleet_hash": load_fleet(folder / "fleet.yaml").content_hash,
            "model_hash": find_model(plan.inputs.model).content_hash,
            "profile_hashes": {"h100-sxm": find_profile("h100-sxm", "vllm").content_hash},
        }
    )
    return plan.model_copy(update={"inputs": inputs})


def fleet_document() -> dict[str, object]:
    """A small fleet, as the reader of fleets documents it."""
    from splitplan.planner.spec.fleet import as_document

    return as_document(load_fleet("h100-a100"))


def test_unchanged_inputs_pass(tmp_path: Path) -> None:
    """Paths in a plan are found beside the plan, wherever the command runs."""
    assert changed_inputs(real_plan(tmp_path), tmp_path / "plan.yaml") == {}


def test_a_changed_fleet_is_refused_unless_accepted(tmp_path: Path) -> None:
    plan = real_plan(tmp_path)
    document = yaml.safe_load((tmp_path / "fleet.yaml").read_text())
    document["racks"][0]["name"] = "moved"
    (tmp_path / "fleet.yaml").write_text(yaml.safe_dump(document))
    with pytest.raises(
        LaunchError, match=r"the fleet the plan was made from has changed[^\n]*\n  next: .*--accept-changed"
    ):
        check_inputs(plan, tmp_path / "plan.yaml")
    assert set(check_inputs(plan, tmp_path / "plan.yaml", accept=["fleet"])) == {"fleet"}


def test_a_missing_fleet_counts_as_changed(tmp_path: Path) -> None:
    plan = real_plan(tmp_path)
    (tmp_path / "fleet.yaml").unlink()
    with pytest.raises(LaunchError, match="cannot be read any more"):
        check_inputs(plan, tmp_path / "plan.yaml")


def test_changed_models_and_profiles_are_named(tmp_path: Path) -> None:
    plan = real_plan(tmp_path)
    inputs = plan.inputs.model_copy(update={"model_hash": "0" * 64, "profile_hashes": {"h100-sxm": "1" * 64}})
    changed = changed_inputs(plan.model_copy(update={"inputs": inputs}), tmp_path / "plan.yaml")
    assert set(changed) == {"model", "profiles"}


def test_accepting_something_that_is_no_input_is_wrong_usage(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="fleet, model, profiles, all"):
        check_inputs(real_plan(tmp_path), tmp_path / "plan.yaml", accept=["weather"])


def run_launch(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """The command line in another folder; PYTHONPATH may hold relative paths."""
    paths = [str(Path(part).resolve()) for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-m", "splitplan.planner.cli", "launch", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=60, env=environment)


def test_dry_run_writes_the_folder_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(real_plan(tmp_path).model_dump_json())
    done = run_launch("plan.json", "--dry-run", "--target", "lws", "-o", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert (tmp_path / "out" / "kustomization.yaml").exists()
    printed = run_launch("plan.json", "--dry-run", cwd=tmp_path)
    assert "# ==== hosts/a100-0.sh" in printed.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fleet.yaml", "out", "plan.json"]


def test_a_refused_plan_writes_nothing(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(mixed_plan().model_dump_json())
    done = run_launch("plan.json", "--dry-run", "-o", "out", cwd=tmp_path)
    assert done.returncode == 1
    assert "error:" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_file_that_is_no_plan_is_explained(tmp_path: Path) -> None:
    (tmp_path / "plan.yaml").write_text("kind: Plan\nversion: 1\npools: 7\n")
    done = run_launch("plan.yaml", "--dry-run", cwd=tmp_path)
    assert done.returncode == 1
    assert "plan.yaml:3 `pools`" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-o", "out"], "-o goes with --dry-run"),
        (["--dry-run", "--replace", "plan.json"], "give one of them"),
        (["--target", "lws"], "target 'lws' cannot be started"),
        (["--dry-run", "--target", "kubernets"], "did you mean kubernetes?"),
        (["--dry-run", "--engine", "vlm"], "did you mean vllm?"),
    ],
)
def test_options_that_do_not_go_together_are_wrong_usage(tmp_path: Path, arguments: list[str], message: str) -> None:
    (tmp_path / "plan.json").write_text(real_plan(tmp_path).model_dump_json())
    done = run_launch("plan.json", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fleet.yaml", "plan.json"]
