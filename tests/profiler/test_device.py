"""What the driver says: read through one boundary, missing sensors are None, no driver is one clear error."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from splitplan.catalogs.errors import ProfileError
from splitplan.profiler.device import CpuDevice, CudaDevice, DeviceLock, read_gpus

STUB_SOURCE = Path(__file__).parent / "nvml_stub.c"


class FakeNvml:
    """pynvml's functions over a list of GPUs; asking for what is not in the dict raises as pynvml does."""

    NVML_CLOCK_SM = 1
    NVML_TEMPERATURE_GPU = 0

    class NVMLError(Exception):
        """pynvml's base of every error."""

    def __init__(self, gpus: list[dict[str, Any]], *, driver: bool = True) -> None:
        self.gpus, self.driver = gpus, driver
        self.opened = 0

    def nvmlInit(self) -> None:  # noqa: N802 (NVML's name)
        if not self.driver:
            raise self.NVMLError("NVML Shared Library Not Found")
        self.opened += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.opened -= 1

    def nvmlSystemGetDriverVersion(self) -> bytes:  # noqa: N802
        return b"550.54"

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def __getattr__(self, name: str) -> Any:
        def ask(handle: int, *arguments: Any) -> Any:
            answer = self.gpus[handle].get(name)
            if answer is None:
                raise self.NVMLError("Not Supported")
            return answer(*arguments) if callable(answer) else answer

        return ask


class Memory:
    total = 85520809984


H100 = {
    "nvmlDeviceGetName": b"NVIDIA H100 80GB HBM3",
    "nvmlDeviceGetUUID": "GPU-1",
    "nvmlDeviceGetMemoryInfo": Memory,
    "nvmlDeviceGetClockInfo": 1755,
    "nvmlDeviceGetMaxClockInfo": 1980,
    "nvmlDeviceGetPowerUsage": 412500,
    "nvmlDeviceGetTemperature": 61,
    "nvmlDeviceGetMaxPcieLinkGeneration": 5,
    "nvmlDeviceGetMaxPcieLinkWidth": 16,
    "nvmlDeviceGetNvLinkState": lambda link: link < 18,
    "nvmlDeviceGetTopologyCommonAncestor": lambda other: 50,
}
BARE = {"nvmlDeviceGetName": "NVIDIA L4", "nvmlDeviceGetMemoryInfo": Memory}


def test_a_gpu_is_read_with_units() -> None:
    nvml = FakeNvml([H100, BARE])
    first, second = read_gpus(nvml)
    assert (first.name, first.uuid, first.driver_version) == ("NVIDIA H100 80GB HBM3", "GPU-1", "550.54")
    assert (first.power_watts, first.sm_clock_mhz, first.max_sm_clock_mhz) == (412.5, 1755, 1980)
    assert (first.pcie_generation, first.pcie_width, first.active_nvlinks) == (5, 16, 18)
    assert first.peers == ((1, "between sockets (SYS)"),)
    assert second.index == 1
    assert nvml.opened == 0


def test_a_sensor_that_a_gpu_does_not_have_is_none_and_stops_nothing() -> None:
    (gpu,) = read_gpus(FakeNvml([BARE]))
    assert (gpu.power_watts, gpu.temperature_c, gpu.pcie_generation, gpu.active_nvlinks) == (None, None, None, 0)
    state = CudaDevice(0, FakeNvml([BARE])).state()
    assert (state.clock_mhz, state.power_watts, state.throttle_reasons) == (None, None, ())


def test_no_driver_is_one_error_with_the_ways_on() -> None:
    with pytest.raises(ProfileError, match=r"no NVIDIA driver(.|\n)*--device cpu(.|\n)*--plan-only"):
        read_gpus(FakeNvml([], driver=False))


def test_a_gpu_that_is_not_there_is_named() -> None:
    with pytest.raises(ProfileError, match="no GPU 3"):
        CudaDevice(3, FakeNvml([H100]))


