"""Profiling a fleet: one node of each kind, through what already runs there.

A job is a command that reads a request (`worker`) and whose output carries rows back. The four ways differ only in that
command; with Kubernetes the request travels in a ConfigMap and the rows come back in the Job's log.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from splitplan.catalogs.errors import InputError, Problem, ProfileError, shorten
from splitplan.catalogs.gpus import find_gpu
from splitplan.profiler.points import MeasurementPlan
from splitplan.profiler.profile import Profile
from splitplan.profiler.rows import Row, RowFile, profile_from_rows, read_rows
from splitplan.profiler.session import ENGINE, Options, plan_for_host, rows_path_of
from splitplan.profiler.store import save_profile
from splitplan.profiler.worker import END_LINE, make_request, row_of_line

Via = Literal["slurm", "ssh", "ray", "k8s"]
MAX_CONFIG_MAP_BYTES = 1_000_000  # Kubernetes allows 1 MiB with everything
WORKER = ("planner", "profile", "worker")


@dataclass(frozen=True, slots=True)
class NodeKind:
    """Nodes that measure the same: GPU type, number and what joins them. `node` stands for all of them."""

    gpu: str
    num_gpus: int
    link: str
    node: str
    product_label: str = ""  # nvidia.com/gpu.product, which Kubernetes selects by

    @property
    def name(self) -> str:
        """A name for files and jobs."""
        return re.sub(r"[^a-z0-9]+", "-", f"{self.gpu}-{self.num_gpus}x-{self.link}".lower()).strip("-")


@dataclass(frozen=True, slots=True)
class Job:
    """What profiles one kind of node."""

    kind: NodeKind
    path: Path  # of the profile
    plan: MeasurementPlan  # what is still missing
    finished: int  # rows that are there already
    command: tuple[str, ...]  # reads the request on stdin, writes rows on stdout
    manifest: str = ""  # Kubernetes only: applied first, the command then reads its log


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """How a job ended."""

    job: Job
    measured: int
    failed: int
    error: str = ""
    profile: Profile | None = None


def one_of_each(nodes: Iterable[NodeKind]) -> list[NodeKind]:
    """The first node of every kind, in the fleet's order."""
    found: dict[tuple[str, int, str], NodeKind] = {}
    for node in nodes:
        found.setdefault((node.gpu, node.num_gpus, node.link), node)
    return list(found.values())


def make_jobs(
    kinds: Sequence[NodeKind], via: Via, options: Options, folder: Path, *, image: str = "", device: str = "cuda"
) -> list[Job]:
    """One job for each kind of node, asking only for points that its rows file does not hold yet."""
    if via == "k8s" and not image:
        expected = "an image that has splitplan[gpu] installed"
        raise InputError(Problem("is missing", "", "--image", expected, "planner profile --via k8s --image …"))
    jobs = []
    for kind in kinds:
        path = folder / f"{kind.name}.{ENGINE}.npz"
        plan = plan_for_host(find_gpu(kind.gpu), options, kind.num_gpus)
        finished = _finished(rows_path_of(path))
        missing = tuple(point for point in plan.points if point.key not in finished)
        plan = replace(plan, points=missing)
        request = make_request(device, kind.gpu, plan, options.budget_s)
        if via == "k8s" and len(request) > MAX_CONFIG_MAP_BYTES:
            message = f"{len(missing)} points are more than a ConfigMap holds"
            raise InputError(Problem(message, kind.name, next_step="fewer --model, --tp or --dtype at a time"))
        manifest = job_manifest(kind, request, image) if via == "k8s" else ""
        jobs.append(Job(kind, path, plan, len(finished), _command(kind, via), manifest))
    return jobs


def _command(kind: NodeKind, via: Via) -> tuple[str, ...]:
    if via == "slurm":
        placed = (f"--nodelist={kind.node}", "--nodes=1", "--ntasks=1", f"--gpus-per-node={kind.num_gpus}")
        return ("srun", "--job-name=splitplan-profile", "--exclusive", *placed, *WORKER)
    if via == "ssh":
        return ("ssh", "-o", "BatchMode=yes", kind.node, shlex.join(WORKER))
    if via == "ray":
        return (sys.executable, "-m", "splitplan.profiler.ray_task", kind.node, str(kind.num_gpus))
    return ("kubectl", "logs", "--follow", "--pod-running-timeout=10m", f"job/{_job_name(kind)}")


def _job_name(kind: NodeKind) -> str:
    return f"splitplan-profile-{kind.name}"[:63].rstrip("-")


