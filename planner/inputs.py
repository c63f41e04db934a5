"""Everything a solve starts from, loaded and checked: model, fleet, workload, targets, engine, profiles.

Names and paths come in, frozen values and their hashes go out. Nothing after this module reads a file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from splitplan.catalogs.engines import Engine, find_engine
from splitplan.catalogs.errors import InputError, Problem, shorten
from splitplan.catalogs.gpus import find_gpu
from splitplan.catalogs.models import Model, find_model
from splitplan.planner.columns.options import BEST_GUESS, MOST_CONFIDENCE, ColumnOptions
from splitplan.planner.latency.calibration import find_overhead
from splitplan.planner.latency.overhead import EngineOverhead
from splitplan.planner.plan import Inputs, Plan
from splitplan.planner.question import Question, options_as_text
from splitplan.planner.spec.fleet import Fleet, load_fleet
from splitplan.planner.spec.held import fleet_left
from splitplan.planner.spec.length_buckets import length_edges, parse_length_buckets
from splitplan.planner.spec.slo import Slo, format_slo, parse_slo
from splitplan.planner.spec.workload import Workload, load_workload
from splitplan.profiler.profile import Profile
from splitplan.profiler.store import find_profile, load_profile


@dataclass(frozen=True, slots=True)
class SolveInputs:
    """The question's answers from catalogs and files."""

    question: Question
    model: Model
    fleet: Fleet
    workload: Workload
    slo: Slo
    engine: Engine
    connector: str
    profiles: Mapping[str, Profile | None]  # by GPU type; None: nothing measured, roofline only
    length_edges: tuple[int, ...] = ()  # input tokens at which length buckets end; (): prompts are not told apart

    @property
    def class_slos(self) -> tuple[Slo, ...]:
        """The targets of each request class: its own, or the question's."""
        return tuple(item.slo or self.slo for item in self.workload.classes)

    @property
    def max_model_len(self) -> int:
        """The longest request of the workload, rounded up to 1,024 tokens, at most the model's own limit."""
        longest = self._longest()
        return min(-(-longest // 1024) * 1024, self.model.max_position_embeddings)

    @property
    def too_long_share(self) -> float:
        """Share of requests that are longer than the model's context: engines refuse them."""
        workload, limit = self.workload, self.model.max_position_embeddings
        if workload.trace is not None:
            return float(np.mean(workload.trace.input_tokens + workload.trace.output_tokens > limit))
        return float(workload.weight[workload.input_tokens + workload.output_tokens > limit].sum())

    def _longest(self) -> int:
        source = self.workload if self.workload.trace is None else self.workload.trace
        return int((source.input_tokens + source.output_tokens).max())

    @property
    def overheads(self) -> dict[str, EngineOverhead]:
        """The engine's calibrated overheads by GPU type."""
        engine = self.engine
        return {gpu: find_overhead(engine.name, engine.version, find_gpu(gpu).architecture) for gpu in self.profiles}

    @property
    def step_factors(self) -> dict[str, float]:
        """What step times are multiplied by at the confidence asked for, by GPU type; 1 for the best guess."""
        confidence = self.question.columns.confidence
        return {gpu: overhead.step_factor(confidence) for gpu, overhead in self.overheads.items()}

    def front_end_s(self, input_tokens: NDArray[np.int64]) -> NDArray[np.float64]:
        """Seconds [n] of each request outside the engine's steps (HTTP, tokenizer); the most of any GPU type here."""
        overheads = self.overheads.values()
        fixed_s = max(overhead.request_s for overhead in overheads)
        return fixed_s + max(overhead.request_token_s for overhead in overheads) * input_tokens.astype(np.float64)

    def recorded(self) -> Inputs:
        """What the plan keeps of its inputs."""
        question = self.question
        return Inputs(
            model=question.model,
            model_hash=self.model.content_hash,
            fleet=question.fleet,
            fleet_hash=self.fleet.content_hash,
            workload=question.workload,
            workload_hash=self.workload.content_hash,
            rate_req_per_s=self.workload.rate_req_per_s,
            slo=format_slo(self.slo),
            profile_hashes={gpu: profile.content_hash if profile else "" for gpu, profile in self.profiles.items()},
            seed=question.seed,
            prefix_hit_ratio=round(self.workload.prefix_hit_ratio, 6),
            options=options_as_text(question),
        )


def load_inputs(question: Question) -> SolveInputs:
    """Load and check everything the question names; raises InputError with all that is wrong in one file or name."""
    slo = parse_slo(question.slo)
    model = find_model(question.model)
    engine = find_engine(question.columns.engine)
    _check_dtypes(question.columns, engine)
    _check_confidence(question.columns.confidence)
    fleet = fleet_left(load_fleet(question.fleet, price_kind=question.price_kind), question.held)
    parse_length_buckets(question.length_buckets)  # a wrong word is said before files are read
    workload = load_workload(question.workload, rate_req_per_s=question.rate_req_per_s)
    loaded = SolveInputs(
        question=question,
        model=model,
        fleet=fleet,
        workload=workload,
        slo=slo,
        engine=engine,
        connector=_connector(engine, question.columns.connector),
        profiles=_profiles(fleet, engine, question.profiles),
        length_edges=length_edges(workload, question.length_buckets),
    )
    _check_lengths(loaded)
    return loaded


def _check_lengths(inputs: SolveInputs) -> None:
    """Refuse a workload of which more is too long for the model than may miss."""
    share, limit = inputs.too_long_share, inputs.model.max_position_embeddings
    if share > 1 - max(slo.attainment for slo in inputs.class_slos):
        raise InputError(
            Problem(
                f"{share:.1%} of the requests of {inputs.workload.name} are longer than {inputs.model.name} can take",
                expected=f"prompt and answer of at most {limit:,} tokens",
                next_step="use a model with a longer context, or a workload of shorter requests",
            )
        )


def changed_inputs(plan: Plan, inputs: SolveInputs) -> list[str]:
    """Names of the inputs whose content differs from what the plan was made from."""
    then, now = plan.inputs, inputs.recorded()
    changed = [name for name in ("model", "fleet", "workload") if _hash(then, name) != _hash(now, name)]
    changed += [
        f"profile of {gpu}" for gpu in then.profile_hashes if then.profile_hashes[gpu] != now.profile_hashes.get(gpu)
    ]
    return changed


def refuse_changes(plan: Plan, inputs: SolveInputs, *, besides: tuple[str, ...] = ()) -> None:
    """Raise InputError if what the plan was made from is no longer what it was."""
    changed = [name for name in changed_inputs(plan, inputs) if name not in besides]
    if changed:
        raise InputError(
            Problem(
                f"changed since the plan was made: {', '.join(changed)}",
                next_step="solve again, so that the plan fits what there is now",
            )
        )


def _hash(inputs: Inputs, name: str) -> str:
    return str(getattr(inputs, f"{name}_hash"))


def _check_dtypes(options: ColumnOptions, engine: Engine) -> None:
    asked = (
        ("weight dtype", options.weight_dtype, engine.weight_dtypes),
        ("KV dtype", options.kv_dtype, engine.kv_dtypes),
    )
    problems = [
        Problem(
            f"{engine.name} {engine.version} runs no {what} '{shorten(dtype)}'", expected=f"one of: {', '.join(known)}"
        )
        for what, dtype, known in asked
        if dtype and dtype not in known
    ]
    if problems:
        raise InputError(problems)


def _check_confidence(percent: float) -> None:
    if not BEST_GUESS <= percent <= MOST_CONFIDENCE:
        expected = f"{BEST_GUESS:g} (the best guess) to {MOST_CONFIDENCE:g} percent"
        raise InputError(Problem(f"a confidence of {percent:g}", key="confidence", expected=expected))


def _connector(engine: Engine, asked: str) -> str:
    if not asked:
        return engine.connectors[0] if engine.connectors else ""
    by_name = {name.casefold(): name for name in engine.connectors}
    if asked.casefold() not in by_name:
        known = ", ".join(engine.connectors) or "none"
        raise InputError(
            Problem(
                f"{engine.name} {engine.version} has no KV connector '{shorten(asked)}'", expected=f"one of: {known}"
            )
        )
    return by_name[asked.casefold()]


def _profiles(fleet: Fleet, engine: Engine, files: Sequence[str]) -> dict[str, Profile | None]:
    """A profile for every GPU type: a file given for it, else the shipped one of the engine, else none."""
    given = {profile.gpu: profile for profile in (load_profile(path) for path in files)}
    unused = sorted(set(given) - set(fleet.num_gpus))
    if unused:
        raise InputError(
            Problem(
                f"profile given for {', '.join(unused)}, which fleet {fleet.name} does not have",
                expected=f"a profile of {', '.join(fleet.num_gpus)}",
            )
        )
    return {gpu: given.get(gpu) or _shipped(gpu, engine.name) for gpu in fleet.num_gpus}


def _shipped(gpu: str, engine: str) -> Profile | None:
    kernels = engine.removeprefix("dynamo-")
    try:
        return find_profile(gpu, kernels)
    except InputError:
        return None
