"""The plan moves the right way when the question does: on shipped profiles, judged by the simulator."""

from __future__ import annotations

from splitplan.planner.judge.verify import Effort
from splitplan.planner.plan import Plan
from splitplan.planner.program.types import Mode, ProgramOptions
from splitplan.planner.question import Question
from splitplan.planner.solve import solve

EFFORT = Effort(
    screen_requests=600,
    verify_requests=1_000,
    num_seeds=2,
    max_attempts=8,
    max_probes=2,
    rate_probes=3,
    form="python",
)


def plan(
    workload: str,
    rate: float,
    *,
    mode: Mode = "auto",
    fleet: str = "all-h100",
    slo: str = "ttft=1s@p95,tpot=40ms@p95",
    model: str = "llama-3.1-8b",
) -> Plan:
    return solve(Question(model, fleet, workload, slo, rate, ProgramOptions(mode=mode, max_kinds=1)), effort=EFFORT)


def gpus(plan: Plan, role: str) -> int:
    return sum(len(pool.instances) * pool.gpus_per_instance for pool in plan.pools if pool.role == role)


def busy(plan: Plan, role: str) -> float:
    """GPUs of a role, counted by their planned utilisation: what the load needs, whatever whole numbers made of it."""
    return sum(
        len(pool.instances) * pool.gpus_per_instance * pool.utilisation for pool in plan.pools if pool.role == role
    )


def test_longer_prompts_shift_gpus_to_prefill() -> None:
    """Four times the prompt: more prefill, and more of it per decode (whose contexts have grown as well)."""
    short, long = (plan(f"fixed:{tokens}/200", 40.0, mode="disagg") for tokens in (1024, 4096))
    assert gpus(long, "prefill") > gpus(short, "prefill")
    assert busy(long, "prefill") / busy(long, "decode") > 1.2 * busy(short, "prefill") / busy(short, "decode")


def test_longer_outputs_shift_gpus_to_decode() -> None:
    """Sixteen times the output needs more decode and no more prefill."""
    short, long = (plan(f"fixed:2048/{tokens}", 40.0, mode="disagg") for tokens in (50, 800))
    assert gpus(long, "decode") > gpus(short, "decode")
    assert gpus(long, "prefill") == gpus(short, "prefill")


def test_colocated_wins_for_short_prompts_and_few_gpus() -> None:
    """Where one GPU carries everything, splitting would take two."""
    for workload, rate in (("fixed:128/200", 40.0), ("fixed:1024/200", 2.0)):
        chosen = plan(workload, rate)
        assert {pool.role for pool in chosen.pools} == {"colocated"}
        assert chosen.num_gpus == 1


def test_splitting_wins_for_long_prompts_under_a_tight_tpot() -> None:
    """A long prefill between the tokens of others breaks TPOT; a pool of its own does not."""
    chosen = plan("fixed:8192/200", 20.0, slo="ttft=2s@p95,tpot=20ms@p95")
    assert {pool.role for pool in chosen.pools} == {"prefill", "decode"}
    colocated = [item for item in chosen.alternatives if "colocated" in item.label and item.pools]
    assert colocated
    assert colocated[0].usd_per_hour > chosen.usd_per_hour


def test_slow_links_take_the_gain_away() -> None:
    """The same GPUs behind one 25 Gbit/s port each: splitting costs more than over InfiniBand, and colocated wins."""

    def cost(fleet: str, mode: Mode) -> float:
        slo = "ttft=2s@p95,tpot=40ms@p95"
        return plan("fixed:4096/300", 1.0, mode=mode, fleet=fleet, slo=slo, model="llama-3.1-70b").usd_per_hour

    slow = cost("ethernet-25g", "disagg")
    assert slow > 1.2 * cost("h100-a100", "disagg")
    assert cost("ethernet-25g", "colocated") < slow
