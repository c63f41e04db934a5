"""A column of the program: one kind of instance and what it sustains."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from splitplan.planner.latency.step import StepModel
from splitplan.planner.spec.length_buckets import range_in_words

Role = Literal["prefill", "decode", "colocated"]
Reach = Literal["node", "rack", "fleet"]
ROLES: tuple[Role, ...] = ("prefill", "decode", "colocated")


@dataclass(frozen=True, slots=True)
class Stage:
    """One pipeline stage of a column that mixes GPU types: as many tensor ranks as every other stage of it."""

    gpu: str
    gpu_link: str  # catalog link between its tensor ranks; "" fits every host of the GPU
    layers: int


@dataclass(frozen=True, slots=True)
class Part:
    """The stages of a column on one kind of host: `count` groups of `size` GPUs, each inside one NVLink domain."""

    gpu: str
    gpu_link: str
    count: int
    size: int


@dataclass(frozen=True, slots=True)
class Column:
    """One kind of instance, after memory, engine rules and SLO. Rates are for one instance."""

    name: str  # "prefill h100-sxm tp2"
    role: Role
    gpu: str  # of a mixed pipeline all its types, "h100-sxm+a100-sxm-80"
    tensor_parallel: int
    pipeline_parallel: int
    expert_parallel: int
    weight_dtype: str
    kv_dtype: str
    block_tokens: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    memory_fraction: float
    kv_capacity_tokens: int
    work_s_per_request: NDArray[
        np.float64
    ]  # [classes] share of one instance's usable second a request of the class takes
    watts: float  # of all its GPUs, at the planned load
    step: StepModel
    attention_backend: str = ""
    transfer_reach: Reach = "fleet"  # how far its TTFT budget lets its KV travel: near and far are two columns
    above_tokens: int = 0  # prompts it was worked out for, and takes: more than this many input tokens,
    up_to_tokens: int = 0  # and at most this many; 0: no bound
    gpu_link: str = ""  # host kind it was computed for: catalog link between the GPUs; "" fits every host of the GPU
    stages: tuple[Stage, ...] = ()  # of a pipeline that mixes GPU types, in order; () where all stages are alike
    service: str = ""  # whose it is, where several models share a fleet

    @property
    def num_gpus(self) -> int:
        """GPUs one instance takes."""
        return self.tensor_parallel * self.pipeline_parallel

    @property
    def gpu_types(self) -> tuple[str, ...]:
        """The GPU types it runs on."""
        return tuple(dict.fromkeys(stage.gpu for stage in self.stages)) if self.stages else (self.gpu,)

    @property
    def gpus_by_type(self) -> dict[str, int]:
        """GPUs one instance takes, by type."""
        if not self.stages:
            return {self.gpu: self.num_gpus}
        counts = dict.fromkeys(self.gpu_types, 0)
        for stage in self.stages:
            counts[stage.gpu] += self.tensor_parallel
        return counts

    @property
    def parts(self) -> tuple[Part, ...]:
        """Its stages by kind of host, that of the first stage first."""
        if not self.stages:
            return (Part(self.gpu, self.gpu_link, self.pipeline_parallel, self.tensor_parallel),)
        counts: dict[tuple[str, str], int] = {}
        for stage in self.stages:
            counts[stage.gpu, stage.gpu_link] = counts.get((stage.gpu, stage.gpu_link), 0) + 1
        return tuple(Part(gpu, link, count, self.tensor_parallel) for (gpu, link), count in counts.items())

    @property
    def prompts_in_words(self) -> str:
        """`prompts up to 2,000`; "" for prompts of every length."""
        return range_in_words(self.above_tokens, self.up_to_tokens) if self.above_tokens or self.up_to_tokens else ""
