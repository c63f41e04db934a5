"""Slurm: the batch script, and a real scheduler on this machine with four fake GPU nodes in two racks."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from splitplan.catalogs.errors import LaunchError
from splitplan.launcher.lifecycle import destroy, launch, logs, status
from splitplan.launcher.render import LaunchOptions, render
from splitplan.launcher.state import load_state, state_path
from splitplan.launcher.targets.slurm import SlurmOptions
from splitplan.planner.plan import Host, Instance, Plan
from tests.launcher.conftest import Start, lacking, own_port
from tests.launcher.plans import mixed_plan, plan, pool, route, slots, timing

NODES = {
    "h100-0": ("h100", "rack1"),
    "h100-1": ("h100", "rack2"),
    "a100-0": ("a100", "rack1"),
    "a100-1": ("a100", "rack2"),
}
CONTROLLER_PORT = own_port(21817)

CONFIG = """\
ClusterName=fake
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
AuthType=auth/munge
AuthInfo=socket={lab}/munge/munge.sock
CryptoType=crypto/munge
SlurmUser={user}
SlurmdUser=root
StateSaveLocation={lab}/state
SlurmdSpoolDir={lab}/spool/%n
SlurmctldPidFile={lab}/pid/slurmctld.pid
SlurmdPidFile={lab}/pid/slurmd-%n.pid
SlurmctldLogFile={lab}/log/slurmctld.log
SlurmdLogFile={lab}/log/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_min_interval=100000
TopologyPlugin=topology/tree
GresTypes=gpu
ReturnToService=2
SlurmdParameters=config_overrides
InactiveLimit=0
KillWait=3
"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Four nodes of 8 GPUs each, two H100 and two A100, one of each in each rack."""
    daemons = ("munged", "slurmctld", "slurmd")
    if any(not os.access(f"/usr/sbin/{name}", os.X_OK) for name in daemons) or not shutil.which("sbatch"):
        lacking("no Slurm on this machine")
    if os.getuid() != 0:
        lacking("the Slurm lab needs root for its fake GPU devices")
    folder = tmp_path_factory.mktemp("slurm")
    for name in ("state", "log", "pid", "munge", "dev", *(f"spool/{node}" for node in NODES)):
        (folder / name).mkdir(parents=True)
    _write_configuration(folder)
    (folder / "munge" / "key").write_bytes(os.urandom(1024))
    (folder / "munge" / "key").chmod(0o400)
    for number in range(8):
        os.mknod(folder / "dev" / f"nvidia{number}", 0o600 | 0o020000, os.makedev(195, number))
    before = os.environ.get("SLURM_CONF")
    os.environ["SLURM_CONF"] = str(folder / "slurm.conf")
    try:
        _start_daemons(folder)
        yield folder
    finally:
        for path in [*(folder / "pid").glob("*.pid"), folder / "munge" / "pid"]:
            if path.exists():
                subprocess.run(["kill", path.read_text().strip()], check=False, capture_output=True)
        if before is None:
            del os.environ["SLURM_CONF"]
        else:
            os.environ["SLURM_CONF"] = before
        time.sleep(1.0)


def _write_configuration(folder: Path) -> None:
    host = socket.gethostname().partition(".")[0]
    text = CONFIG.format(host=host, port=CONTROLLER_PORT, lab=folder, user="root")
    for number, (node, (gpu, rack)) in enumerate(NODES.items(), start=1):
        text += (
            f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={CONTROLLER_PORT + number} CPUs=64 "
            f"Sockets=2 CoresPerSocket=32 ThreadsPerCore=1 RealMemory=500000 Gres=gpu:{gpu}:8 "
            f"Feature={gpu},{rack} State=UNKNOWN\n"
        )
    text += f"PartitionName=all Nodes={','.join(NODES)} Default=YES MaxTime=INFINITE State=UP\n"
    (folder / "slurm.conf").write_text(text)
    devices = f"{folder}/dev/nvidia[0-7] Flags=nvidia_gpu_env"
    (folder / "gres.conf").write_text(
        "AutoDetect=off\n"
        + "".join(f"NodeName={node} Name=gpu Type={gpu} File={devices}\n" for node, (gpu, _) in NODES.items())
    )
    (folder / "topology.conf").write_text(
        "SwitchName=rack1 Nodes=h100-0,a100-0\nSwitchName=rack2 Nodes=h100-1,a100-1\n"
        "SwitchName=spine Switches=rack[1-2]\n"
    )


