"""Field types for the schemas of user files: numbers that are finite, in range, and numbers at all (`true` is not 1).

`gpus: PositiveInt` in a pydantic model says it all; messages read "expected greater than 0" with the line of the key.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field


def _not_a_truth_value(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError(f"is {str(value).lower()}; expected a number")
    return value


_Number = BeforeValidator(_not_a_truth_value)

Finite = Annotated[float, Field(allow_inf_nan=False), _Number]
"""Any finite number."""
PositiveFinite = Annotated[float, Field(gt=0, allow_inf_nan=False), _Number]
"""A finite number above 0."""
NonNegativeFinite = Annotated[float, Field(ge=0, allow_inf_nan=False), _Number]
"""A finite number of at least 0."""
Fraction = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False), _Number]
"""A share above 0 and at most 1."""
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False), _Number]
"""A share from 0 to 1."""
PositiveInt = Annotated[int, Field(gt=0, le=2**53), _Number]
"""A whole number above 0, small enough to be exact in a float."""
NonNegativeInt = Annotated[int, Field(ge=0, le=2**53), _Number]
"""A whole number of at least 0."""
Name = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$")]
"""A name on one line."""


class Strict(BaseModel):
    """Base of user-file schemas: unknown keys are errors, values do not change once read."""

    model_config = ConfigDict(extra="forbid", frozen=True)
