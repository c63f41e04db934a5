"""Real engines and schedulers, opt-in: `make test-heavy` installs them and runs these tests, `make test` does not."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from splitplan.launcher.lifecycle import destroy
from splitplan.launcher.state import load_state, state_path

HEAVY = Path(os.environ.get("SPLITPLAN_HEAVY", ".venv-heavy")).absolute()
"""Where .ci/install-heavy put vLLM's CPU build, NIXL, vllm-router and Ray."""

START_TIMEOUT_S = 1200.0


@pytest.fixture(autouse=True)
def programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """`vllm`, `vllm-router` and `ray` are found; vLLM's CPU build wants Intel's OpenMP loaded first."""
    if not (HEAVY / "bin" / "python").exists():
        pytest.skip("heavy tools are not installed; .ci/install-heavy does it")
    monkeypatch.setenv("PATH", f"{HEAVY / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("VLLM_NO_USAGE_STATS", "1")


@pytest.fixture
def vllm_on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The OpenMP library that came with vLLM's CPU build."""
    monkeypatch.setenv("LD_PRELOAD", str(HEAVY / "lib" / "libiomp5.so"))


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of random weights that real engines load."""
    if not (HEAVY / "bin" / "python").exists():
        pytest.skip("heavy tools are not installed; .ci/install-heavy does it")
    folder = tmp_path_factory.mktemp("model") / "tiny"
    script = Path(__file__).with_name("tiny_model.py")
    subprocess.run([HEAVY / "bin" / "python", script, folder], check=True, capture_output=True, timeout=600)
    return folder


@pytest.fixture
def plan_file(tmp_path: Path) -> Iterator[Path]:
    """Where the test's plan lies; what was launched from it is stopped when the test ends."""
    path = tmp_path / "plan.json"
    yield path
    if load_state(state_path(path)) is not None:
        destroy(path)
