"""From a device to a Profile in one call: plan the points, measure them, write rows and profile."""

from __future__ import annotations

import datetime
import hashlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from splitplan.catalogs.errors import InputError, MissingExtraError, Problem, ProfileError, shorten
from splitplan.catalogs.gpus import Gpu, find_gpu, load_gpus
from splitplan.catalogs.models import Model, find_model
from splitplan.profiler import nixl_source
from splitplan.profiler.collectives import CollectiveRunner
from splitplan.profiler.device import CpuDevice, CudaDevice, Device, DeviceLock, read_gpus
from splitplan.profiler.measure import Outcome, Progress, measure_plan
from splitplan.profiler.nixl_source import NixlRunner
from splitplan.profiler.points import MeasurementPlan, Request, make_plan
from splitplan.profiler.profile import Profile
from splitplan.profiler.rates import Rates, rates_of
from splitplan.profiler.rows import RowFile, profile_from_rows
from splitplan.profiler.runners import OperationRunner, Runner, RunnerByKind
from splitplan.profiler.store import save_profile
from splitplan.profiler.timer import CpuTimer, CudaTimer

DEFAULT_MODELS = ("llama-3.1-8b", "llama-3.1-70b", "qwen3-32b", "mixtral-8x7b")
ENGINE = "splitplan"
KV_SHARE_OF_MEMORY = 8  # one layer's KV under measurement takes at most an eighth of the device
CPU_KV_LIMIT_BYTES = 512 * 2**20
CPU_RANKS = 8  # processes that take the place of GPUs
MIN_BUDGET_S = 5.0
WEIGHT_DTYPES = ("bf16", "fp16", "fp8", "fp32")  # that some device has an operation for
KV_DTYPES = ("bf16", "fp16", "fp8")


@dataclass(frozen=True, slots=True)
class Options:
    """What a user asks to be profiled."""

    models: tuple[str, ...] = DEFAULT_MODELS
    tensor_parallel: tuple[int, ...] = ()  # empty: the powers of two up to the GPUs of one node; 1 on a CPU
    dtypes: tuple[str, ...] = ("bf16",)
    kv_dtypes: tuple[str, ...] = ("bf16",)
    budget_s: float | None = None


@dataclass(frozen=True, slots=True)
class Measured:
    """A finished run."""

    profile: Profile
    path: Path
    rows_path: Path
    plan: MeasurementPlan
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Bench:
    """A device made ready to be measured."""

    gpu: Gpu
    device: Device
    runner: Runner
    rates: Rates
    provenance: Mapping[str, str]
    host_gpus: int
    close: Callable[[], None] = lambda: None


def plan_without_hardware(gpu_name: str, options: Options) -> MeasurementPlan:
    """The points that would be measured on a GPU of the catalog, and how long that would take."""
    gpu = find_gpu(gpu_name, where="--gpu")
    return plan_for_host(gpu, options, gpu.gpus_per_node)


def plan_for_host(gpu: Gpu, options: Options, host_gpus: int) -> MeasurementPlan:
    """The points for a host with `host_gpus` of a GPU that is not here."""
    return make_plan(_request(gpu, options, host_gpus), rates_of(gpu), _checked_budget(options.budget_s))


def measure_device(
    device: str,
    options: Options,
    path: Path | None = None,
    *,
    gpu_name: str = "",
    resume: bool = False,
    show: Callable[[Progress], None] = lambda progress: None,
    announce: Callable[[Bench, MeasurementPlan], None] = lambda bench, plan: None,
) -> Measured:
    """Measures "cpu", "cuda" or "cuda:N" and writes `path` (a Profile) and its rows beside it.

    Without a path it is `<gpu>.splitplan.npz` in the working folder.
    `budget_s` covers everything from this call on. Raises ProfileError where there is no such device,
    MissingExtraError where torch is missing.
    """
    start = time.monotonic()
    budget_s = _checked_budget(options.budget_s)
    models = _models(options)  # what can be wrong is checked before anything slow begins
    _check_dtypes(options)
    if path is not None and path.is_dir():
        raise InputError(Problem("is a folder", str(path), "-o", "a file to write, such as h100.npz"))
    bench = open_bench(device, gpu_name)
    path = path or Path(f"{bench.gpu.name}.{ENGINE}.npz")
    try:
        request = _request(bench.gpu, options, bench.host_gpus, models)
        request = replace(request, has_nixl=nixl_source.is_installed())
        left_s = None if budget_s is None else max(budget_s - (time.monotonic() - start), MIN_BUDGET_S / 2)
        plan = make_plan(request, bench.rates, left_s)
        announce(bench, plan)
        provenance = {**bench.provenance, "plan": plan.plan_hash[:16], "date": today()}
        rows_path = rows_path_of(path)
        with RowFile(rows_path, resume=resume) as rows:
            left_s = None if budget_s is None else budget_s - (time.monotonic() - start)
            outcome = measure_plan(
                plan, runner=bench.runner, rows=rows, provenance=provenance, budget_s=left_s, show=show
            )
            profile = profile_from_rows(
                rows.rows,
                gpu=bench.gpu.name,
                engine=ENGINE,
                engine_version=bench.provenance["torch"],
                provenance={**provenance, "rows": rows_path.name},
            )
    finally:
        bench.close()
    try:
        save_profile(profile, path)
    except OSError as error:
        problem = Problem(f"cannot be written: {error.strerror}", str(path), next_step=f"the rows are in {rows_path}")
        raise ProfileError(problem) from None
    return Measured(profile, path, rows_path, plan, outcome)


