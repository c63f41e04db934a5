"""The kernel benchmark: its arithmetic and its cases, interpreted; and its one answer where there is no GPU."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch (extra gpu)")
pytest.importorskip("triton", reason="needs triton (extra gpu)")

from splitplan.catalogs.errors import ProfileError

SCRIPT = Path(__file__).parent.parent.parent / "benchmarks" / "kernels" / "bench.py"


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    spec = importlib.util.spec_from_file_location("kernels_bench", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["kernels_bench"] = module
    spec.loader.exec_module(module)
    return module


def test_without_a_gpu_it_says_not_measured() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(os.path.abspath(place) for place in sys.path)}
    environment["LD_LIBRARY_PATH"] = "/nonexistent"
    done = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True, env=environment, timeout=60)
    if done.returncode == 0:
        pytest.skip("this machine has an NVIDIA GPU")
    assert done.returncode == 1
    assert done.stderr.startswith("not measured: no NVIDIA driver")
    assert done.stdout == ""


def test_shares_are_of_the_ceiling_and_goals_are_judged(bench: ModuleType) -> None:
    """8e9 bytes in 4 ms are 2 TB/s: half of a 4 TB/s ceiling, a missed goal, and torch at 3 ms is faster."""
    result = bench.Result("decode", "copy", 4e-3, 2e12, 0.5, 3e-3, 0.85, False)
    text = bench.line(result)
    assert "2000.0 GB/s" in text
    assert "50.0%" in text
    assert "MISSED" in text
    assert "FASTER" in text


def test_a_wrong_kernel_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch", reason="needs torch (extra gpu)")
    pytest.importorskip("triton", reason="needs triton (extra gpu)")
    from splitplan.profiler import gpu_check

    right = gpu_check.decode_attention
    monkeypatch.setattr(gpu_check, "decode_attention", lambda *arguments: right(*arguments) * 1.01)
    with pytest.raises(ProfileError, match="decode attention is off"):
        gpu_check.check_attention(torch, "cpu", torch.float16)


def test_every_case_computes_and_is_timed(bench: ModuleType) -> None:
    """All kernels through the interpreter at a 128th of the size, with a timer that only calls."""
    torch = pytest.importorskip("torch", reason="needs torch (extra gpu)")
    pytest.importorskip("triton", reason="needs triton (extra gpu)")
    from splitplan.profiler.device import CpuDevice
    from splitplan.profiler.gpu_check import check_attention
    from splitplan.profiler.gpu_operations import GpuWorkbench
    from splitplan.profiler.timer import Timing

    class OneCall:
        def measure(self, call: Any, effort: Any, *, rotations: int = 1) -> Timing:
            call(0)
            return Timing(2e-3, 2e-3, 2e-3, 1)

    workbench, device = GpuWorkbench(torch, "cpu", 1 << 12), CpuDevice()
    check_attention(torch, "cpu", torch.float16)
    limits = bench.ceilings(torch, workbench, OneCall(), small=True)
    results = [
        bench.run(case, limits[case.bound], OneCall(), device) for case in bench.cases(torch, workbench, small=True)
    ]
    assert {result.name.split()[0] for result in results} == {
        *("prefill", "decode", "pack", "rmsnorm", "swiglu", "experts")
    }
    for result, case in zip(results, bench.cases(torch, workbench, small=True), strict=True):
        assert result.per_s == pytest.approx(case.work / 2e-3)
        assert result.share == pytest.approx(result.per_s / limits[result.bound])
    assert sum(result.rival_s is not None for result in results) == 8
