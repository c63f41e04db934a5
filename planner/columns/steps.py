"""Step models by shape: one per (GPU type, link, parallelism, dtype), with tables that cover every ladder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from splitplan.catalogs.engines import Engine
from splitplan.catalogs.models import Model
from splitplan.planner.columns.options import BATCH_LADDER, COLOCATED_CHUNK_LADDER, PREFILL_CHUNK_LADDER
from splitplan.planner.columns.shapes import Shape
from splitplan.planner.latency.build import step_model
from splitplan.planner.latency.operations import OpSource, Position
from splitplan.planner.latency.siblings import find_op_times
from splitplan.planner.latency.step import StepModel
from splitplan.profiler.profile import Profile
from splitplan.profiler.query import OpTimes

MOST_TOKENS = max(*PREFILL_CHUNK_LADDER, *COLOCATED_CHUNK_LADDER)
MOST_SEQS = max(BATCH_LADDER)


class StepLibrary:
    """Builds each step model once."""

    Key = tuple[str, str, int, int, int, str, str, int, str]
    Steps = dict[Key, StepModel]

    def __init__(
        self,
        model: Model,
        engine: Engine,
        profiles: Mapping[str, Profile | None],
        factors: Mapping[str, float] | None = None,
    ) -> None:
        """`factors` by GPU type: what all its step times are multiplied by (1 where none is given)."""
        self._factors = factors or {}
        self._model = model
        self._engine = engine
        self._profiles = profiles
        self._ops: dict[str, OpSource] = {}  # of a measured relative where a GPU has no profile
        self._steps: StepLibrary.Steps = {}

    @staticmethod
    def key(shape: Shape, layers: int = 0, position: str = "") -> StepLibrary.Key:
        """Equal for shapes (and stages of them) that share a step model."""
        return (
            shape.host.gpu.name,
            shape.host.gpu_link.name,
            shape.tensor_parallel,
            shape.pipeline_parallel,
            shape.expert_parallel,
            shape.weight_dtype,
            shape.kv_dtype,
            layers,
            position,
        )

    def known(self, shapes: Iterable[Shape]) -> StepLibrary.Steps:
        """The step models of these shapes that were built already."""
        keys = dict.fromkeys(self.key(shape) for shape in shapes)
        return {key: self._steps[key] for key in keys if key in self._steps}

    def learn(self, steps: StepLibrary.Steps) -> None:
        """Take step models that another library built."""
        for key, step in steps.items():
            self._steps.setdefault(key, step)

    def __call__(self, shape: Shape) -> StepModel:
        """The step model of a shape."""
        return self.stage(shape, 0, "")

    def stage(self, shape: Shape, layers: int, position: Position) -> StepModel:
        """The step model of one stage of a pipeline that is not cut alike; of the whole shape with 0 layers."""
        gpu, key = shape.host.gpu, self.key(shape, layers, position)
        if key not in self._steps:
            if gpu.name not in self._ops:
                profile = self._profiles.get(gpu.name)
                kernels = self._engine.base or self._engine.name
                self._ops[gpu.name] = OpTimes(profile, gpu) if profile else find_op_times(gpu, kernels)[0]
            self._steps[key] = step_model(
                self._model,
                self._ops[gpu.name],
                self._engine,
                shape.host.gpu_link,
                tp=shape.tensor_parallel,
                pp=shape.pipeline_parallel,
                ep=shape.expert_parallel,
                weight_dtype=shape.weight_dtype,
                kv_dtype=shape.kv_dtype,
                max_num_seqs=MOST_SEQS,
                max_num_batched_tokens=MOST_TOKENS,
                layers=layers,
                position=position,
            ).scaled(self._factors.get(gpu.name, 1.0))
        return self._steps[key]
