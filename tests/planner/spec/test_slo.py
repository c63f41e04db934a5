"""Latency targets as text."""

from __future__ import annotations

import contextlib
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitplan.catalogs.errors import InputError, SplitplanError
from splitplan.planner.spec.slo import Slo, Target, format_slo, parse_slo


def problems_of(text: str) -> list[str]:
    with pytest.raises(InputError) as caught:
        parse_slo(text)
    return [str(problem) for problem in caught.value.problems]


def test_the_example_of_the_documentation() -> None:
    slo = parse_slo("ttft=800ms@p99,tpot=50ms@p99,attain=95%")
    assert slo == Slo(Target(0.8, 99.0), Target(0.05, 99.0), None, None, 0.95)


def test_seconds_spaces_case_and_fractional_percentiles() -> None:
    slo = parse_slo(" TTFT = 1.5 s @ P99.9 , e2e=30s , itl=100MS@p50")
    assert slo.ttft == Target(1.5, 99.9)
    assert slo.e2e == Target(30.0, 90.0)
    assert slo.itl == Target(0.1, 50.0)


def test_a_bare_number_is_milliseconds_and_says_so() -> None:
    slo = parse_slo("ttft=500,tpot=40")
    assert slo.ttft == Target(0.5, 90.0)
    assert slo.notes == ("ttft=500 read as 500 ms", "tpot=40 read as 40 ms")


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("ttft=1s@p99,tpot=40ms@p95", 0.95),
        ("ttft=1s", 0.9),
        ("ttft=1s@p99.9", 0.999),
        ("ttft=1s,attain=0.97", 0.97),
        ("ttft=1s,attain=97", 0.97),
        ("ttft=1s,attain=99.5%", 0.995),
    ],
)
def test_attainment_defaults_to_the_lowest_percentile_named(text: str, share: float) -> None:
    assert parse_slo(text).attainment == share


def test_every_mistake_is_reported_at_once_with_its_position() -> None:
    found = problems_of("tfft=800ms,tpot=-5ms@p99,e2e=3h,itl=20ms@mean,attain=120%,ttft")
    assert len(found) == 6
    assert found[0].startswith("SLO character 1: unknown target 'tfft'")
    assert "did you mean ttft" in found[0]
    assert found[1].startswith("SLO character 17 `tpot`: is -5ms")
    assert found[2].startswith("SLO character 31 `e2e`: unknown unit 'h'; expected ms or s")
    assert found[3].startswith("SLO character 41 `itl`: '@mean' is no percentile")
    assert "p50 for the median" in found[3]
    assert "above 0 % and below 100 %" in found[4]
    assert "has no `=`" in found[5]


@pytest.mark.parametrize(
    "text",
    [
        *("", ",", "ttft=", "ttft=0", "ttft=0ms", "ttft=nan", "ttft=inf", "ttft=1e999s", "ttft=1e-999", "ttft=25h"),
        *("ttft=1s@p0", "ttft=1s@p100", "ttft=1s@p49", "ttft=1s@", "ttft=1s@p99@p98", "ttft=1,ttft=2", "attain=95%"),
        *("ttft=1s,attain=0", "ttft=1s,attain=100%", "ttft=1s,attain=1", "ttft=1s,", "ttft=1 2", "ttft=८ms", "=5ms"),
        *("ttft=1e99999999999999999999", "ttft", "ttft=1s,attain=%"),
    ],
)
def test_nonsense_is_refused(text: str) -> None:
    """Each with at least one problem that says what was expected."""
    assert all("expected" in problem for problem in problems_of(text))


def test_an_e2e_tighter_than_ttft_is_noted() -> None:
    assert parse_slo("ttft=2s,e2e=1s").notes == ("e2e is at least as tight as ttft, so ttft never binds",)


targets = st.builds(Target, st.floats(1e-6, 86_400), st.integers(5000, 9999).map(lambda n: float(f"{n / 100:.2f}")))
optional_targets = st.one_of(st.none(), targets)


@given(targets, optional_targets, optional_targets, optional_targets, st.integers(1, 999).map(lambda n: n / 1000))
def test_formatting_reads_back_to_the_same_targets(
    ttft: Target, tpot: Target | None, e2e: Target | None, itl: Target | None, attainment: float
) -> None:
    slo = Slo(ttft, tpot, e2e, itl, attainment)
    again = parse_slo(format_slo(slo))
    assert again.targets == slo.targets
    assert again.attainment == attainment


@given(st.one_of(st.text(), st.text("tfpoe2il=.,@%smax0123456789 -+E", max_size=40)))
def test_any_text_parses_or_is_refused_politely(text: str) -> None:
    with contextlib.suppress(SplitplanError):
        slo = parse_slo(text)
        assert all(math.isfinite(target.seconds) and target.seconds > 0 for target in slo.targets.values())
