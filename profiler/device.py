"""What is being measured: GPUs as NVML reports them, or this machine's CPU, and their state while a timing runs.

`read_gpus()` is the one place that talks to the NVIDIA driver (through nvidia-ml-py); tests put their own record or a
stub library in its place. Nothing here changes a setting of a device.
"""

from __future__ import annotations

import fcntl
import os
import platform
import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from splitplan.catalogs.errors import Problem, ProfileError

THROTTLE_REASONS = {
    0x0000000000000004: "power cap",
    0x0000000000000008: "hardware slowdown",
    0x0000000000000020: "temperature (software)",
    0x0000000000000040: "temperature (hardware)",
    0x0000000000000080: "power brake",
}
"""nvmlClocksThrottleReasons bits (nvml.h) that mean the chip runs slower than it could; idle and app clocks are not."""

TOPOLOGY_LEVELS = {
    0: "same board",
    10: "PCIe switch (PIX)",
    20: "PCIe switches (PXB)",
    30: "PCIe host bridge (PHB)",
    40: "NUMA node (NODE)",
    50: "between sockets (SYS)",
}
"""nvmlGpuTopologyLevel_t, in nvidia-smi's letters."""

MAX_NVLINKS = 18


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One GPU as its driver reports it. None: the driver does not report it on this GPU."""

    index: int
    name: str
    uuid: str
    memory_bytes: int
    driver_version: str
    max_sm_clock_mhz: float | None = None
    sm_clock_mhz: float | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    temperature_c: float | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None
    active_nvlinks: int = 0
    peers: tuple[tuple[int, str], ...] = ()  # (index of another GPU, how it is reached)


@dataclass(frozen=True, slots=True)
class DeviceState:
    """Clock, power and temperature at one moment. None: not reported."""

    clock_mhz: float | None = None
    power_watts: float | None = None
    temperature_c: float | None = None
    throttle_reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceIdentity:
    """Who was measured: goes into every row."""

    kind: str  # "cpu" or "cuda"
    name: str
    uuid: str
    driver_version: str
    memory_bytes: int


class Device(Protocol):
    """A device under measurement."""

    @property
    def identity(self) -> DeviceIdentity:
        """Name, UUID, driver and memory."""
        ...

    def state(self) -> DeviceState:
        """Clock, power, temperature and throttle reasons now."""
        ...


def read_gpus(nvml: Any = None) -> tuple[GpuReading, ...]:
    """Every GPU of this machine. Raises ProfileError with the next step where there is no driver or no permission.

    `nvml` is the pynvml module, or something with its functions.
    """
    nvml = nvml or _import_nvml()
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise ProfileError(_no_driver(error)) from None
    try:
        driver_version = _text(nvml.nvmlSystemGetDriverVersion())
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        return tuple(_read_gpu(nvml, handles, index, driver_version) for index in range(len(handles)))
    except nvml.NVMLError as error:
        raise ProfileError(Problem(f"the NVIDIA driver stopped answering: {error}", next_step="nvidia-smi")) from None
    finally:
        nvml.nvmlShutdown()


class CudaDevice:
    """A GPU under measurement, watched through NVML for as long as the object lives."""

    def __init__(self, index: int, nvml: Any = None) -> None:
        self._nvml = nvml or _import_nvml()
        readings = read_gpus(self._nvml)
        if index >= len(readings):
            raise ProfileError(Problem(f"no GPU {index}", expected=f"an index below {len(readings)}"))
        self.reading = readings[index]
        self._nvml.nvmlInit()
        self._handle = self._nvml.nvmlDeviceGetHandleByIndex(index)

    @property
    def identity(self) -> DeviceIdentity:
        """Name, UUID, driver and memory, as NVML gave them."""
        reading = self.reading
        return DeviceIdentity("cuda", reading.name, reading.uuid, reading.driver_version, reading.memory_bytes)

    def state(self) -> DeviceState:
        """One reading of the four sensors; what the driver does not report is None."""
        nvml, handle = self._nvml, self._handle
        bits = _ask(nvml, lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)) or 0
        power_milliwatts = _ask(nvml, lambda: nvml.nvmlDeviceGetPowerUsage(handle))
        return DeviceState(
            _ask(nvml, lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
            None if power_milliwatts is None else power_milliwatts / 1e3,
            _ask(nvml, lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
            tuple(name for bit, name in THROTTLE_REASONS.items() if int(bits) & bit),
        )


class CpuDevice:
    """This machine's CPU. Its clock is what the kernel reports, which on many virtual machines never moves."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._identity = DeviceIdentity("cpu", _cpu_name(root), _machine_id(root), platform.release(), _memory(root))

    @property
    def identity(self) -> DeviceIdentity:
        """Processor name, a hash of the machine id, the kernel's release and the memory."""
        return self._identity

    def state(self) -> DeviceState:
        """The mean clock over the cores, where the kernel reports one."""
        return DeviceState(clock_mhz=_cpu_clock_mhz(self._root))


