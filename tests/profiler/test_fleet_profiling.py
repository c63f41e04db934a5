"""Profiling a fleet: one node of each kind, rows home as they come, a second run asks only for what is missing.

srun, ssh and kubectl are stand-ins on PATH that start a stand-in worker: what is real is everything on this side.
"""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from splitplan.catalogs.errors import InputError, ProfileError, UsageError
from splitplan.planner.spec.fleet import load_fleet
from splitplan.planner.spec.profile_fleet import fleet_jobs, node_kinds
from splitplan.profiler import ray_task
from splitplan.profiler.fleet import NodeKind, make_jobs, one_of_each, run_jobs
from splitplan.profiler.points import make_point
from splitplan.profiler.rows import read_rows
from splitplan.profiler.session import Options, rows_path_of
from splitplan.profiler.store import load_profile
from splitplan.profiler.worker import END_LINE, row_of_line, serve

OPTIONS = Options(models=("qwen3-0.6b",), tensor_parallel=(1,), budget_s=20)
H100 = NodeKind("h100-sxm", 8, "nvlink4", "h100-1", "NVIDIA-H100-80GB-HBM3")
L40S = NodeKind("l40s", 4, "pcie4-x16", "l40s-1", "NVIDIA-L40S")

WORKER = """#!{python}
# Measures nothing: answers each point with a time, as a worker would. DIE_AFTER rows it is killed.
import json, os, sys
text = open(os.environ["REQUEST"]).read() if os.environ.get("REQUEST") else sys.stdin.readline()
request = json.loads(text)
asked = [os.path.basename(sys.argv[0]), sys.argv[1:], len(request["points"])]
open(os.environ["ASKED"], "a").write(json.dumps(asked) + "\\n")
print("a line of somebody's login script")
provenance = dict(device=request["gpu"], uuid=str(os.getpid()), driver="1", torch=os.environ.get("TORCH", "2"))
for number, point in enumerate(request["points"]):
    if number == int(os.environ.get("DIE_AFTER", "-1")):
        print("out of luck", file=sys.stderr)
        sys.exit(3)
    shape = dict(point["shape"])
    row = dict(version=1, key=" ".join([point["family"], *(f"{{n}}={{v}}" for n, v in point["shape"])]))
    row |= dict(family=point["family"], shape=shape, status="measured", median_s=1e-3, p20_s=9e-4, p80_s=2e-3)
    print("row " + json.dumps(row | dict(repetitions=3, provenance=provenance)), flush=True)
print("rows end")
"""


