"""Calibration files: what ships, what is looked up for whom, what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from splitplan.catalogs.errors import DocumentError
from splitplan.planner.latency.calibration import (
    PARAMETERS,
    Entry,
    FittedOn,
    find_overhead,
    load_calibration,
    shipped_entries,
    version_key,
)

GOOD = """
kind: Calibration
version: 1
entries:
- engine: vllm
  from_version: "0.8"
  gpu_family: Hopper
  parameters: {gap_us: 900}
  fitted_on: {points: 3, sources: [mine]}
"""


def entry(engine: str, version: str, family: str, gap_us: float) -> Entry:
    return Entry(
        engine=engine,
        from_version=version,
        gpu_family=family,
        parameters={"gap_us": gap_us},
        fitted_on=FittedOn(points=1, sources=("test",)),
    )


def test_shipped_entries_state_every_parameter_and_their_data() -> None:
    for shipped in shipped_entries():
        assert set(shipped.parameters) == {parameter.name for parameter in PARAMETERS}
        assert shipped.fitted_on.points > 0
        assert shipped.fitted_on.sources
        assert shipped.fitted_on.command.startswith("planner calibrate")
    covered = {(shipped.engine, shipped.gpu_family) for shipped in shipped_entries()}
    assert {("vllm", "Hopper"), ("vllm", "Ampere"), ("sglang", "Hopper"), ("trtllm", "Hopper")} <= covered


def test_the_newest_generation_not_above_the_version_applies() -> None:
    entries = (entry("vllm", "0.2", "Hopper", 100), entry("vllm", "0.8", "Hopper", 200))
    assert find_overhead("vllm", "0.6.3", "Hopper", entries).gap_s == pytest.approx(100e-6)
    assert find_overhead("vllm", "0.24.0", "Hopper", entries).gap_s == pytest.approx(200e-6)
    assert find_overhead("vllm", "", "Hopper", entries).gap_s == pytest.approx(200e-6)
    assert find_overhead("vllm", "0.1", "Hopper", entries).gap_s == pytest.approx(100e-6)


def test_an_uncalibrated_pair_takes_the_nearest_relative() -> None:
    """Same engine on another family, then vLLM on the same family, then vLLM."""
    entries = (entry("vllm", "0", "Hopper", 1), entry("vllm", "0", "Ampere", 2), entry("sglang", "0", "Ampere", 3))
    assert find_overhead("sglang", "0.5", "Hopper", entries).gap_s == pytest.approx(3e-6)
    assert find_overhead("mystery", "1", "Ampere", entries).gap_s == pytest.approx(2e-6)
    assert find_overhead("mystery", "1", "CDNA 3", entries).gap_s == pytest.approx(1e-6)
    assert find_overhead("dynamo-vllm", "1.6", "Ampere", entries).gap_s == pytest.approx(2e-6)


def test_versions_order_by_number() -> None:
    assert version_key("0.10.2") > version_key("0.9.1.post2")
    assert version_key("") == ()


def test_a_good_file_loads(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(GOOD)
    assert load_calibration(path)[0].overhead().gap_s == pytest.approx(900e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("gap_us: 900", "gap_us: -1"), "outside 0 to"),
        (("gap_us: 900", "gip_us: 900"), "unknown parameter `gip_us`"),
        (("kind: Calibration", "kind: Fleet"), "kind"),
        (("engine: vllm", "engin: vllm"), "engin"),
        (("entries:", "entries: []\nother:"), "entries"),
    ],
)
def test_a_bad_file_says_where(tmp_path: Path, change: tuple[str, str], message: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(GOOD.replace(*change))
    with pytest.raises(DocumentError) as caught:
        load_calibration(path)
    assert any(message in str(problem) for problem in caught.value.problems)
    assert all("mine.yaml:" in str(problem) for problem in caught.value.problems)
