"""Hosts over ssh, tried on loopback: a real sshd of our own, real scripts, a real probe."""

from __future__ import annotations

import getpass
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from splitplan.catalogs.errors import LaunchError
from splitplan.launcher.lifecycle import destroy, launch, logs, status
from splitplan.launcher.processes import start_ticks
from splitplan.launcher.render import LaunchOptions
from splitplan.launcher.state import state_path
from splitplan.launcher.targets.ssh import SshTarget
from splitplan.planner.plan import Host, Plan
from tests.launcher.conftest import Start, lacking, own_port
from tests.launcher.plans import small_plan

SSHD = "/usr/sbin/sshd"
PORT = own_port(20222)


@pytest.fixture(scope="module")
def ssh_config(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An ssh client configuration that gets into an sshd of our own on loopback."""
    if not os.access(SSHD, os.X_OK) or not shutil.which("ssh-keygen"):
        lacking("no sshd on this machine")
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    folder = tmp_path_factory.mktemp("sshd")
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    (folder / "sshd_config").write_text(
        f"ListenAddress 127.0.0.1:{PORT}\nHostKey {folder}/host\nAuthorizedKeysFile {folder}/user.pub\nStrictModes no\n"
        f"PasswordAuthentication no\nPermitRootLogin yes\nPidFile {folder}/pid\nUsePAM no\n"
    )
    host_key = " ".join((folder / "host.pub").read_text().split()[:2])
    (folder / "known_hosts").write_text(f"[127.0.0.1]:{PORT} {host_key}\n")
    config = folder / "config"
    config.write_text(
        f"Host *\n  Port {PORT}\n  User {getpass.getuser()}\n  IdentityFile {folder}/user\n  IdentitiesOnly yes\n"
        f"  UserKnownHostsFile {folder}/known_hosts\n  StrictHostKeyChecking yes\n  LogLevel ERROR\n"
    )
    daemon = subprocess.Popen([SSHD, "-D", "-f", str(folder / "sshd_config"), "-E", str(folder / "log")])
    try:
        for _ in range(50):
            if subprocess.run(["ssh", "-F", str(config), "127.0.0.1", "true"], capture_output=True).returncode == 0:
                break
            time.sleep(0.1)
        else:
            pytest.fail(f"sshd does not answer: {(folder / 'log').read_text()}")
        yield config
    finally:
        daemon.terminate()
        daemon.wait(10)


def on_loopback(plan: Plan) -> Plan:
    """Every node of the plan is this machine."""
    nodes = {slot.node: each.rack for pool in plan.pools for each in pool.instances for slot in each.gpus}
    hosts = tuple(Host(name=node, rack=rack, address="127.0.0.1") for node, rack in nodes.items())
    return plan.model_copy(update={"hosts": hosts})


def ssh_options(config: Path, folder: Path, base_port: int = 20300) -> LaunchOptions:
    return LaunchOptions(
        target="ssh",
        engine="mock",
        base_port=own_port(base_port),
        ssh_config=str(config),
        remote_folder=str(folder / "remote"),
    )


def test_a_cluster_over_ssh_serves_and_is_taken_down(
    ssh_config: Path, start: Start, plan_file: Path, tmp_path: Path
) -> None:
    launched = start(on_loopback(small_plan(num_pairs=2)), options=ssh_options(ssh_config, tmp_path))
    assert launched.report
    assert launched.report.passed
    assert launched.report.same_rack == launched.report.num_requests
    _, found = status(plan_file)
    assert len(found) == 5
    assert all(each.is_ready for each in found)
    assert "listens on 127.0.0.1" in logs(plan_file, ["prefill-1"])["prefill-1"][0]
    scripts = list((tmp_path / "remote").rglob("*.sh"))
    assert len(scripts) == 4
    assert all(path.stat().st_mode & 0o077 == 0 for path in scripts)
    pids = [int(path.read_text().split()[0]) for path in (tmp_path / "remote").rglob("*.pid")]
    assert len(pids) == 5
    destroy(plan_file)
    assert not [pid for pid in pids if start_ticks(pid)]  # a zombie counts as gone
    assert not state_path(plan_file).exists()


def test_a_failed_start_over_ssh_is_rolled_back(ssh_config: Path, plan_file: Path, tmp_path: Path) -> None:
    plan = on_loopback(small_plan())
    plan_file.write_text(plan.model_dump_json())
    options = ssh_options(ssh_config, tmp_path, 20400)
    broken = replace(options, faults={"decode-0": {"exit_after_s": 0.1, "start_delay_s": 9}})
    with pytest.raises(LaunchError, match="decode-0 ended before it was ready"):
        launch(plan, plan_file, broken, timeout_s=20)
    assert not list((tmp_path / "remote").rglob("*.pid"))
    assert not state_path(plan_file).exists()


def test_a_host_that_cannot_be_reached_is_said_before_anything_starts(
    ssh_config: Path, plan_file: Path, tmp_path: Path
) -> None:
    """Both hosts at once, and nothing was started on the one that answers."""
    plan = small_plan()
    hosts = (
        Host(name="h100-sxm-0", rack="r0", address="127.0.0.1"),
        Host(name="a100-sxm-80-0", rack="r0", address="nowhere.invalid"),
    )
    plan = plan.model_copy(update={"hosts": hosts})
    plan_file.write_text(plan.model_dump_json())
    with pytest.raises(LaunchError, match=r"ssh to nowhere\.invalid failed"):
        launch(plan, plan_file, ssh_options(ssh_config, tmp_path), timeout_s=20)
    assert not (tmp_path / "remote").exists()


def test_a_host_lost_during_the_start_stays_in_the_state_for_a_later_destroy(
    ssh_config: Path, plan_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What cannot be stopped now is not forgotten."""
    plan = on_loopback(small_plan())
    plan_file.write_text(plan.model_dump_json())
    options = replace(ssh_options(ssh_config, tmp_path, 20500), faults={"decode-0": {"never_ready": True}})

    def unreachable(self: SshTarget, which: object, state: object) -> None:
        raise LaunchError("ssh to 127.0.0.1 failed: no route")

    with monkeypatch.context() as patch:
        patch.setattr(SshTarget, "stop", unreachable)
        with pytest.raises(LaunchError, match="not everything could be stopped: ssh to"):
            launch(plan, plan_file, options, timeout_s=1.0)
    assert len(destroy(plan_file)) == 3
    assert not list((tmp_path / "remote").rglob("*.pid"))


def test_an_engine_that_is_missing_on_a_host_is_said(ssh_config: Path, plan_file: Path, tmp_path: Path) -> None:
    plan = on_loopback(small_plan())
    plan_file.write_text(plan.model_dump_json())
    options = LaunchOptions(target="ssh", model_path="m/x", checkpoint_dtype="bf16", ssh_config=str(ssh_config))
    with pytest.raises(LaunchError, match=r"vllm is not installed on h100-sxm-0"):
        launch(plan, plan_file, options)
