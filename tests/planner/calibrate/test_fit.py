"""Fitting: known overheads are found again, the prior holds where data is silent, and held out means held out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from splitplan.catalogs.errors import InputError
from splitplan.planner.calibrate.fit import COMPUTE, GAP, RANK_GAP, SEQUENCE_GAP, Case, fit, linearise, solve
from splitplan.planner.calibrate.points import Latency, read_points
from splitplan.planner.calibrate.predict import predict
from splitplan.planner.calibrate.resolve import resolve
from splitplan.planner.calibrate.run import calibrate, fit_all, held_out_overhead, thinned, write_entries
from splitplan.planner.latency.calibration import load_calibration
from splitplan.planner.latency.overhead import EngineOverhead
from tests.planner.calibrate.rows import PUBLISHED, one_row

TRUE = EngineOverhead(gap_s=2.5e-3, rank_gap_s=7e-4, sequence_gap_s=6e-5, compute_scale=1.12)
PRIOR = EngineOverhead(gap_s=1e-3, rank_gap_s=2e-4, sequence_gap_s=2e-5)
KNOBS = (GAP, RANK_GAP, SEQUENCE_GAP, COMPUTE)


def synthetic_cases(
    tmp_path: Path, source: str = "one", overhead: EngineOverhead = TRUE, ranks: tuple[int, ...] = (1, 4)
) -> list[Case]:
    """Static batches on H100 whose figures are predictions with a known overhead."""
    cases = []
    for tp in ranks:
        for batch in (1, 16, 64):
            for isl in (128, 2048):
                path = tmp_path / "row.csv"
                path.write_text(one_row(tp=tp, batch_or_concurrency=batch, isl=isl, osl=32, source_group=source))
                point = read_points(path)[0]
                setup = resolve(point)
                found = predict(point, setup, overhead)
                ttft, tpot = Latency(mean_s=found.ttft.mean_s), Latency(mean_s=found.tpot.mean_s)
                cases.append((replace(point, ttft=ttft, tpot=tpot), setup))
    return cases


def test_known_overheads_are_found_again(tmp_path: Path) -> None:
    """With priors ten times looser than the shipped ones, so that two dozen rows decide."""
    loose = [replace(knob, sigma=10 * knob.sigma) for knob in KNOBS]
    found, _ = fit(synthetic_cases(tmp_path), PRIOR, loose)
    assert found.gap_s == pytest.approx(TRUE.gap_s, rel=0.1)
    assert found.rank_gap_s == pytest.approx(TRUE.rank_gap_s, rel=0.2)
    assert found.sequence_gap_s == pytest.approx(TRUE.sequence_gap_s, rel=0.1)
    assert found.compute_scale == pytest.approx(TRUE.compute_scale, rel=0.03)


def test_what_no_row_can_tell_stays_at_the_prior(tmp_path: Path) -> None:
    """Single-GPU rows of one batch say nothing of what a doubling of ranks costs."""
    cases = [case for case in synthetic_cases(tmp_path) if case[0].tp == 1]
    found, _ = fit(cases, PRIOR, KNOBS)
    assert found.rank_gap_s == pytest.approx(PRIOR.rank_gap_s)


def test_a_left_out_source_has_no_say(tmp_path: Path) -> None:
    """Whatever the left-out rows measured, the fit without them is the same to the last bit."""
    knobs = (GAP, SEQUENCE_GAP)
    good = synthetic_cases(tmp_path, "good", ranks=(1,))
    odd = synthetic_cases(tmp_path, "odd", replace(TRUE, gap_s=8e-3), ranks=(1,))
    strange = synthetic_cases(tmp_path, "odd", replace(TRUE, gap_s=0.0, compute_scale=1.4), ranks=(1,))
    first, second = (linearise([*good, *cases], PRIOR, knobs) for cases in (odd, strange))
    assert solve(first, knobs, PRIOR, without="odd") == solve(second, knobs, PRIOR, without="odd")
    assert solve(first, knobs, PRIOR) != solve(second, knobs, PRIOR)


def test_one_odd_source_does_not_pull_the_fit_away(tmp_path: Path) -> None:
    """Absolute errors: two sources that agree outweigh one that does not."""
    agreeing = [*synthetic_cases(tmp_path, "a", ranks=(1,)), *synthetic_cases(tmp_path, "b", ranks=(1,))]
    odd = synthetic_cases(tmp_path, "c", replace(TRUE, gap_s=9e-3), ranks=(1,))
    found, _ = fit([*agreeing, *odd], PRIOR, (GAP, SEQUENCE_GAP))
    assert found.gap_s == pytest.approx(TRUE.gap_s, rel=0.3)


def test_thinning_keeps_small_sources() -> None:
    point = read_points(PUBLISHED)[0]
    setup = resolve(point)
    many = [(replace(point, id=f"m{i}", source_group="many"), setup) for i in range(400)]
    few = [(replace(point, id=f"f{i}", source_group="few"), setup) for i in range(10)]
    kept = thinned([*many, *few])
    assert len(kept) <= 130
    assert sum(case[0].source_group == "few" for case in kept) >= 8


def test_held_out_parameters_come_from_the_other_sources() -> None:
    cases = [(point, resolve(point)) for point in read_points(PUBLISHED)]
    fitted = fit_all(cases)
    overhead_of = held_out_overhead(fitted)
    argonne = next(case for case in cases if case[0].id == "argonne-1")
    own = next(one for one in fitted if one.generation.key == "vllm-v0" and one.gpu_family == "Hopper")
    assert overhead_of(*argonne) == own.without["argonne"]
    assert own.without["argonne"] != own.overhead


def test_a_calibration_is_written_whole_and_read_back(tmp_path: Path) -> None:
    path = tmp_path / "calibration.yaml"
    entries = calibrate(read_points(PUBLISHED), "planner calibrate published.csv")
    write_entries(entries, path)
    assert load_calibration(path) == tuple(entries)
    assert {entry.engine for entry in entries} == {"vllm", "trtllm", "lmdeploy", "sglang"}
    assert all(np.isfinite(list(entry.parameters.values())).all() for entry in entries)
    assert yaml.safe_load(path.read_text())["entries"][0]["fitted_on"]["command"] == "planner calibrate published.csv"


def test_nothing_to_fit_is_an_error_with_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "row.csv"
    path.write_text(one_row(gpu="Abacus 9000"))
    with pytest.raises(InputError, match="Abacus 9000"):
        calibrate(read_points(path), "")


def test_a_folder_that_is_not_there_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot write"):
        write_entries([], tmp_path / "nowhere" / "calibration.yaml")
