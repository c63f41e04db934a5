"""Measuring from the command line: CPU end to end where torch is, one clear answer where a device or torch is not."""

from __future__ import annotations

import builtins
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from splitplan.catalogs.errors import InputError, MissingExtraError, ProfileError
from splitplan.catalogs.gpus import find_gpu
from splitplan.catalogs.models import find_model
from splitplan.profiler import session
from splitplan.profiler.profile import Basis
from splitplan.profiler.query import OpTimes
from splitplan.profiler.rows import read_rows
from splitplan.profiler.store import load_profile

CPU_RUN = ("--device", "cpu", "--model", "qwen3-0.6b", "--budget-s", "9", "--json", "-o", "cpu.npz")


def needs_torch() -> None:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("needs torch (extra gpu)")


def planner(*arguments: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "splitplan.planner.cli", "profile", *arguments]
    python_path = os.pathsep.join(os.path.abspath(place) for place in sys.path)  # it may be relative; cwd changes
    everything = {**os.environ, "PYTHONPATH": python_path, **environment}
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, env=everything, timeout=120)


@pytest.fixture(scope="module")
def cpu_run(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """One real run on this machine's CPU, as short as it can be."""
    needs_torch()
    folder = tmp_path_factory.mktemp("cpu")
    done = planner(
        "--device", "cpu", "--model", "qwen3-0.6b", "--budget-s", "9", "--json", "-o", "cpu.npz", folder=folder
    )
    assert done.returncode == 0, done.stderr
    return folder, json.loads(done.stdout)


def test_the_cpu_is_measured_end_to_end(cpu_run: Any) -> None:
    """One command on a machine without a GPU gives a profile whose rows answer from measurement."""
    folder, report = cpu_run
    assert report["kind"] == "profile-run"
    assert report["measured"] >= 5  # a busy machine gets through few
    assert report["failed"] == 0
    profile = load_profile(folder / "cpu.npz")
    assert profile.provenance["uuid"].startswith("cpu-")
    table = profile.tables["gemm"]
    n, k, m = (int(table.keys[name][0]) for name in ("n", "k", "m"))
    timed = OpTimes(profile, find_gpu("cpu")).gemm(m, n, k, "bf16")
    assert int(timed.basis) == Basis.MEASURED
    assert float(timed.seconds) == pytest.approx(table.seconds[0])


def test_resuming_measures_only_what_is_missing(cpu_run: Any) -> None:
    folder, _ = cpu_run
    before = [row.key for row in read_rows(folder / "cpu.rows.jsonl")]
    options = session.Options(models=("qwen3-0.6b",), budget_s=5.0)
    again = session.measure_device("cpu", options, folder / "cpu.npz", resume=True)
    after = [row.key for row in read_rows(folder / "cpu.rows.jsonl")]
    assert after[: len(before)] == before
    assert len(set(after)) == len(after)
    assert again.outcome.resumed > 0
    assert len(after) == len(before) + again.outcome.measured + again.outcome.failed


def test_planning_needs_no_gpu_and_no_torch(tmp_path: Path) -> None:
    done = planner("--gpu", "h100", "--plan-only", "--model", "llama-3.1-8b", "--json", folder=tmp_path)
    report = json.loads(done.stdout)
    assert report["gpu"] == "h100-sxm"
    assert report["estimate_s"] > 10
    assert len(report["points"]) > 100
    assert list(tmp_path.iterdir()) == []


def test_the_estimate_fits_ten_minutes_for_a_model_on_an_h100() -> None:
    """The promise of docs/profiling.md, by the estimate: a new GPU type in ten minutes."""
    options = session.Options(models=("llama-3.1-70b",), tensor_parallel=(1, 2, 4, 8))
    assert session.plan_without_hardware("h100", options).estimate_s < 600


def test_without_a_driver_there_is_one_clear_answer(tmp_path: Path) -> None:
    done = planner(folder=tmp_path, LD_LIBRARY_PATH="/nonexistent")
    if done.returncode == 0:
        pytest.skip("this machine has an NVIDIA GPU")
    assert done.returncode == 1
    assert "no NVIDIA driver" in done.stderr
    assert "--device cpu" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_missing_torch_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    real_import = builtins.__import__

    def without_torch(name: str, *arguments: Any, **keywords: Any) -> Any:
        if name == "torch":
            raise ImportError("No module named 'torch'")
        return real_import(name, *arguments, **keywords)

    monkeypatch.setattr(builtins, "__import__", without_torch)
    with pytest.raises(MissingExtraError, match=r"splitplan\[gpu\]"):
        session.open_bench("cpu")


@pytest.mark.parametrize("device", ["gpu", "cuda:x", "cuda:-1", ""])
def test_an_unknown_device_is_an_input_error(device: str) -> None:
    with pytest.raises(InputError, match="--device"):
        session.gpu_to_plan_for(device, "") if device.startswith("cuda") else session.open_bench(device)


@pytest.mark.parametrize("text", ["0", "1,x", "-2", "1.5", "99999"])
def test_tensor_parallel_sizes_are_whole_numbers(text: str) -> None:
    with pytest.raises(InputError, match="--tp"):
        session.parse_sizes(text)


@pytest.mark.parametrize("budget_s", [0.0, -1.0, float("nan"), float("inf")])
def test_a_budget_is_a_sane_number_of_seconds(budget_s: float) -> None:
    with pytest.raises(InputError, match="--budget-s"):
        session.plan_without_hardware("h100", session.Options(budget_s=budget_s))


def test_dtypes_that_nothing_runs_are_all_named_at_once() -> None:
    options = session.Options(dtypes=("bf16", "int3"), kv_dtypes=("foo",))
    with pytest.raises(InputError) as caught:
        session.plan_without_hardware("h100", options)
    assert [problem.key for problem in caught.value.problems] == ["--dtype", "--kv-dtype"]


def test_a_folder_is_no_file_to_write_to(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="folder"):
        session.measure_device("cpu", session.Options(models=("qwen3-0.6b",)), tmp_path)


def test_a_gpu_that_no_catalog_knows_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ProfileError, match="NVIDIA Z9"):
        session.gpu_of_reading("NVIDIA Z9")
    assert session.gpu_of_reading("NVIDIA H100 80GB HBM3").name == "h100-sxm"


def test_default_models_are_in_the_catalog() -> None:
    for name in session.DEFAULT_MODELS:
        assert find_model(name).name == name