def _start_daemons(folder: Path) -> None:
    munge = folder / "munge"
    for path in (folder, *folder.parents):  # munged wants to be sure that nobody else can write above its socket
        path.chmod(path.stat().st_mode & ~0o022 | 0o011) if path.stat().st_uid == os.getuid() and path != Path(
            "/tmp"
        ) else None
    keys = {"key-file": "key", "socket": "munge.sock", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
    options = [f"--{option}={munge / name}" for option, name in keys.items()]
    subprocess.run(["/usr/sbin/munged", "--force", *options], check=True)
    subprocess.run(["/usr/sbin/slurmctld", "-f", str(folder / "slurm.conf")], check=True)
    for node in NODES:
        subprocess.run(["/usr/sbin/slurmd", "-f", str(folder / "slurm.conf"), "-N", node], check=True)
    for _ in range(150):
        listed = subprocess.run(["sinfo", "-h", "-o", "%T %D"], capture_output=True, text=True)
        if listed.stdout.split() == ["idle", "4"]:
            return
        time.sleep(0.2)
    pytest.fail(f"the lab's nodes are not idle: {listed.stdout}{listed.stderr}")


def lab_plan(*, decode_gpus: int = 4, prefill_nodes: tuple[str, ...] = ("h100-0", "h100-1")) -> Plan:
    """A prefill TP2 and a decode TP4 instance in each rack; every node answers at this machine's address."""
    quick = timing(prefill_us_per_token=20.0, step_ms=2.0)
    prefill = [
        Instance(name=f"prefill-{n}", rack=NODES[node][1], gpus=slots((node, (0, 1))))
        for n, node in enumerate(prefill_nodes)
    ]
    decode = [
        Instance(name=f"decode-{n}", rack=NODES[node][1], gpus=slots((node, range(decode_gpus))))
        for n, node in enumerate(("a100-0", "a100-1"))
    ]
    pools = [
        pool("prefill h100-sxm tp2", "prefill", "h100-sxm", prefill, tp=2, timing=quick),
        pool(f"decode a100-sxm-80 tp{decode_gpus}", "decode", "a100-sxm-80", decode, tp=decode_gpus, timing=quick),
    ]
    hosts = [Host(name=node, rack=rack, address="127.0.0.1") for node, (_, rack) in NODES.items()]
    return plan(pools, [route("prefill-0", "decode-0", 0.5), route("prefill-1", "decode-1", 0.5)], hosts)


def lab_options(base_port: int) -> LaunchOptions:
    return LaunchOptions(target="slurm", engine="mock", base_port=own_port(base_port))


def jobs() -> list[str]:
    return subprocess.run(["squeue", "-h"], capture_output=True, text=True, check=True).stdout.splitlines()


def test_the_script_asks_for_the_planned_nodes_and_gpus() -> None:
    """One component a node; one step a process, each with its own GPUs."""
    text = render(mixed_plan(), LaunchOptions(target="slurm"))["job.sbatch"]
    components = [line for line in text.splitlines() if line.startswith("#SBATCH --job-name")]
    assert text.count("#SBATCH hetjob") == 3
    assert [(re.search(r"--nodelist=(\S+)", each)[1], re.search(r"--gres=(\S+)", each)[1]) for each in components] == [  # type: ignore[index]
        ("h100-0", "gpu:h100:4"),
        ("h100-1", "gpu:h100:2"),
        ("a100-0", "gpu:a100:8"),
        ("a100-1", "gpu:a100:4"),
    ]
    steps = [shlex.split(line.removesuffix(" &")) for line in text.splitlines() if line.startswith("srun")]
    assert len(steps) == 7
    gres = [next(word for word in step if word.startswith("--gres=")) for step in steps]
    assert gres.count("--gres=gpu:h100:2") == 3
    assert gres.count("--gres=gpu:a100:4") == 3
    assert gres.count("--gres=none") == 1
    assert not [word for step in steps for word in step if "CUDA_VISIBLE_DEVICES" in word]
    assert all("--exact" in step for step in steps)


def test_a_rack_can_be_asked_for_instead_of_a_node() -> None:
    options = LaunchOptions(target="slurm", slurm=SlurmOptions(by_rack=True, partition="gpu", time_limit="1-00:00:00"))
    text = render(mixed_plan(), options)["job.sbatch"]
    assert text.count("--constraint=r1") == 2
    assert "--nodelist" not in text
    assert text.count("--partition=gpu --time=1-00:00:00") == 4


@pytest.mark.parametrize("name", ["a b", "x\n#SBATCH --uid=root", "$(touch PWNED)", 'q"'])
def test_names_that_sbatch_cannot_quote_are_refused(name: str) -> None:
    """#SBATCH lines have no quoting: nothing odd may reach them."""
    base = mixed_plan()
    text = base.model_dump_json().replace('"h100-0"', json.dumps(name))
    with pytest.raises(LaunchError, match="cannot be written into a batch script"):
        render(Plan.model_validate_json(text), LaunchOptions(target="slurm"))


def test_a_job_serves_is_seen_and_is_cancelled(lab: Path, start: Start, plan_file: Path) -> None:
    launched = start(lab_plan(), options=lab_options(21900), timeout_s=60.0)
    assert launched.report
    assert launched.report.passed
    assert launched.report.same_rack == launched.report.num_requests
    state, found = status(plan_file)
    assert len(found) == 5
    assert all(each.is_ready for each in found)
    assert "listens on 127.0.0.1" in logs(plan_file, ["decode-1"])["decode-1"][0]
    again = launch(lab_plan(), plan_file, lab_options(21900), timeout_s=60.0)
    assert again.state.extra["job"] == state.extra["job"]
    destroy(plan_file)
    assert jobs() == []
    assert load_state(state_path(plan_file)) is None


def test_each_step_gets_gpus_of_its_own(lab: Path, tmp_path: Path) -> None:
    """Two instances of two GPUs on one node see four different devices."""
    both = lab_plan(prefill_nodes=("h100-0", "h100-1"))
    prefill = both.pools[0]
    second = prefill.instances[1].model_copy(update={"gpus": slots(("h100-0", (2, 3)))})
    pools = (prefill.model_copy(update={"instances": (prefill.instances[0], second)}), both.pools[1])
    text = render(both.model_copy(update={"pools": pools}), lab_options(21900))["job.sbatch"]
    steps = re.sub(
        r"(--output=(\S+)).*&", rf"--output={tmp_path}/\2 sh -c 'printenv CUDA_VISIBLE_DEVICES; sleep 2' &", text
    )
    (tmp_path / "job.sbatch").write_text(steps)
    subprocess.run(
        ["sbatch", "--wait", f"--output={tmp_path}/job.log", str(tmp_path / "job.sbatch")],
        check=True,
        timeout=60,
        capture_output=True,
    )
    seen = [(tmp_path / f"prefill-{n}.log").read_text().strip().split(",") for n in range(2)]
    assert [len(each) for each in seen] == [2, 2]
    assert len({*seen[0], *seen[1]}) == 4


def test_a_plan_that_does_not_fit_is_refused_by_the_scheduler_itself(lab: Path, start: Start, plan_file: Path) -> None:
    """Sixteen GPUs of a node that has eight: sbatch --test-only says so, and nothing was submitted."""
    with pytest.raises(LaunchError, match="sbatch: "):
        start(lab_plan(decode_gpus=16), options=lab_options(21950))
    assert jobs() == []
    assert not state_path(plan_file).exists()


def test_a_step_that_dies_rolls_the_job_back(lab: Path, plan_file: Path) -> None:
    plan_file.write_text(lab_plan().model_dump_json())
    options = LaunchOptions(
        target="slurm",
        engine="mock",
        base_port=own_port(21970),
        faults={"decode-1": {"exit_after_s": 0.5, "start_delay_s": 30.0}},
    )
    with pytest.raises(LaunchError, match="decode-1 ended before it was ready"):
        launch(lab_plan(), plan_file, options, timeout_s=60.0)
    assert jobs() == []
