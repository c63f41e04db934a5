"""Every kernel, compiled for chips that are not here, as its wrapper launches it there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch (extra gpu)")
pytest.importorskip("triton", reason="needs triton (extra gpu)")

from splitplan.kernels.chips import CHIPS

SCRIPT = Path(__file__).parent / "compile_for_chips.py"
PRODUCTS = ("prefill_kernel", "decode_kernel", "mla_decode_kernel", "grouped_gemm_kernel")


@pytest.fixture(scope="module")
def reports() -> list[dict[str, Any]]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join(os.path.abspath(place) for place in sys.path)
    command = [sys.executable, str(SCRIPT), *CHIPS]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def test_every_kernel_compiles_for_every_chip(reports: list[dict[str, Any]]) -> None:
    assert [report for report in reports if "error" in report] == []
    cases = {chip: sorted(report["case"] for report in reports if report["chip"] == chip) for chip in CHIPS}
    assert len({tuple(names) for names in cases.values()}) == 1
    assert len({report["kernel"] for report in reports}) == 11


def test_every_block_fits_the_shared_memory_of_its_chip(reports: list[dict[str, Any]]) -> None:
    assert [report for report in reports if not report["fits"]] == []


def test_nothing_spills(reports: list[dict[str, Any]]) -> None:
    """A stack of zero bytes: no register went to memory."""
    assert [report for report in reports if report["stack_bytes"]] == []


def test_products_use_tensor_cores_and_nothing_else_does(reports: list[dict[str, Any]]) -> None:
    wrong = [report for report in reports if report["tensor_cores"] is not (report["kernel"] in PRODUCTS)]
    assert wrong == []
