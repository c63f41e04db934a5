"""The Services file as people write it: several models that share one fleet."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from splitplan.planner.spec.fleet_schema import FileModel, Name
from splitplan.planner.spec.workload_schema import Rate

ServiceName = Annotated[str, Field(min_length=1, max_length=40, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
Word = Annotated[str, Field(max_length=100)]
ColumnFilters = Annotated[list[Name], Field(max_length=50)]


class ServiceFile(FileModel):
    """One model with its load and its targets."""

    name: ServiceName = Field(description="printed with its results, and the name of its plan file")
    model: Name = Field(description="catalog name, or a Hugging Face config.json")
    workload: Name = Field(description="a workload or trace file (beside this file), a shipped name, or a form")
    slo: Annotated[str, Field(min_length=1, max_length=500)] = Field(
        description="its targets, as in `ttft=800ms@p99,tpot=50ms@p99`"
    )
    rate_req_per_s: Rate | None = Field(None, description="left out: the workload's own")
    mode: Literal["auto", "disagg", "colocated"] = Field("auto", description="which kinds of serving may be chosen")
    pin: ColumnFilters = Field([], description="only such instances, as in `decode=a100-sxm-80`")
    forbid: ColumnFilters = Field([], description="no such instances, as in `l40s`")
    engine: Word = Field("vllm", description="engine, for instance `vllm` or `vllm@0.32.0`")
    connector: Word = Field("", description="KV connector; left out: the engine's first")
    weight_dtype: Word = Field("", description="left out: as the model is published")
    kv_dtype: Word = Field("", description="left out: bf16")
    memory_fraction: Annotated[float, Field(ge=0, le=1)] = Field(
        0.0, description="of total GPU memory; 0: the engine's default"
    )
    profiles: ColumnFilters = Field(
        [], description="profile files (beside this file) that take the place of shipped ones"
    )


class ServicesFile(FileModel):
    """Several models to be served by one fleet."""

    kind: Literal["Services"] = Field(description="always `Services`")
    version: Literal[1] = Field(description="format version")
    name: Name = Field("", description="for people; left out: the file's name")
    description: Annotated[str, Field(max_length=2000)] = Field("", description="for people")
    services: Annotated[list[ServiceFile], Field(min_length=1, max_length=12)] = Field(
        description="at least one; in the order in which somebody planning by hand would serve them"
    )