class DeviceLock:
    """One measurement at a time on a device: two would time each other. Let go of with the process at the latest."""

    def __init__(self, uuid: str, folder: Path | None = None) -> None:
        name = re.sub(r"[^A-Za-z0-9-]", "-", uuid)
        path = (folder or Path(tempfile.gettempdir())) / f"splitplan-{name}.lock"
        self._handle = open(path, "a", encoding="utf-8")  # noqa: SIM115 (lives as long as the lock)
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._handle.close()
            problem = Problem(f"{uuid} is being measured already", str(path), next_step="wait for the other run")
            raise ProfileError(problem) from None

    def close(self) -> None:
        """Lets the next one measure."""
        self._handle.close()


def is_throttled(before: DeviceState, after: DeviceState, allowed_drop: float = 0.10) -> bool:
    """True when the clock fell by more than `allowed_drop` during a timing, or the driver names heat or a fault.

    The power cap alone is no reason: large matrix products run at it all the time, in serving too.
    """
    if set(after.throttle_reasons) - {"power cap"}:
        return True
    if before.clock_mhz is None or after.clock_mhz is None:
        return False
    return after.clock_mhz < before.clock_mhz * (1 - allowed_drop)


def _import_nvml() -> Any:
    try:
        import pynvml
    except ImportError:
        problem = Problem("the nvidia-ml-py package is missing", next_step="pip install nvidia-ml-py")
        raise ProfileError(problem) from None
    return pynvml


def _no_driver(error: Exception) -> Problem:
    return Problem(
        f"no NVIDIA driver answers on this machine ({error})",
        next_step="planner profile --device cpu (measures this CPU), planner profile --gpu h100 --plan-only "
        "(prints what would be measured), or run this on the machine with the GPU",
    )


def _read_gpu(nvml: Any, handles: list[Any], index: int, driver_version: str) -> GpuReading:
    handle = handles[index]

    def ask(function: str, *arguments: Any) -> Any:
        return _ask(nvml, lambda: getattr(nvml, function)(handle, *arguments))

    power, limit = ask("nvmlDeviceGetPowerUsage"), ask("nvmlDeviceGetEnforcedPowerLimit")
    return GpuReading(
        index=index,
        name=_text(nvml.nvmlDeviceGetName(handle)),
        uuid=_text(ask("nvmlDeviceGetUUID") or ""),
        memory_bytes=int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
        driver_version=driver_version,
        max_sm_clock_mhz=ask("nvmlDeviceGetMaxClockInfo", nvml.NVML_CLOCK_SM),
        sm_clock_mhz=ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM),
        power_watts=None if power is None else power / 1e3,
        power_limit_watts=None if limit is None else limit / 1e3,
        temperature_c=ask("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
        pcie_generation=ask("nvmlDeviceGetMaxPcieLinkGeneration"),
        pcie_width=ask("nvmlDeviceGetMaxPcieLinkWidth"),
        active_nvlinks=sum(bool(ask("nvmlDeviceGetNvLinkState", link)) for link in range(MAX_NVLINKS)),
        peers=tuple(
            (other, TOPOLOGY_LEVELS.get(int(level), f"level {level}"))
            for other in range(len(handles))
            if other != index and (level := ask("nvmlDeviceGetTopologyCommonAncestor", handles[other])) is not None
        ),
    )


def _ask(nvml: Any, question: Callable[[], Any]) -> Any:
    """The answer, or None where this driver or GPU has none: sensors differ, and a missing one stops nothing."""
    try:
        return question()
    except nvml.NVMLError:
        return None


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _cpu_name(root: Path) -> str:
    for line in _read(root / "proc/cpuinfo").splitlines():
        if line.startswith("model name"):
            return f"{line.partition(':')[2].strip()} ({os.cpu_count()} threads)"
    return f"{platform.machine()} ({os.cpu_count()} threads)"


def _cpu_clock_mhz(root: Path) -> float | None:
    lines = _read(root / "proc/cpuinfo").splitlines()
    clocks = [float(line.partition(":")[2]) for line in lines if line.startswith("cpu MHz")]
    return sum(clocks) / len(clocks) if clocks else None


def _memory(root: Path) -> int:
    for line in _read(root / "proc/meminfo").splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    return 0


def _machine_id(root: Path) -> str:
    import hashlib

    text = _read(root / "etc/machine-id").strip() or platform.node()
    return "cpu-" + hashlib.sha256(text.encode()).hexdigest()[:16]