def job_manifest(kind: NodeKind, request: str, image: str) -> str:
    """A ConfigMap with the request and a Job on a node of this kind, as one List in JSON (which kubectl reads)."""
    name = _job_name(kind)
    selector = {"nvidia.com/gpu.product": kind.product_label} if kind.product_label else {}
    pod = {
        "restartPolicy": "Never",
        "nodeSelector": selector or {"kubernetes.io/hostname": kind.node},
        "containers": [
            {
                "name": "profile",
                "image": image,
                "command": [*WORKER, "--request", "/request/request.json"],
                "resources": {"limits": {"nvidia.com/gpu": kind.num_gpus}},
                "volumeMounts": [{"name": "request", "mountPath": "/request", "readOnly": True}],
            }
        ],
        "volumes": [{"name": "request", "configMap": {"name": name}}],
    }
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {"backoffLimit": 0, "ttlSecondsAfterFinished": 3600, "template": {"spec": pod}},
    }
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"request.json": request}}
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": [config, job]}, indent=2) + "\n"


def run_jobs(
    jobs: Sequence[Job],
    options: Options,
    device: str = "cuda",
    show: Callable[[Job, Row], None] = lambda job, row: None,
) -> list[JobOutcome]:
    """Runs all jobs side by side, each on its own node; one that fails stops neither the others nor its own rows."""
    outcomes: dict[int, JobOutcome] = {}

    def run(index: int, job: Job) -> None:
        outcomes[index] = _run_job(job, options, device, show)

    threads = [threading.Thread(target=run, args=item) for item in enumerate(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [outcomes[index] for index in range(len(jobs))]


def _run_job(job: Job, options: Options, device: str, show: Callable[[Job, Row], None]) -> JobOutcome:
    measured = failed = 0
    error = ""
    try:
        with RowFile(rows_path_of(job.path), resume=True) as rows:
            known = rows.rows[0].provenance if rows.rows else None
            for row in _rows_of(job, options, device) if job.plan.points else ():
                known = known or row.provenance
                _check_comparable(row, known)
                rows.append(row)
                measured += row.status == "measured"
                failed += row.status == "failed"
                show(job, row)
    except (ProfileError, OSError) as problem:
        error = str(problem)
    try:
        profile = _write_profile(job)
    except ProfileError as problem:
        return JobOutcome(job, measured, failed, error or str(problem))
    return JobOutcome(job, measured, failed, error, profile)


def _rows_of(job: Job, options: Options, device: str) -> Iterable[Row]:
    """Rows as the job's output brings them; ProfileError with the end of its error output when it fails."""
    request = make_request(device, job.kind.gpu, job.plan, options.budget_s)
    if job.manifest:
        _apply(job)
        request = ""
    process = subprocess.Popen(
        job.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    complaints: list[str] = []
    reader = threading.Thread(target=complaints.extend, args=(process.stderr,), daemon=True)
    reader.start()
    try:
        try:
            process.stdin.write(request + "\n")
            process.stdin.close()
        except BrokenPipeError:
            pass  # it ended before it read: its exit status says why
        is_whole = False
        for number, line in enumerate(process.stdout, 1):
            is_whole = is_whole or line == END_LINE
            row = row_of_line(line, f"{job.kind.name}:{number}")
            if row is not None:
                yield row
        status = process.wait()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        reader.join()
        process.stderr.close()
    if status or not is_whole:  # a log that ends says nothing of how its job ended
        end = shorten(" ".join(line.strip() for line in complaints[-4:]), 300)
        message = f"ended early, with status {status}: {end}"
        raise ProfileError(Problem(message, job.kind.name, next_step="the same command again resumes"))


def _apply(job: Job) -> None:
    """Starts a Kubernetes Job anew: one that is there, finished or not, cannot be changed."""
    _kubectl("", "delete", "--ignore-not-found", f"job/{_job_name(job.kind)}")
    _kubectl(job.manifest, "apply", "-f", "-")


def _kubectl(text: str, *arguments: str) -> None:
    done = subprocess.run(["kubectl", *arguments], input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ProfileError(Problem(f"kubectl {arguments[0]} failed: {shorten(done.stderr, 300)}"))


def _finished(rows_path: Path) -> set[str]:
    return {row.key for row in read_rows(rows_path)} if rows_path.exists() else set()


def _check_comparable(row: Row, known: Mapping[str, str]) -> None:
    """Another GPU of the same kind may go on, another software or another type may not."""
    for name in ("device", "driver", "torch", "triton", "kernels"):
        there, here = known.get(name, ""), row.provenance.get(name, "")
        if there != here:
            problem = Problem(
                f"earlier rows were measured with {name} '{there}', this node has '{here}'",
                next_step="choose another -o: rows of both must not end in one table",
            )
            raise ProfileError(problem)


def _write_profile(job: Job) -> Profile:
    rows_path = rows_path_of(job.path)
    rows = read_rows(rows_path)
    provenance = dict(rows[-1].provenance) if rows else {}
    profile = profile_from_rows(
        rows,
        gpu=job.kind.gpu,
        engine=ENGINE,
        engine_version=provenance.get("torch", ""),
        provenance={**provenance, "rows": rows_path.name, "node": job.kind.node},
    )
    save_profile(profile, job.path)
    return profile