@pytest.fixture
def stand_ins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """srun, ssh and kubectl on PATH; returns the file where each notes how it was called."""
    folder = tmp_path / "bin"
    folder.mkdir()
    worker = WORKER.format(python=sys.executable)
    body = worker.partition("\n")[2]
    kubectl = (
        f"#!{sys.executable}\nimport json, os, sys\n"
        "if sys.argv[1] == 'apply':\n"
        "    items = json.load(sys.stdin)['items']\n"
        "    open(os.environ['REQUEST'], 'w').write(items[0]['data']['request.json'])\n"
        "if sys.argv[1] != 'logs':\n    sys.exit(0)\n" + body
    )
    for name, text in (("srun", worker), ("ssh", worker), ("kubectl", kubectl)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755 | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("ASKED", str(tmp_path / "asked"))
    return tmp_path / "asked"


def asked(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_one_node_stands_for_all_of_its_kind() -> None:
    """four-racks has H100, A100 and L40S hosts: three jobs, whatever the number of nodes."""
    fleet = load_fleet("four-racks")
    kinds = one_of_each(node_kinds(fleet))
    assert [kind.gpu for kind in kinds] == ["h100-sxm", "a100-sxm-80", "l40s"]
    assert len(fleet.nodes) > len(kinds)


def test_nodes_with_another_number_of_gpus_are_another_kind() -> None:
    four = NodeKind("h100-sxm", 4, "nvlink4", "h100-9")
    assert one_of_each([H100, four, H100]) == [H100, four]


@pytest.mark.parametrize(("via", "program"), [("slurm", "srun"), ("ssh", "ssh")])
def test_rows_come_home_and_become_a_profile_of_each_kind(
    via: Any, program: str, stand_ins: Path, tmp_path: Path
) -> None:
    jobs = make_jobs([H100, L40S], via, OPTIONS, tmp_path / "profiles")
    outcomes = run_jobs(jobs, OPTIONS)
    assert [outcome.error for outcome in outcomes] == ["", ""]
    for outcome in outcomes:
        assert outcome.measured == len(outcome.job.plan.points) > 20
        profile = load_profile(outcome.job.path)
        assert profile.gpu == outcome.job.kind.gpu
        assert profile.provenance["node"] == outcome.job.kind.node
    calls = asked(stand_ins)
    assert {call[0] for call in calls} == {program}
    assert any("h100-1" in " ".join(call[1]) for call in calls)


def test_a_killed_job_keeps_its_rows_and_the_second_run_asks_for_the_rest(
    stand_ins: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "profiles"
    monkeypatch.setenv("DIE_AFTER", "5")
    first = make_jobs([H100], "slurm", OPTIONS, folder)
    (outcome,) = run_jobs(first, OPTIONS)
    assert "status 3" in outcome.error
    assert "out of luck" in outcome.error
    assert outcome.measured == 5
    monkeypatch.delenv("DIE_AFTER")
    second = make_jobs([H100], "slurm", OPTIONS, folder)
    assert second[0].finished == 5
    (outcome,) = run_jobs(second, OPTIONS)
    assert outcome.error == ""
    keys = [row.key for row in read_rows(rows_path_of(outcome.job.path))]
    assert len(keys) == len(set(keys)) == len(first[0].plan.points)
    assert [call[2] for call in asked(stand_ins)] == [len(keys), len(keys) - 5]
    (third,) = make_jobs([H100], "slurm", OPTIONS, folder)
    assert third.plan.points == ()
    (outcome,) = run_jobs([third], OPTIONS)
    assert (outcome.measured, outcome.error) == (0, "")
    assert len(asked(stand_ins)) == 2, "a finished kind must not be visited again"


def test_other_software_on_the_node_does_not_mix_with_earlier_rows(
    stand_ins: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "profiles"
    monkeypatch.setenv("DIE_AFTER", "5")
    run_jobs(make_jobs([H100], "slurm", OPTIONS, folder), OPTIONS)
    monkeypatch.delenv("DIE_AFTER")
    monkeypatch.setenv("TORCH", "3")
    (outcome,) = run_jobs(make_jobs([H100], "slurm", OPTIONS, folder), OPTIONS)
    assert "torch '2', this node has '3'" in outcome.error
    assert outcome.measured == 0


def test_kubernetes_gets_a_job_and_its_log_brings_the_rows(
    stand_ins: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REQUEST", str(tmp_path / "request"))
    (job,) = make_jobs([L40S], "k8s", OPTIONS, tmp_path / "profiles", image="registry/splitplan")
    config, manifest = json.loads(job.manifest)["items"]
    pod = manifest["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-L40S"}
    assert pod["containers"][0]["resources"] == {"limits": {"nvidia.com/gpu": 4}}
    assert pod["containers"][0]["image"] == "registry/splitplan"
    assert pod["volumes"][0]["configMap"]["name"] == config["metadata"]["name"] == manifest["metadata"]["name"]
    (outcome,) = run_jobs([job], OPTIONS)
    assert outcome.error == ""
    assert outcome.measured == len(job.plan.points)


def test_a_log_that_ends_before_its_job_did_is_an_error(
    stand_ins: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`kubectl logs` ends well whatever became of the Job: only the worker's last line tells."""
    script = Path(os.environ["PATH"].split(os.pathsep)[0]) / "ssh"
    script.write_text(script.read_text().replace('print("rows end")', ""))
    (outcome,) = run_jobs(make_jobs([H100], "ssh", OPTIONS, tmp_path / "profiles"), OPTIONS)
    assert "ended early, with status 0" in outcome.error


def test_a_program_that_is_not_installed_is_one_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (outcome,) = run_jobs(make_jobs([H100], "slurm", OPTIONS, tmp_path / "profiles"), OPTIONS)
    assert "srun" in outcome.error
    assert not rows_path_of(outcome.job.path).read_text()


def test_kubernetes_needs_an_image() -> None:
    with pytest.raises(InputError, match="--image"):
        make_jobs([H100], "k8s", OPTIONS, Path("profiles"))


def test_via_needs_a_fleet() -> None:
    with pytest.raises(UsageError, match="--fleet"):
        fleet_jobs("", "slurm", OPTIONS, Path("profiles"))


class FakeRay:
    """Ray's part in a task, in this process: nodes, remote, streaming references."""

    def __init__(self) -> None:
        self.options: dict[str, Any] = {}

    def init(self, **_: Any) -> None:
        pass

    def shutdown(self) -> None:
        pass

    def nodes(self) -> list[dict[str, Any]]:
        return [
            {"Alive": True, "NodeName": "n1", "NodeManagerHostname": "h100-1", "NodeManagerAddress": "10.0.0.7"},
            {"Alive": False, "NodeName": "n2", "NodeManagerHostname": "h100-2", "NodeManagerAddress": "10.0.0.8"},
        ]

    def remote(self, function: Any) -> Any:
        fake = self

        class Task:
            def options(self, **options: Any) -> Task:
                fake.options = options
                return self

            def remote(self, request: str) -> Any:
                return function(request)

        return Task()

    def get(self, reference: str) -> str:
        return reference


def test_a_ray_task_is_pinned_to_its_node_and_streams_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    ray, lines = FakeRay(), []
    monkeypatch.setattr(
        "splitplan.profiler.worker.serve", lambda request, write: [write(f"row {request}"), write("end")]
    )
    ray_task.run_task(ray, "h100-1", 8, "x", lines.append)
    assert lines == ["row x", "end"]
    assert ray.options == {"num_gpus": 8, "resources": {"node:10.0.0.7": 0.001}, "num_returns": "streaming"}


def test_a_node_that_ray_does_not_know_is_named() -> None:
    with pytest.raises(ProfileError, match="no live node 'h100-2'"):
        ray_task.run_task(FakeRay(), "h100-2", 8, "x", print)


def test_what_a_ray_task_raises_comes_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(request: str, write: Any) -> None:
        raise ProfileError("no driver there")

    monkeypatch.setattr("splitplan.profiler.worker.serve", fail)
    with pytest.raises(ProfileError, match="no driver there"):
        ray_task.run_task(FakeRay(), "h100-1", 8, "x", print)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 99}', "null", '{"version": 1, "points": 3}'])
def test_what_is_no_request_is_refused(text: str) -> None:
    with pytest.raises(ProfileError, match="request"):
        serve(text, print)


def test_chatter_between_rows_is_not_a_row() -> None:
    assert row_of_line("Welcome to h100-1!\n", "h100:1") is None
    assert row_of_line(END_LINE, "h100:2") is None


def test_a_worker_on_this_cpu_measures_what_it_is_asked() -> None:
    """The real far end, without a way in between."""
    pytest.importorskip("torch", reason="needs torch (extra gpu)")
    from splitplan.profiler.points import MeasurementPlan
    from splitplan.profiler.timer import Effort
    from splitplan.profiler.worker import make_request

    points = tuple(make_point("gemm", {"dtype": "fp32", "n": 8, "k": 8, "m": m}) for m in (1, 2))
    lines: list[str] = []
    serve(make_request("cpu", "cpu", MeasurementPlan(points, (), Effort(0.001, 0.002), 0.0), None), lines.append)
    assert lines[-1] == END_LINE
    rows = [row for line in lines if (row := row_of_line(line, "here")) is not None]
    assert [row.key for row in rows] == [point.key for point in points]
    assert all(row.status == "measured" for row in rows)