def rows_path_of(path: Path) -> Path:
    """`h100.npz` keeps its rows in `h100.rows.jsonl`."""
    return path.with_name(path.name.removesuffix(".npz") + ".rows.jsonl")


def parse_sizes(text: str) -> tuple[int, ...]:
    """(1, 2, 4) from "1,2,4"; () from ""."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isdigit() and 0 < int(part) <= 1024 for part in parts):
        raise InputError(Problem(f"is '{shorten(text)}'", "", "--tp", "sizes such as 1,2,4"))
    return tuple(sorted({int(part) for part in parts}))


def gpu_to_plan_for(device: str, gpu_name: str) -> str:
    """The catalog name of the GPU a plan is for: the one named, the CPU, or the one in this machine."""
    if gpu_name or device == "cpu":
        return find_gpu(gpu_name or "cpu", where="--gpu").name
    index = _cuda_index(device)
    readings = read_gpus()
    if index >= len(readings):
        raise ProfileError(Problem(f"no GPU {index}", "", "--device", f"an index below {len(readings)}"))
    return gpu_of_reading(readings[index].name).name


def open_bench(device: str, gpu_name: str = "") -> Bench:
    """Finds the device, then torch: the clearest answer first where both are missing."""
    if device == "cpu":
        return _open_cpu(gpu_name)
    if device == "cuda" or device.startswith("cuda:"):
        return _open_cuda(device, gpu_name)
    raise InputError(Problem(f"unknown device '{device}'", "", "--device", "cpu, cuda or cuda:N"))


def import_torch() -> Any:
    """The torch module, or MissingExtraError naming the extra."""
    try:
        import torch
    except ImportError:
        raise MissingExtraError("measuring", "gpu") from None
    return torch


def gpu_of_reading(name: str) -> Gpu:
    """The catalog entry of a GPU by the name NVML gives it."""
    for gpu in load_gpus().values():
        if name in gpu.nvml_names:
            return gpu
    raise ProfileError(
        Problem(
            f"no catalog entry has the NVML name '{name}'",
            next_step="--gpu NAME says which entry it is; docs/profiling.md shows how to add one",
        )
    )


def _open_cpu(gpu_name: str) -> Bench:
    # OpenMP's spinning threads can settle on one core together, and every call then waits for the scheduler's next tick
    # (8 ms, fifty times what a small product takes). Read once, when torch is first imported.
    os.environ.setdefault("OMP_PROC_BIND", "true")
    torch = import_torch()
    from splitplan.profiler import torch_operations

    device, timer = CpuDevice(), CpuTimer()
    collectives = {ranks: CollectiveRunner(ranks, "gloo") for ranks in range(2, CPU_RANKS + 1)}

    operations = OperationRunner(device, timer, torch_operations.TorchWorkbench(torch))
    nixl = NixlRunner(torch, "cpu", "cpu")
    return Bench(
        gpu=find_gpu(gpu_name or "cpu"),
        device=device,
        runner=RunnerByKind(operations, collectives, nixl),
        rates=torch_operations.measured_cpu_rates(torch, timer),
        provenance=device_provenance(device, torch, "torch CPU operations", Path(torch_operations.__file__)),
        host_gpus=CPU_RANKS,
        close=partial(_close, (*collectives.values(), nixl)),
    )


def _open_cuda(device: str, gpu_name: str) -> Bench:
    index = _cuda_index(device)
    readings = read_gpus()
    if not readings:
        raise ProfileError(Problem("the NVIDIA driver reports no GPU", next_step="nvidia-smi -L"))
    torch = import_torch()
    if not torch.cuda.is_available():
        problem = Problem("the installed torch cannot use CUDA", next_step="pip install a CUDA build of torch")
        raise ProfileError(problem)
    watched = CudaDevice(index)
    gpu = find_gpu(gpu_name) if gpu_name else gpu_of_reading(watched.reading.name)
    return _gpu_bench(torch, watched, gpu, index, len(readings))


def _gpu_bench(torch: Any, device: CudaDevice, gpu: Gpu, index: int, host_gpus: int) -> Bench:
    try:
        from splitplan.profiler import gpu_check, gpu_operations
    except ImportError:
        raise MissingExtraError("measuring a GPU", "gpu") from None
    lock = DeviceLock(device.identity.uuid)
    torch.cuda.set_device(index)
    gpu_check.check_attention(torch, f"cuda:{index}", torch.bfloat16)
    collectives = {ranks: CollectiveRunner(ranks, "nccl") for ranks in range(2, host_gpus + 1)}
    workbench = gpu_operations.GpuWorkbench(torch, f"cuda:{index}", gpu.l2_bytes)
    other = f"cuda:{(index + 1) % host_gpus}" if host_gpus > 1 else f"cuda:{index}"
    nixl = NixlRunner(torch, f"cuda:{index}", other)
    operations = OperationRunner(device, CudaTimer(torch), workbench)
    return Bench(
        gpu=gpu,
        device=device,
        runner=RunnerByKind(operations, collectives, nixl),
        rates=rates_of(gpu),
        provenance=device_provenance(device, torch, "own kernels", *kernel_sources()),
        host_gpus=host_gpus,
        close=partial(_close, (*collectives.values(), nixl, lock)),
    )


def _close(runners: Sequence[CollectiveRunner | NixlRunner | DeviceLock]) -> None:
    for runner in runners:
        runner.close()


def _cuda_index(device: str) -> int:
    number = device.partition(":")[2] or "0"
    if not number.isdigit():
        raise InputError(Problem(f"unknown device '{device}'", "", "--device", "cpu, cuda or cuda:N"))
    return int(number)


def kernel_sources() -> list[Path]:
    """Every source file that decides what runs on a GPU while it is measured."""
    here = Path(__file__).parent
    return [*(here.parent / "kernels").glob("*.py"), here / "gpu_operations.py", here / "torch_operations.py"]


def device_provenance(device: Device, torch: Any, how: str, *sources: Path) -> dict[str, str]:
    """What every row says about where it comes from; `kernels` is a hash of the measured code's sources."""
    identity = device.identity
    try:
        import triton

        triton_version = str(triton.__version__)
    except ImportError:
        triton_version = "none"
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sorted(sources)))
    return {
        "how": f"measured with {how}",
        "device": identity.name,
        "uuid": identity.uuid,
        "driver": identity.driver_version,
        "torch": str(torch.__version__),
        "triton": triton_version,
        "kernels": digest.hexdigest()[:16],
        "threads": str(torch.get_num_threads()),
    }


