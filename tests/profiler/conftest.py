"""Kernels run in Triton's interpreter here too: its switch is read when triton is imported, so it is set first."""

from __future__ import annotations

import os

os.environ["TRITON_INTERPRET"] = "1"
