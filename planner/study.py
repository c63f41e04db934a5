"""A study: everything of a question before its first program is solved, and the program itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from splitplan.catalogs.connector_rules import connector_problems
from splitplan.catalogs.engines import EngineSide
from splitplan.catalogs.errors import NoPlanError, Problem, UsageError, nearest_names, shorten
from splitplan.planner.classes import ProgramClass, Run, columns_of_runs, program_classes, runs, whole_mix
from splitplan.planner.columns.build import ColumnSet, build_columns
from splitplan.planner.columns.cache import cached_columns
from splitplan.planner.columns.column import Column
from splitplan.planner.columns.hosts import host_kinds, rack_mixes
from splitplan.planner.columns.mix import RequestMix
from splitplan.planner.columns.steps import StepLibrary
from splitplan.planner.inputs import SolveInputs, load_inputs, refuse_changes
from splitplan.planner.judge.corrections import Corrections
from splitplan.planner.plan import Plan
from splitplan.planner.program.types import ProgramInput, ProgramOptions
from splitplan.planner.question import question_of


@dataclass(frozen=True, slots=True)
class Study:
    """Everything before the first program is solved."""

    inputs: SolveInputs
    mix: RequestMix
    columns: ColumnSet
    problem: ProgramInput
    together: ProgramInput | None = None  # where lengths are told apart: the same question as if they were not


def rebuild(plan: Plan) -> tuple[Study, ProgramInput]:
    """The study and the program that a saved plan is the answer to, corrections included.

    Raises InputError when the model, the fleet, the workload or a profile has changed since.
    """
    inputs = load_inputs(question_of(plan))
    refuse_changes(plan, inputs)
    study = prepare(inputs)
    return study, replace(study.problem, columns=Corrections(dict(plan.corrections)).apply(study.problem.columns))


def prepare(inputs: SolveInputs) -> Study:
    """Columns and program of a question. Raises NoPlanError when nothing could serve even one request in time."""
    mix = whole_mix(inputs)
    hosts, mixes = host_kinds(inputs.fleet), rack_mixes(inputs.fleet)
    library = StepLibrary(inputs.model, inputs.engine, inputs.profiles, inputs.step_factors)
    options = replace(inputs.question.columns, connector=inputs.connector)

    def build(run: Run) -> ColumnSet:
        return cached_columns(
            _cache_key(inputs, run),
            lambda: build_columns(inputs.model, inputs.engine, hosts, run.demand, options, library, mixes),
        )

    parts = [(run, build(run)) for run in runs(inputs, mix)]
    classes = program_classes(inputs, mix)
    columns = columns_of_runs(parts, classes)
    problem = _program(inputs, classes, columns.columns)
    study = Study(inputs, mix, columns, problem, _together(inputs, mix, parts[:1]) if inputs.length_edges else None)
    _check_columns(study)
    return study


def _together(inputs: SolveInputs, mix: RequestMix, everything: Sequence[tuple[Run, ColumnSet]]) -> ProgramInput:
    """The program of the same question without length buckets, from the columns for all prompts."""
    plain = replace(inputs, length_edges=())
    classes = program_classes(plain, mix)
    return _program(plain, classes, columns_of_runs(everything, classes).columns)


def _cache_key(inputs: SolveInputs, run: Run) -> object:
    """Everything the columns of one run depend on, by content."""
    recorded = inputs.recorded()
    ignored = {
        "fleet": "",
        "workload": "",
        "model": "",
        "options": {},
    }  # names and paths: the hashes say what they hold
    options = inputs.question.columns
    return inputs.engine, inputs.connector, inputs.class_slos, options, recorded.model_copy(update=ignored), run.prompts


def _program(inputs: SolveInputs, classes: tuple[ProgramClass, ...], columns: list[Column]) -> ProgramInput:
    kv_dtypes = {column.kv_dtype for column in columns}
    shares, tokens = np.array([item.share for item in classes]), np.array([item.new_tokens for item in classes])
    return ProgramInput(
        fleet=inputs.fleet,
        columns=tuple(columns),
        class_names=tuple(item.name for item in classes),
        rate_req_per_s=inputs.workload.rate_req_per_s * shares,
        kv_bytes_per_request={dtype: tokens * inputs.model.kv_bytes_per_token(dtype) for dtype in kv_dtypes},
        pairs_allowed=_pair_rule(inputs),
        options=replace(_options(inputs), class_weights=_class_weights(inputs)),
        held=inputs.question.held,
    )


def _options(inputs: SolveInputs) -> ProgramOptions:
    """The question's wishes; where the fleet caps what is to be had at the asked price, the program keeps to it."""
    options, kind = inputs.question.program, inputs.question.price_kind
    if inputs.length_edges:
        options = replace(options, class_groups=True)
    capped = any(tier.kind == kind and tier.max_gpus is not None for tier in inputs.fleet.price_tiers)
    return replace(options, price_kinds=(kind,)) if capped and not options.price_kinds else options


