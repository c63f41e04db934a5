"""A column of the program: one kind of instance and what it sustains."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from splitplan.planner.latency.step import StepModel

Role = Literal["prefill", "decode", "colocated"]
Reach = Literal["node", "rack", "fleet"]
ROLES: tuple[Role, ...] = ("prefill", "decode", "colocated")


@dataclass(frozen=True, slots=True)
class Column:
    """One kind of instance, after memory, engine rules and SLO. Rates are for one instance."""

    name: str  # "prefill h100-sxm tp2"
    role: Role
    gpu: str
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
    gpu_link: str = ""  # host kind it was computed for: catalog link between the GPUs; "" fits every host of the GPU

    @property
    def num_gpus(self) -> int:
        """GPUs one instance takes."""
        return self.tensor_parallel * self.pipeline_parallel
