"""The Workload file as people write it. Every field carries its unit, bounds, default and meaning."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from splitplan.planner.spec.fleet_schema import FileModel, Name, unit

MAX_TOKENS = 100_000_000
Tokens = Annotated[int, Field(ge=1, le=MAX_TOKENS, json_schema_extra=unit("tokens"))]
TokenList = Annotated[list[Tokens], Field(min_length=1, max_length=100_000)]
Rate = Annotated[float, Field(gt=0, le=1e9, json_schema_extra=unit("requests/s"))]
HourlyRate = Annotated[float, Field(ge=0, le=1e9, json_schema_extra=unit("requests/s"))]
Share = Annotated[float, Field(ge=0, lt=1, json_schema_extra=unit("share of prompt tokens"))]


class FixedFile(FileModel):
    """Every request alike."""

    input: Tokens = Field(description="prompt tokens")
    output: Tokens = Field(description="generated tokens")


class SpreadFile(FileModel):
    """A lognormal distribution of lengths."""

    mean: Annotated[float, Field(ge=1, le=1e7, json_schema_extra=unit("tokens"))] = Field(description="mean length")
    cv: Annotated[float, Field(ge=0, le=5)] = Field(1.0, description="standard deviation over mean")


class LognormalFile(FileModel):
    """Independent lognormal lengths."""

    input: SpreadFile = Field(description="prompt tokens")
    output: SpreadFile = Field(description="generated tokens")


class SampleFile(FileModel):
    """A joint sample of lengths; row i is (input_tokens[i], output_tokens[i]) with weight[i]."""

    input_tokens: TokenList = Field(description="prompt tokens of each row")
    output_tokens: TokenList = Field(description="generated tokens of each row")
    weight: Annotated[list[Annotated[float, Field(ge=0, le=1e12)]], Field(max_length=100_000)] = Field(
        [], description="relative weight of each row; left out: all alike"
    )
    cached_tokens: Annotated[list[Annotated[int, Field(ge=0, le=MAX_TOKENS)]], Field(max_length=100_000)] = Field(
        [], description="prompt tokens of each row found in a warm cache; left out: by `prefix_hit_ratio`"
    )


class LengthsFile(FileModel):
    """Exactly one way to say how long prompts and outputs are."""

    fixed: FixedFile | None = Field(None, description="every request alike")
    lognormal: LognormalFile | None = Field(None, description="independent lognormal lengths")
    sample: SampleFile | None = Field(None, description="a weighted joint sample")
    like: Name | None = Field(None, description="the lengths of a workload that ships with the project")


class ProfileFile(FileModel):
    """How the rate changes over time."""

    step_s: Annotated[float, Field(gt=0, le=1e6, json_schema_extra=unit("s"))] = Field(
        60.0, description="of one factor"
    )
    factor: Annotated[list[Annotated[float, Field(ge=0, le=1e6)]], Field(min_length=1, max_length=100_000)] = Field(
        description="rate of each step over the mean rate; repeated, from a random place on"
    )


class ArrivalsFile(FileModel):
    """How bursty arrivals are."""

    scv: Annotated[float, Field(ge=0, le=1e6)] = Field(
        1.0, description="squared coefficient of variation of inter-arrival times; 1 is Poisson, 0 is a clock"
    )
    gaps: Annotated[list[Annotated[float, Field(ge=0, le=1e12)]], Field(max_length=10_000)] = Field(
        [], description="measured inter-arrival times with mean 1; drawn instead of a gamma distribution"
    )
    weight: Annotated[list[Annotated[float, Field(ge=0, le=1e12)]], Field(max_length=10_000)] = Field(
        [], description="relative weight of each gap; left out: all alike"
    )
    profile: ProfileFile | None = Field(None, description="left out: the same rate all the time")


class ClassFile(FileModel):
    """Requests that share lengths and targets."""

    name: Name = Field(description="printed with its results")
    share: Annotated[float, Field(gt=0, le=1, json_schema_extra=unit("share of requests"))] = Field(
        description="share of requests; all classes add up to 1"
    )
    slo: Annotated[str, Field(max_length=500)] | None = Field(
        None, description="its own targets, as in `ttft=800ms@p99,tpot=50ms@p99`; left out: those of the solve"
    )
    lengths: LengthsFile = Field(description="how long its prompts and outputs are")
    prefix_hit_ratio: Share | None = Field(None, description="left out: that of the workload")


class TraceFile(FileModel):
    """A recorded trace to replay."""

    path: Name = Field(description="beside this file, or absolute; formats in docs/workloads.md")
    start_s: Annotated[float, Field(ge=0, json_schema_extra=unit("s"))] = Field(0.0, description="start of a window")
    end_s: Annotated[float, Field(gt=0, json_schema_extra=unit("s"))] | None = Field(
        None, description="end of a window, from the first arrival; left out: all of it"
    )
    columns: dict[Literal["time", "input", "output", "class"], Name] = Field(
        {}, description="names of columns or keys where they are not the known ones"
    )
    slo: dict[Name, Annotated[str, Field(max_length=500)]] = Field(
        {}, description="targets of single classes, by the class's name in the trace"
    )


class WorkloadFile(FileModel):
    """A description of requests, or a trace; one class, or several with their own SLOs."""

    kind: Literal["Workload"] = Field(description="always `Workload`")
    version: Literal[1] = Field(description="format version")
    name: Name = Field(description="printed with every plan")
    description: Annotated[str, Field(max_length=2000)] = Field("", description="for people")
    source: Annotated[str, Field(max_length=1000)] = Field("", description="where the figures come from")
    licence: Annotated[str, Field(max_length=300)] = Field("", description="licence of the data it was fitted to")
    rate_req_per_s: Rate | None = Field(None, description="left out: the trace's own, or to be given with the command")
    hourly_req_per_s: Annotated[list[HourlyRate], Field(max_length=8784)] = Field(
        [], description="instead of `rate_req_per_s`: the rate of each hour; plans are made for the busiest"
    )
    busiest_minute: Annotated[float, Field(ge=1, le=1e6, json_schema_extra=unit("ratio"))] | None = Field(
        None, description="rate of the busiest minute of the trace it was fitted to, over the mean rate; for a note"
    )
    arrivals: ArrivalsFile = Field(ArrivalsFile(), description="burstiness")
    prefix_hit_ratio: Share = Field(0.0, description="prompt tokens found in a warm cache, where no class says more")
    lengths: LengthsFile | None = Field(None, description="for a workload of one class")
    classes: Annotated[list[ClassFile], Field(max_length=100)] = Field([], description="instead of `lengths`")
    trace: TraceFile | None = Field(None, description="instead of `lengths` and `classes`")