def _class_weights(inputs: SolveInputs) -> tuple[float, ...] | None:
    """Worth of one request of each class, 1 where the question says nothing; None where it says nothing at all."""
    given = dict(inputs.question.class_weights)
    if not given:
        return None
    if inputs.question.program.objective != "goodput":
        raise UsageError(Problem("class weights say what goodput is worth", next_step="add --objective goodput"))
    if inputs.length_edges:
        raise UsageError("class weights and length buckets cannot be combined: buckets are classes of their own")
    names = [item.name for item in inputs.workload.classes]
    for name in given:
        if name not in names:
            near = nearest_names(name, names)
            hint = f"did you mean {' or '.join(near)}?" if near else ""
            message = f"workload {inputs.workload.name} has no class '{shorten(name)}'"
            raise UsageError(Problem(message, expected=f"one of: {', '.join(names)}", next_step=hint))
    return tuple(given.get(name, 1.0) for name in names)


def _pair_rule(inputs: SolveInputs) -> Callable[[Column, Column], bool]:
    """Whether the engine's connector hands KV from one column to the other."""

    @cache
    def allowed(prefill: EngineSide, decode: EngineSide) -> bool:
        return not connector_problems(inputs.engine, inputs.connector, inputs.model, prefill, decode)

    def side(column: Column) -> EngineSide:
        return EngineSide(
            model=inputs.model.name,
            gpu=column.gpu_types[0],
            tensor_parallel=column.tensor_parallel,
            pipeline_parallel=column.pipeline_parallel,
            weight_dtype=column.weight_dtype,
            kv_dtype=column.kv_dtype,
            block_tokens=column.block_tokens,
            attention_backend=column.attention_backend,
            engine_version=inputs.engine.version,
            stage_layers=tuple(stage.layers for stage in column.stages),
        )

    return lambda prefill, decode: bool(inputs.connector) and allowed(side(prefill), side(decode))


def _check_columns(study: Study) -> None:
    """Say now what no number of instances could mend."""
    roles = {column.role for column in study.columns.columns}
    if "colocated" in roles or {"prefill", "decode"} <= roles:
        return
    rejections, inputs = study.columns.rejections, study.inputs
    problems = [
        Problem(f"{count} kinds of instance rejected: {reason}")
        for reason, count in sorted(rejections.counts.items(), key=lambda item: -item[1])
        if reason != "another batch is better"
    ]
    head = Problem(
        f"no instance of {inputs.model.name} on {', '.join(inputs.fleet.num_gpus)} can serve this workload in time",
        next_step=_way_out(rejections.counts),
    )
    raise NoPlanError([head, *problems, *(Problem(note) for note in inputs.slo.notes)])


def _way_out(counts: dict[str, int]) -> str:
    if counts.get("TTFT of one request alone"):
        return "a lone request already misses TTFT, so more instances cannot help: relax ttft or add faster GPUs"
    if counts.get("TPOT of one request alone") or counts.get("TPOT"):
        return "a lone request already misses TPOT: relax tpot or add GPUs with more memory bandwidth"
    if counts.get("weights do not fit") or counts.get("KV does not fit"):
        return "use a smaller weight dtype (--weight-dtype fp8), or GPUs or nodes with more memory"
    return "see the reasons below"
