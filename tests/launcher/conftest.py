"""Clusters of mocks that a test starts and that never outlive it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from splitplan.launcher import lifecycle, probe
from splitplan.launcher.lifecycle import Launched, destroy, launch
from splitplan.launcher.render import LaunchOptions
from splitplan.launcher.state import load_state, state_path
from splitplan.planner.plan import Plan

Start = Callable[..., Launched]


EXTRAS = Path(os.environ.get("SPLITPLAN_LAUNCH_EXTRAS", ".venv-extras")).absolute()
"""Where .ci/install-extras put the tools that these tests run against."""


WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw") or 0)
"""Number of this test process: each has ports of its own."""


def own_port(port: int) -> int:
    """A port (given between 18000 and 23500) for this test process alone, below those that the system hands out."""
    return port + 5_600 * WORKER


@pytest.fixture(autouse=True)
def own_port_range(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clusters of this test process look for free ports where no other does; mocks publish counters at once."""
    monkeypatch.setattr(lifecycle, "FIRST_PORT", own_port(lifecycle.FIRST_PORT))
    monkeypatch.setattr(probe, "METRICS_LAG_S", 0.1)


def lacking(reason: str) -> None:
    """Skip with a reason and the way out (a failure under SPLITPLAN_TEST_REQUIRE=all, as every skip)."""
    pytest.skip(f"{reason}; .ci/install-extras installs it")


@pytest.fixture
def plan_file(tmp_path: Path) -> Path:
    """Where the test's plan lies."""
    return tmp_path / "plan.json"


@pytest.fixture
def start(plan_file: Path) -> Iterator[Start]:
    """Launch a plan with mock engines on this machine; everything is stopped when the test ends."""

    def started(
        plan: Plan, *, options: LaunchOptions | None = None, faults: dict[str, Any] | None = None, **arguments: Any
    ) -> Launched:
        plan_file.write_text(plan.model_dump_json())
        options = options or LaunchOptions(target="local", engine="mock", faults=faults or {})
        return launch(plan, plan_file, options, **{"timeout_s": 20.0, **arguments})

    yield started
    if load_state(state_path(plan_file)) is not None:
        destroy(plan_file)
