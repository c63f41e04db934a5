"""What holds after every simulation of every test here: nothing is lost, and all memory and links are accounted for."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from splitplan.planner.simulate import layout as at
from splitplan.planner.simulate import run as run_module


def assert_conserved(world: at.World) -> None:
    """Arrivals = finished + rejected + in flight; KV between none and all, and all of it free when nobody is left."""
    ints = world.ints
    assert ints[at.G_ARRIVED] == ints[at.G_FINISHED] + ints[at.G_REJECTED] + ints[at.G_IN_FLIGHT]
    nobody_left = ints[at.G_IN_FLIGHT] == 0
    for lane in range(ints[at.G_FIRST_ENGINE], ints[at.G_END_ENGINE], at.E_WIDTH):
        home = ints[lane + at.E_HOME]
        assert 0 <= ints[home + at.E_KV_FREE] <= ints[home + at.E_KV_PAGES]
        assert min(ints[lane + at.E_RUNNING], ints[home + at.E_ARRIVING]) >= 0
        if nobody_left:
            assert ints[home + at.E_KV_FREE] == ints[home + at.E_KV_PAGES]
            assert ints[lane + at.E_RUNNING] == ints[lane + at.E_CONTEXT] == ints[home + at.E_LOAD] == 0
            assert ints[home + at.E_ARRIVING] == 0
            counters = [at.E_PHASES, at.E_LEAVING] if ints[lane + at.E_WINDOW_PAGES] > 0 else [at.E_PHASES]
            for field in counters:
                offset = ints[lane + field]
                assert not any(ints[offset + k] for k in range(ints[lane + at.E_BLOCK_TOKENS]))
            crossing = ints[lane + at.E_CROSSING]
            assert not any(ints[crossing + k] for k in range(ints[lane + at.E_CROSSING_SIZE]))
    if nobody_left:
        assert ints[at.G_WAY_COUNT] == 0
        assert ints[at.G_TRAILING] == -1
    used = sum(ints[ints[slot] + at.W_FLOWS] for slot in range(ints[at.G_WAYS], ints[at.G_WAYS] + ints[at.G_WAY_COUNT]))
    assert (used > 0) == (ints[at.G_WAY_COUNT] > 0)


@pytest.fixture(autouse=True, scope="module")
def conserved() -> Generator[None, None, None]:
    """Check every world that a test's simulations leave behind."""
    read = run_module.read_run

    def checked(world: at.World, *rest: Any) -> Any:
        assert_conserved(world)
        return read(world, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_module, "read_run", checked)
        yield
