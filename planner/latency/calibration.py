"""Calibrations: the handful of numbers that op tables cannot hold, per engine generation and GPU family, from YAML.

    kind: Calibration
    version: 1
    entries:
    - engine: vllm
      from_version: "0.8"          # of the engine; the entry with the highest one that is not above yours applies
      gpu_family: hopper           # Gpu.architecture, or "*"
      parameters: {gap_us: 1800, sequence_gap_us: 36, …}
      fitted_on: {points: 120, sources: [splitwise, …], command: "planner calibrate …"}

What each parameter means, and its unit and bounds, stands in PARAMETERS.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, field_validator

import splitplan.catalogs as catalogs
from splitplan.catalogs.documents import read_document, validate
from splitplan.planner.latency.overhead import EngineOverhead


@dataclass(frozen=True, slots=True)
class Parameter:
    """One calibration parameter as files and reports state it."""

    name: str  # in files, in `unit`
    field: str  # of EngineOverhead, in seconds or plain
    unit: str
    per_unit: float  # value of one `unit` in the field's own
    low: float
    high: float
    meaning: str


PARAMETERS = (
    Parameter("launch_us", "launch_s", "us", 1e-6, 0, 100, "host time to launch a kernel, without graph replay"),
    Parameter("gap_us", "gap_s", "us", 1e-6, 0, 50_000, "host time between two steps that nothing hides"),
    Parameter("rank_gap_us", "rank_gap_s", "us", 1e-6, 0, 10_000, "the same, by doubling of tensor ranks"),
    Parameter("sequence_gap_us", "sequence_gap_s", "us", 1e-6, 0, 1_000, "the same, by sequence in the step"),
    Parameter("compute_scale", "compute_scale", "", 1.0, 0.5, 3, "sustained over benchmarked compute-bound time"),
    Parameter(
        "stream_scale", "stream_scale", "", 1.0, 0.5, 3, "served over benchmarked time of bandwidth-bound kernels"
    ),
    Parameter("request_ms", "request_s", "ms", 1e-3, 0, 2_000, "front end of a request: HTTP, tokenizer, hand-over"),
    Parameter("request_token_us", "request_token_s", "us", 1e-6, 0, 1_000, "front end, by prompt token"),
    Parameter("tpot_spread", "tpot_spread", "", 1.0, 1, 10, "factor up and down that holds 90 % of measured TPOT"),
    Parameter("ttft_spread", "ttft_spread", "", 1.0, 1, 30, "factor up and down that holds 90 % of measured TTFT"),
    Parameter(
        "throughput_spread", "throughput_spread", "", 1.0, 1, 10, "factor up and down that holds 90 % of throughput"
    ),
)


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class FittedOn(_Strict):
    """The data behind an entry."""

    points: int = Field(ge=0)
    sources: tuple[str, ...]
    command: str = ""


class Entry(_Strict):
    """Parameters of one engine generation on one GPU family."""

    engine: str
    from_version: str = "0"
    gpu_family: str
    parameters: dict[str, float]
    fitted_on: FittedOn

    @field_validator("parameters")
    @classmethod
    def _known_and_in_bounds(cls, given: dict[str, float]) -> dict[str, float]:
        known = {parameter.name: parameter for parameter in PARAMETERS}
        for name, value in given.items():
            if name not in known:
                raise ValueError(f"unknown parameter `{name}`; known are {', '.join(known)}")
            if not known[name].low <= value <= known[name].high:
                raise ValueError(f"{name} is {value:g}, outside {known[name].low:g} to {known[name].high:g}")
        return given

    def overhead(self) -> EngineOverhead:
        """The entry in SI units."""
        values = {
            parameter.field: self.parameters[parameter.name] * parameter.per_unit
            for parameter in PARAMETERS
            if parameter.name in self.parameters
        }
        return EngineOverhead(**values)


class CalibrationFile(_Strict):
    """One YAML file of entries."""

    kind: str = Field(pattern="^Calibration$")
    version: int = Field(ge=1, le=1)
    entries: tuple[Entry, ...] = Field(min_length=1)


def load_calibration(path: str | Path) -> tuple[Entry, ...]:
    """Entries of one file; raises DocumentError with the line of everything that is wrong."""
    return validate(read_document(path, "calibration"), CalibrationFile).entries


@lru_cache(maxsize=1)
def shipped_entries() -> tuple[Entry, ...]:
    """Entries of every file in catalogs/calibration."""
    folder = Path(str(catalogs.__file__)).parent / "calibration"
    return tuple(entry for path in sorted(folder.glob("*.yaml")) for entry in load_calibration(path))


def find_overhead(
    engine: str, version: str, gpu_family: str, entries: tuple[Entry, ...] | None = None
) -> EngineOverhead:
    """The overhead of an engine version on a GPU family; the nearest entry when that pair was never calibrated.

    Order of preference: same engine and family, the newest generation not above `version` (else the oldest); then the
    same engine on any family, Hopper before others; then vLLM.
    """
    entries = shipped_entries() if entries is None else entries
    name = "vllm" if engine.endswith("vllm") else engine
    for candidates in (
        [entry for entry in entries if entry.engine == name and entry.gpu_family == gpu_family],
        [entry for entry in entries if entry.engine == name],
        [entry for entry in entries if entry.engine == "vllm" and entry.gpu_family == gpu_family],
        [entry for entry in entries if entry.engine == "vllm"],
    ):
        if candidates:
            return _generation(candidates, version).overhead()
    return EngineOverhead()


def _generation(candidates: list[Entry], version: str) -> Entry:
    ordered = sorted(candidates, key=lambda entry: (version_key(entry.from_version), entry.gpu_family == "Hopper"))
    reached = [entry for entry in ordered if not version or version_key(entry.from_version) <= version_key(version)]
    return reached[-1] if reached else ordered[0]


def version_key(version: str) -> tuple[int, ...]:
    """(0, 24, 1) for "0.24.1rc2"."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])
