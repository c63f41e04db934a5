"""Kernels run in Triton's interpreter: its switch is read when a kernel is decorated, so it is set before that."""

from __future__ import annotations

import os

import pytest

os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(autouse=True)
def _seed() -> None:
    import torch

    torch.manual_seed(0)
