"""What a load test says: percentiles of TTFT, TPOT, ITL and E2E beside what the plan predicted."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from splitplan.catalogs.errors import LaunchError, Problem, UsageError, shorten
from splitplan.launcher.expected import expected_ms
from splitplan.launcher.guidellm import replay_with_guidellm
from splitplan.launcher.lifecycle import reached
from splitplan.launcher.loadtest import Served, replay
from splitplan.launcher.state import require_state
from splitplan.planner.plan import Plan, load_plan
from splitplan.planner.spec.length_buckets import PromptRange
from splitplan.planner.spec.slo import Slo, parse_slo
from splitplan.planner.spec.workload import Requests, load_workload, sample

CLIENTS = ("own", "guidellm")
STATISTICS = ("mean", "p50", "p90", "p95", "p99")
METRICS = ("ttft", "tpot", "itl", "e2e")
TPOT_DEFINITION = "TPOT = (E2E - TTFT) / (output tokens - 1)"
CSV_COLUMNS = (
    *("id", "source", "gpu", "num_gpus", "engine", "engine_version", "mode", "model", "dtype", "kv_dtype", "tp", "pp"),
    *("isl", "osl", "request_rate", "ttft_ms_mean", "ttft_ms_p50", "ttft_ms_p99"),
    *("tpot_ms_mean", "tpot_ms_p50", "tpot_ms_p99", "output_tok_s", "req_s", "notes", "replicas"),
)
"""What `planner calibrate` reads."""


@dataclass(frozen=True, slots=True)
class BenchReport:
    """A load test. Latencies in ms, by metric and statistic."""

    num_requests: int
    num_failed: int
    errors: tuple[str, ...]  # distinct, at most five
    offered_req_per_s: float
    duration_s: float
    output_tokens_per_s: float
    max_lag_ms: float  # how late the client itself was, at worst
    measured_ms: Mapping[str, Mapping[str, float]]
    attainment: float | None  # share of requests that met all targets; failed ones did not
    mean_input_tokens: float
    mean_output_tokens: float
    planned_ms: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    planned_attainment: float | None = None
    simulated_ms: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # of these very requests; {}: unknown


def bench(
    where: str,
    *,
    workload: str = "",
    rate_req_per_s: float | None = None,
    duration_s: float = 30.0,
    model: str = "",
    slo: str = "",
    seed: int = 0,
    client: str = "own",
    tokenizer: str = "",
    progress: Callable[[int], None] = lambda _: None,
) -> BenchReport:
    """Replay a workload against a running plan (path of its file) or an endpoint (URL).

    A plan brings its own workload, rate and targets; for a URL they must be given. `client` is one of CLIENTS. Raises
    UsageError or LaunchError.
    """
    if client not in CLIENTS:
        raise UsageError(Problem(f"unknown client {shorten(client)!r}", expected=", ".join(CLIENTS)))
    plan = None if where.startswith("http://") else load_plan(where)
    if plan is not None:
        model = model or require_state(where).model
        workload, slo = workload or plan.inputs.workload, slo or plan.inputs.slo
        rate_req_per_s = rate_req_per_s or plan.inputs.rate_req_per_s
    if not workload or not model:
        raise UsageError(Problem("an endpoint needs --workload and --model", next_step="planner bench --help"))
    source = load_workload(_beside(workload, where), rate_req_per_s=rate_req_per_s)
    requests = sample(source, max(1, round(source.rate_req_per_s * duration_s)), seed)
    with nullcontext(where) if plan is None else _front_door(where) as url:
        if client == "own":
            served = replay(url, model, requests, seed=seed, progress=progress)
        else:
            served = replay_with_guidellm(_only(url, requests), model, requests, tokenizer=tokenizer)
    report = summarise(served, requests, parse_slo(slo) if slo else None, plan)
    if plan is None:
        return report
    running = {process.instance for process in require_state(where).processes if process.instance}
    return replace(report, simulated_ms=expected_ms(plan, requests, running))


def _only(door: str | Callable[[int], str], requests: Requests) -> str:
    """The one endpoint that takes all of these prompts; a public load generator knows no other."""
    if isinstance(door, str):
        return door
    doors = {door(int(tokens)) for tokens in requests.input_tokens}
    if len(doors) > 1:
        what = "prompts of different lengths go to different endpoints here"
        raise UsageError(Problem(what, expected="one endpoint", next_step="planner bench PLAN --client own"))
    return doors.pop()


@contextmanager
def _front_door(plan_path: str) -> Iterator[Callable[[int], str]]:
    """The endpoint of a launched plan for a prompt of so many tokens, as this machine reaches it."""
    with reached(plan_path) as state:
        bounds = state.extra.get("prompts") or [(0, 0)]
        doors = [(PromptRange(*prompts), url) for prompts, url in zip(bounds, state.endpoints, strict=False)]
        yield lambda tokens: next(url for prompts, url in doors if prompts.holds(np.array(tokens)))


def summarise(served: Sequence[Served], requests: Requests, slo: Slo | None, plan: Plan | None = None) -> BenchReport:
    """Percentiles and attainment; LaunchError when nothing at all was served."""
    good = [each for each in served if not each.error]
    errors = tuple(dict.fromkeys(each.error for each in served if each.error))[:5]
    if not good:
        raise LaunchError([Problem(f"all {len(served)} requests failed: {error}") for error in errors])
    end_s = max(each.due_s + each.e2e_s for each in good)
    verification = plan.verification if plan else None
    return BenchReport(
        num_requests=len(served),
        num_failed=len(served) - len(good),
        errors=errors,
        offered_req_per_s=_offered(requests),
        duration_s=end_s,
        output_tokens_per_s=sum(each.output_tokens for each in good) / end_s,
        max_lag_ms=1e3 * max(each.lag_s for each in served),
        measured_ms=_measured(good),
        attainment=sum(_met(each, slo) for each in good) / len(served) if slo else None,
        mean_input_tokens=float(np.mean([each.input_tokens for each in served])),
        mean_output_tokens=float(np.mean([each.output_tokens for each in good])),
        planned_ms=_planned(plan),
        planned_attainment=verification.attainment.value if verification else None,
    )


def rows(report: BenchReport) -> list[tuple[str, str, str, str]]:
    """(latency, planned, simulated, served) for a table: TTFT, TPOT, ITL and E2E at mean, p50, p90 and p99."""
    table = []
    for metric in METRICS:
        for statistic in ("mean", "p50", "p90", "p99"):
            served = report.measured_ms.get(metric, {}).get(statistic)
            planned = report.planned_ms.get(metric, {}).get(statistic)
            simulated = report.simulated_ms.get(metric, {}).get(statistic)
            if served is not None:
                table.append((f"{metric.upper()} {statistic}", _ms(planned), _ms(simulated), _ms(served)))
    if report.attainment is not None:
        planned = report.planned_attainment
        table.append(("all targets met", "" if planned is None else f"{planned:.1%}", "", f"{report.attainment:.1%}"))
    return table


def measurement_csv(report: BenchReport, plan: Plan, *, engine: str) -> str:
    """One row that `planner calibrate` accepts. Only a plan of one colocated pool is one point of that table."""
    if len(plan.pools) != 1 or plan.pools[0].role != "colocated":
        raise UsageError(
            Problem(
                "a measurement file describes one kind of colocated instance; this plan has several kinds",
                next_step="bench a colocated plan, or use --json",
            )
        )
    pool = plan.pools[0]
    name, _, version = engine.partition("@")
    values: dict[str, object] = {
        "id": f"bench-{plan.inputs.model}",
        "source": "planner bench",
        "gpu": pool.gpu,
        "num_gpus": plan.num_gpus,
        "engine": name,
        "engine_version": version,
        "mode": "online-rate",
        "model": plan.inputs.model,
        "dtype": pool.weight_dtype,
        "kv_dtype": pool.kv_dtype,
        "tp": pool.tensor_parallel,
        "pp": pool.pipeline_parallel,
        "isl": f"{report.mean_input_tokens:.1f}",
        "osl": f"{report.mean_output_tokens:.1f}",
        "request_rate": f"{report.offered_req_per_s:.6g}",
        "output_tok_s": f"{report.output_tokens_per_s:.6g}",
        "req_s": f"{(report.num_requests - report.num_failed) / report.duration_s:.6g}",
        "notes": f"{report.num_requests} requests, {report.num_failed} failed",
        "replicas": len(pool.instances),
    }
    for metric in ("ttft", "tpot"):
        for statistic in ("mean", "p50", "p99"):
            values[f"{metric}_ms_{statistic}"] = f"{report.measured_ms[metric][statistic]:.6g}"
    text = io.StringIO()
    writer = csv.DictWriter(text, CSV_COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerow(values)
    return text.getvalue()


def _measured(good: Sequence[Served]) -> dict[str, dict[str, float]]:
    samples = {
        "ttft": [each.ttft_s for each in good],
        "tpot": [value for each in good if (value := each.tpot_s) is not None],
        "itl": [gap for each in good for gap in each.gaps_s],
        "e2e": [each.e2e_s for each in good],
    }
    return {name: _statistics(values) for name, values in samples.items() if values}


def _statistics(seconds: Sequence[float]) -> dict[str, float]:
    values = 1e3 * np.asarray(seconds)
    percentiles = {f"p{p}": float(np.percentile(values, p)) for p in (50, 90, 95, 99)}
    return {"mean": float(np.mean(values)), **percentiles}


def _planned(plan: Plan | None) -> dict[str, dict[str, float]]:
    if plan is None or plan.verification is None:
        return {}
    verdict = plan.verification
    found = {"ttft": verdict.ttft_ms, "tpot": verdict.tpot_ms, "itl": verdict.itl_ms, "e2e": verdict.e2e_ms}
    return {name: {key: estimate.value for key, estimate in values.items()} for name, values in found.items()}


def _met(each: Served, slo: Slo) -> bool:
    """Whether a request met every target."""
    own_gap_s = None
    if slo.itl and each.gaps_s:  # so many of the request's own gaps as the percentile says are within the target
        own_gap_s = float(np.percentile(each.gaps_s, slo.itl.percentile, method="inverted_cdf"))
    measured = {"ttft": each.ttft_s, "tpot": each.tpot_s, "e2e": each.e2e_s, "itl": own_gap_s}
    targets = {"ttft": slo.ttft, "tpot": slo.tpot, "e2e": slo.e2e, "itl": slo.itl}
    return all(
        target is None or (value := measured[name]) is None or value <= target.seconds
        for name, target in targets.items()
    )


def _offered(requests: Requests) -> float:
    span_s = float(requests.arrival_s[-1] - requests.arrival_s[0]) if len(requests) > 1 else 0.0
    return (len(requests) - 1) / span_s if span_s > 0 else 0.0


def _beside(workload: str, plan_path: str) -> str:
    """A workload file named in a plan lies beside it, wherever the command runs."""
    beside = Path(plan_path).parent / workload
    return str(beside) if not plan_path.startswith("http://") and beside.is_file() else workload


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:,.1f} ms"