def _models(options: Options) -> tuple[Model, ...]:
    return tuple(find_model(name, where="--model") for name in options.models)


def _check_dtypes(options: Options) -> None:
    asked = (("--dtype", options.dtypes, WEIGHT_DTYPES), ("--kv-dtype", options.kv_dtypes, KV_DTYPES))
    problems = [
        Problem(f"is '{shorten(name)}'", "", key, " | ".join(known))
        for key, names, known in asked
        for name in names
        if name not in known
    ]
    if problems:
        raise InputError(problems)


def _request(gpu: Gpu, options: Options, host_gpus: int, models: tuple[Model, ...] | None = None) -> Request:
    _check_dtypes(options)
    is_cpu = gpu.name == "cpu"
    sizes = options.tensor_parallel or ((1,) if is_cpu else _powers_of_two(host_gpus))
    return Request(
        models=models if models is not None else _models(options),
        tensor_parallel=sizes,
        dtypes=options.dtypes,
        kv_dtypes=options.kv_dtypes,
        device_kind="cpu" if is_cpu else "cuda",
        kv_limit_bytes=CPU_KV_LIMIT_BYTES if is_cpu else gpu.memory_bytes // KV_SHARE_OF_MEMORY,
        link="nvlink" if gpu.nvlink else "pcie",
        host_gpus=host_gpus,
    )


def _powers_of_two(limit: int) -> tuple[int, ...]:
    return tuple(2**power for power in range(max(limit, 1).bit_length()))


def _checked_budget(budget_s: float | None) -> float | None:
    if budget_s is not None and not MIN_BUDGET_S <= budget_s < 1e6:
        problem = Problem(f"is {budget_s:g}", "", "--budget-s", f"seconds, at least {MIN_BUDGET_S:g}")
        raise InputError(problem)
    return budget_s


def today() -> str:
    """The date that goes into provenance."""
    return datetime.datetime.now(datetime.UTC).date().isoformat()
