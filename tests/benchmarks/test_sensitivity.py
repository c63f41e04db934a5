"""The sensitivity benchmark on a small question."""

from __future__ import annotations

from benchmarks.sensitivity.__main__ import lines
from splitplan.planner.judge.verify import Effort

QUICK = Effort(screen_requests=400, verify_requests=1000, num_seeds=1, max_attempts=6, max_probes=1, form="python")


def test_slower_steps_miss_more_and_care_costs_money() -> None:
    """Attainment falls with the factor, on the same requests; the careful plan is no cheaper and no worse."""
    question = ("llama-3.1-8b", "all-h100", "fixed:1024/128", "ttft=1s@p90,tpot=20ms@p90", 60.0)
    guess, careful = lines([question], (50.0, 95.0), (0.7, 1.0, 1.6), effort=QUICK, num_requests=1000, num_seeds=1)
    for line in (guess, careful):
        shares = list(line.attainment.values())
        assert shares == sorted(shares, reverse=True)
    assert careful.factor > guess.factor == 1.0
    assert careful.usd_per_hour >= guess.usd_per_hour
    assert all(careful.attainment[key] >= guess.attainment[key] for key in guess.attainment)
    assert guess.attainment["1.6"] < guess.wanted <= guess.attainment["1"]
