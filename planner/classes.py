"""The classes of the program: the workload's own, each cut into length buckets where prompts are told apart.

Columns are worked out for every run of neighbouring buckets, on the requests of that run alone: arrivals as a router
hands them on, lengths, and the longest request it has to hold. The share of requests that may miss is that of the
workload as a whole: a run may miss targets as often, of all requests, as its share of the work allows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from splitplan.planner.columns.build import ColumnSet, Demand
from splitplan.planner.columns.column import Column
from splitplan.planner.columns.mix import RequestMix, miss_share, request_mix
from splitplan.planner.inputs import SolveInputs
from splitplan.planner.spec.length_buckets import PromptRange, buckets, new_tokens, runs_of_buckets, work_shares
from splitplan.planner.spec.workload import Requests, Workload, sample

FloatArray = NDArray[np.float64]

MIX_SAMPLE = 4096
MOST_MISSED = 0.5
"""Of one run: more than half of its requests late is no service, whatever the others make up for."""
MOST_SAMPLED = 16 * MIX_SAMPLE
"""Requests drawn to find MIX_SAMPLE of a rare bucket."""


@dataclass(frozen=True, slots=True)
class ProgramClass:
    """One class of the program: requests of one class of the workload with prompts of one range."""

    name: str
    of_class: int  # index among the workload's classes
    prompts: PromptRange
    share: float  # of all requests
    new_tokens: float  # mean of prompt tokens to compute and send


@dataclass(frozen=True, slots=True)
class Run:
    """What columns for one run of neighbouring buckets are worked out from."""

    prompts: PromptRange
    mix: RequestMix
    demand: Demand
    share: float  # of all requests


def program_classes(inputs: SolveInputs, mix: RequestMix) -> tuple[ProgramClass, ...]:
    """The workload's classes, or class by class their buckets, those without requests left out."""
    workload = inputs.workload
    shares = np.bincount(workload.class_index, workload.weight, len(workload.classes))
    if not inputs.length_edges:
        means = mix.class_means(mix.new_tokens)
        return tuple(
            ProgramClass(item.name, number, PromptRange(), float(shares[number]), float(means[number]))
            for number, item in enumerate(workload.classes)
        )
    found = []
    for number, item in enumerate(workload.classes):
        for prompts in buckets(inputs.length_edges):
            rows = (workload.class_index == number) & prompts.holds(workload.input_tokens)
            share = float(workload.weight[rows].sum())
            if share > 0:
                name = f"{item.name}, {prompts}" if len(workload.classes) > 1 else str(prompts)
                tokens = float(np.average(new_tokens(workload)[rows], weights=workload.weight[rows]))
                found.append(ProgramClass(name, number, prompts, share, tokens))
    return tuple(found)


def whole_mix(inputs: SolveInputs) -> RequestMix:
    """The mix of all requests."""
    requests = sample(inputs.workload, MIX_SAMPLE, inputs.question.seed)
    return _mix(inputs, requests, inputs.max_model_len)


def _mix(inputs: SolveInputs, requests: Requests, max_model_len: int) -> RequestMix:
    front_end_s = inputs.front_end_s(requests.input_tokens)
    return request_mix(requests, inputs.class_slos, max_model_len=max_model_len, front_end_s=front_end_s)


def runs(inputs: SolveInputs, mix: RequestMix) -> tuple[Run, ...]:
    """All requests together, then every run of neighbouring buckets."""
    workload = inputs.workload
    whole = Run(PromptRange(), mix, Demand(mix, workload.rate_req_per_s, workload.arrival_scv), 1.0)
    parts = [prompts for prompts in runs_of_buckets(inputs.length_edges) if not prompts.is_all]
    return (whole, *(_run(inputs, prompts) for prompts in parts))


def _run(inputs: SolveInputs, prompts: PromptRange) -> Run:
    """The requests of one run. Of a renewal process each of whose arrivals is kept with probability p, the squared
    coefficient of variation is 1 + p · (scv − 1)."""
    workload = inputs.workload
    share = float(workload.weight[prompts.holds(workload.input_tokens)].sum())
    drawn = min(MOST_SAMPLED, math.ceil(MIX_SAMPLE / max(share, 1e-9)))
    everything = sample(workload, drawn, inputs.question.seed)
    requests = everything.take(np.flatnonzero(prompts.holds(everything.input_tokens)))
    longest = _longest(workload, prompts)
    max_model_len = min(-(-longest // 1024) * 1024, inputs.max_model_len)
    mix = _mix(inputs, requests, max_model_len)
    mix = replace(
        mix, ttft_miss_share=_may_miss(inputs, prompts, "ttft"), tpot_miss_share=_may_miss(inputs, prompts, "tpot")
    )
    scv = 1 + share * (workload.arrival_scv - 1)
    return Run(prompts, mix, Demand(mix, share * workload.rate_req_per_s, scv), share)


def _may_miss(inputs: SolveInputs, prompts: PromptRange, name: str) -> float:
    """The share of a run's requests that may miss a target. Of all that may miss in a class, its part of the run has as
    much as of the work: where targets are one for all lengths, it is the long prompts that miss them."""
    workload, work = inputs.workload, work_shares(inputs.workload)
    inside, found = prompts.holds(workload.input_tokens), MOST_MISSED
    for number, slo in enumerate(inputs.class_slos):
        mine = workload.class_index == number
        requests, here = workload.weight[mine].sum(), workload.weight[mine & inside].sum()
        if here > 0:
            part = (work[mine & inside].sum() / work[mine].sum()) / (here / requests)
            found = min(found, float(part) * miss_share([getattr(slo, name)], [slo]))
    return found


def _longest(workload: Workload, prompts: PromptRange) -> int:
    source = workload if workload.trace is None else workload.trace
    inside = prompts.holds(source.input_tokens)
    return int((source.input_tokens + source.output_tokens)[inside].max())


def columns_of_runs(parts: Sequence[tuple[Run, ColumnSet]], classes: Sequence[ProgramClass]) -> ColumnSet:
    """The columns of every run, over the classes of the program; those of a part of all prompts carry its bounds."""
    result = ColumnSet([])
    for part, found in parts:
        result.considered += found.considered
        result.rejections.counts.update(found.rejections.counts)
        result.rejections.examples |= {
            k: v for k, v in found.rejections.examples.items() if k not in result.rejections.examples
        }
        result.columns += [_for_classes(column, part.prompts, classes) for column in found.columns]
    return result


def _for_classes(column: Column, prompts: PromptRange, classes: Sequence[ProgramClass]) -> Column:
    """The column with its work by class of the program. Its classes always come in the same mix, so that the mean work
    of a class may stand for each of its buckets."""
    work = np.array(
        [column.work_s_per_request[item.of_class] if prompts.covers(item.prompts) else np.inf for item in classes]
    )
    if prompts.is_all:
        return replace(column, work_s_per_request=work)
    return replace(
        column,
        name=f"{column.name}, {prompts}",
        work_s_per_request=work,
        above_tokens=prompts.above,
        up_to_tokens=prompts.up_to,
    )
