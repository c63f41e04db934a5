"""A Profile: tables of measured operation times with their provenance. Loads without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
BasisArray = NDArray[np.uint8]


class Basis(IntEnum):
    """Where a number comes from, from best to worst. The basis of a sum is reported as shares, never as one word."""

    MEASURED = 0  # the very point was measured
    INTERPOLATED = 1  # between measured points
    EXTRAPOLATED = 2  # beyond them, by a roofline calibrated on the nearest ones
    ASSUMED = 3  # no measurement: roofline on datasheet facts


@dataclass(frozen=True, slots=True)
class Timed:
    """Seconds of an operation at each queried point, with the basis of each."""

    seconds: FloatArray
    basis: BasisArray


@dataclass(frozen=True, slots=True, eq=False)
class OpTable:
    """One operation family as columns: `keys` name the shape, `seconds` is the measured latency of each row.

    The columns of each family, and what they mean, are in `families.FAMILIES`. Shape of every array: [rows].
    """

    family: str  # "gemm", "prefill_attention", "decode_attention", "all_reduce", …
    keys: Mapping[str, NDArray[Any]]
    seconds: FloatArray

    def __len__(self) -> int:
        return len(self.seconds)


@dataclass(frozen=True, slots=True, eq=False)
class Profile:
    """Operation times measured on one GPU type under one engine's kernels."""

    gpu: str  # catalog name
    engine: str  # whose kernels: "vllm", "sglang", "trtllm", "splitplan"
    engine_version: str
    tables: Mapping[str, OpTable]  # by family
    provenance: Mapping[str, str]  # device, driver, versions, date, how, licence, source
    content_hash: str = ""
    notes: tuple[str, ...] = field(default=())