def test_throttle_reasons_are_words() -> None:
    """0x40 hardware thermal, 0x4 power cap (nvml.h); 0x1 is idle and no throttling."""
    nvml = FakeNvml([{**H100, "nvmlDeviceGetCurrentClocksThrottleReasons": 0x40 | 0x4 | 0x1}])
    assert CudaDevice(0, nvml).state().throttle_reasons == ("power cap", "temperature (hardware)")


def test_the_cpu_is_read_from_proc(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text("model name\t: Test CPU\ncpu MHz\t\t: 2000.0\ncpu MHz\t\t: 3000.0\n")
    (tmp_path / "proc/meminfo").write_text("MemTotal:       1024 kB\n")
    cpu = CpuDevice(tmp_path)
    assert cpu.identity.name.startswith("Test CPU")
    assert cpu.identity.memory_bytes == 1 << 20
    assert cpu.state().clock_mhz == 2500.0


def test_a_cpu_that_reports_nothing_still_has_an_identity(tmp_path: Path) -> None:
    cpu = CpuDevice(tmp_path)
    assert cpu.identity.uuid.startswith("cpu-")
    assert cpu.state().clock_mhz is None


def test_a_device_is_measured_by_one_run_at_a_time(tmp_path: Path) -> None:
    first = DeviceLock("GPU-1", tmp_path)
    with pytest.raises(ProfileError, match="GPU-1 is being measured"):
        DeviceLock("GPU-1", tmp_path)
    DeviceLock("GPU-2", tmp_path).close()
    first.close()
    DeviceLock("GPU-1", tmp_path).close()


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a stub libnvidia-ml.so.1."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler for the stub driver")
    folder = tmp_path_factory.mktemp("nvml")
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-o", str(folder / "libnvidia-ml.so.1"), str(STUB_SOURCE)], check=True
    )
    return folder


def with_stub(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join(os.path.abspath(place) for place in sys.path)
    environment = {**os.environ, "LD_LIBRARY_PATH": str(folder), "PYTHONPATH": paths}
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, env=environment, timeout=60)


def test_the_real_nvml_bindings_read_a_stub_driver(stub: Path) -> None:
    """pynvml itself against a shared library that knows a name, a UUID, memory, clock and power, and nothing else."""
    code = (
        "import json, dataclasses\n"
        "from splitplan.profiler.device import CudaDevice, read_gpus\n"
        "(gpu,) = read_gpus()\n"
        "state = CudaDevice(0).state()\n"
        "print(json.dumps([dataclasses.asdict(gpu), dataclasses.asdict(state)]))\n"
    )
    done = with_stub(stub, "-c", code)
    assert done.returncode == 0, done.stderr
    gpu, state = json.loads(done.stdout)
    assert (gpu["name"], gpu["uuid"], gpu["memory_bytes"]) == ("NVIDIA L40S", "GPU-stub", 48305799168)
    assert (gpu["pcie_generation"], gpu["active_nvlinks"], gpu["peers"]) == (None, 0, [])
    assert (state["clock_mhz"], state["power_watts"]) == (2520, 123.456)


def test_the_command_line_plans_for_the_gpu_that_the_driver_names(stub: Path) -> None:
    done = with_stub(stub, "-m", "splitplan.planner.cli", "profile", "--plan-only", "--model", "qwen3-0.6b", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["gpu"] == "l40s"


def test_a_driver_whose_gpu_torch_cannot_use_ends_in_one_message(stub: Path, tmp_path: Path) -> None:
    """Driver there, CUDA build of torch (or torch) not: no traceback, a next step."""
    done = with_stub(stub, "-m", "splitplan.planner.cli", "profile", "-o", str(tmp_path / "p.npz"))
    assert done.returncode == 1
    assert "next:" in done.stderr
    assert "torch" in done.stderr or "splitplan[gpu]" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []
