"""Shell scripts for bare hosts."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from splitplan.catalogs.errors import LaunchError
from splitplan.launcher.cluster import PortBases, place
from splitplan.launcher.files import write_folder
from splitplan.launcher.render import LaunchOptions, render
from tests.launcher.plans import HOSTILE, combined_plan, hostile_plan, mixed_plan, pipelined_plan

MODEL = "meta-llama/Llama-3.1-70B"
OPTIONS = LaunchOptions(model_path=MODEL, checkpoint_dtype="bf16")


def scripts(files: dict[str, str]) -> dict[str, str]:
    return {name: text for name, text in files.items() if name.startswith("hosts/")}


def command_of(script: str, service: str) -> list[str]:
    """The words that bash would run for a service."""
    body = re.search(rf"^run_{service.replace('-', '_')}\(\) {{\n(.*?)\n}}", script, re.M | re.S)
    assert body
    return shlex.split(body.group(1).replace("\\\n", " "))


def option(words: list[str], name: str) -> str:
    return words[words.index(name) + 1]


def test_the_plan_s_numbers_become_flags() -> None:
    """Parallelism, limits, dtypes and memory are those of the plan, so that the engine runs at the planned batch."""
    words = command_of(render(mixed_plan(), OPTIONS)["hosts/a100-0.sh"], "decode-1")
    assert words[:2] == ["exec", "env"]
    assert "CUDA_VISIBLE_DEVICES=4,5,6,7" in words
    assert "VLLM_NIXL_SIDE_CHANNEL_HOST=10.0.1.2" in words
    expected = {
        "--tensor-parallel-size": "4",
        "--pipeline-parallel-size": "1",
        "--max-model-len": "16384",
        "--max-num-seqs": "96",
        "--max-num-batched-tokens": "2048",
        "--gpu-memory-utilization": "0.9",
        "--block-size": "16",
        "--dtype": "bfloat16",
        "--kv-cache-dtype": "auto",
        "--attention-backend": "FLASH_ATTN",
        "--host": "10.0.1.2",
    }
    assert {name: option(words, name) for name in expected} == expected
    assert words[words.index("serve") + 1] == MODEL
    assert json.loads(option(words, "--kv-transfer-config"))["kv_role"] == "kv_consumer"


def test_prefill_produces_and_decode_consumes() -> None:
    """Each side has its role of the connector and the same model, dtype, KV dtype, block size and backend."""
    files = render(mixed_plan(), OPTIONS)
    prefill = command_of(files["hosts/h100-0.sh"], "prefill-0")
    decode = command_of(files["hosts/a100-0.sh"], "decode-0")
    assert json.loads(option(prefill, "--kv-transfer-config"))["kv_role"] == "kv_producer"
    for name in ("--dtype", "--kv-cache-dtype", "--block-size", "--attention-backend", "--served-model-name"):
        assert option(prefill, name) == option(decode, name)
    assert prefill[prefill.index("serve") + 1] == decode[decode.index("serve") + 1]


def test_no_port_is_used_twice_on_a_host() -> None:
    """HTTP, side-channel (one for each GPU of an instance), bootstrap and router ports never meet on one address."""
    cluster = place(
        mixed_plan(), model_path=MODEL, addresses=dict.fromkeys(("h100-0", "h100-1", "a100-0", "a100-1"), "h")
    )
    ports = [cluster.router.port, cluster.router.metrics_port]
    for member in cluster.members:
        first = member.ports.side_channel
        ports += [member.ports.http, *range(first, first + member.pool.gpus_per_instance)]
        ports += [member.ports.bootstrap] if member.ports.bootstrap else []
    assert len(ports) == len(set(ports))


def test_ports_stay_apart_from_one_base() -> None:
    cluster = place(mixed_plan(), model_path=MODEL, bases=PortBases.all_from(20000))
    by_host: dict[str, list[int]] = {cluster.router.host.name: [cluster.router.port]}
    for member in cluster.members:
        by_host.setdefault(member.host.name, []).extend((member.ports.http, member.ports.side_channel))
    assert all(len(ports) == len(set(ports)) and min(ports) >= 20000 for ports in by_host.values())


def test_router_lists_every_instance_once() -> None:
    files = render(mixed_plan(), OPTIONS)
    words = command_of(files["hosts/a100-0.sh"], "router")
    assert words.count("--prefill") == 3
    assert words.count("--decode") == 3
    assert "--vllm-pd-disaggregation" in words
    described = json.loads(files["cluster.json"])
    urls = {entry["url"] for entry in described["instances"]}
    assert urls == {words[i + 1] for i, word in enumerate(words) if word in ("--prefill", "--decode")}


def test_an_instance_over_two_nodes_has_a_headless_second_rank() -> None:
    files = render(pipelined_plan(), OPTIONS)
    first = command_of(files["hosts/h100-0.sh"], "prefill-0")
    script = files["hosts/h100-1.sh"]
    second_name = re.search(r"^run_(\w+)\(\)", script, re.M)
    assert second_name
    second = command_of(script, second_name.group(1).replace("_", "-"))
    for words, rank in ((first, "0"), (second, "1")):
        assert option(words, "--nnodes") == "2"
        assert option(words, "--node-rank") == rank
        assert option(words, "--master-addr") == "h100-0"
        assert option(words, "--pipeline-parallel-size") == "2"
    assert "--headless" in second
    assert "--headless" not in first
    assert option(first, "--master-port") == option(second, "--master-port")


def test_prefill_in_stages_pushes_its_kv_and_the_router_is_told_nixl() -> None:
    """Both sides run the pushing connector, which compares its mode in the handshake."""
    files = render(pipelined_plan(), OPTIONS)
    sides = command_of(files["hosts/h100-0.sh"], "prefill-0"), command_of(files["hosts/h100-2.sh"], "decode-0")
    for words in sides:
        assert json.loads(option(words, "--kv-transfer-config"))["kv_connector"] == "NixlPushConnector"
    assert "--vllm-pd-disaggregation --kv-connector nixl --prefill" in files["hosts/h100-2.sh"]


def test_a_plan_with_both_kinds_gets_two_routers_and_says_the_split() -> None:
    files = render(combined_plan(), OPTIONS)
    assert len(json.loads(files["cluster.json"])["endpoints"]) == 2
    assert "send 25 % of the requests" in files["README.md"]
    colocated = command_of(files["hosts/h100-1.sh"], "colocated-0")
    assert "--kv-transfer-config" not in colocated


def test_rendering_twice_gives_the_same_bytes() -> None:
    assert render(mixed_plan(), OPTIONS) == render(mixed_plan(), OPTIONS)


def test_hostile_names_stay_words_in_the_scripts(tmp_path: Path) -> None:
    """Names of models, nodes, racks and instances are never run, never leave the folder and never end a comment."""
    options = LaunchOptions(model_path=HOSTILE[2], checkpoint_dtype="bf16", served_name=HOSTILE[1])
    files = render(hostile_plan(), options)
    write_folder(files, tmp_path / "out")
    assert not [path for path in tmp_path.rglob("*") if path.name == "PWNED"]
    assert all(path.is_relative_to(tmp_path / "out") for path in tmp_path.rglob("*.sh"))
    for name, text in scripts(files).items():
        subprocess.run(["bash", "-n", str(tmp_path / "out" / name)], check=True)
        for service in re.findall(r"^run_(\w+)\(\)", text, re.M):
            words = command_of(text, service)
            if "serve" in words:
                assert words[words.index("serve") + 1] == HOSTILE[2]
                assert option(words, "--served-model-name") == HOSTILE[1]


def test_hostile_names_run_nothing(tmp_path: Path) -> None:
    """The script is really started, with a `vllm` that prints its arguments: they arrive unchanged."""
    options = LaunchOptions(model_path=HOSTILE[2], checkpoint_dtype="bf16", served_name=HOSTILE[0])
    files = render(hostile_plan(), options)
    write_folder(files, tmp_path / "out")
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in ("vllm", "vllm-router"):
        (tools / tool).write_text('#!/bin/bash\nprintf "%s\\0" "$@"\n')
        (tools / tool).chmod(0o755)
    environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}
    seen = 0
    for name, text in scripts(files).items():
        for service in re.search(r"^SERVICES=\((.*)\)$", text, re.M).group(1).split():  # type: ignore[union-attr]
            result = subprocess.run(
                ["bash", str(tmp_path / "out" / name), "run", service],
                capture_output=True,
                check=True,
                env=environment,
                cwd=tmp_path,
            )
            arguments = result.stdout.decode().split("\0")
            if arguments[0] == "serve":
                assert arguments[1] == HOSTILE[2]
                seen += 1
    assert seen == 2 * len(HOSTILE)
    assert not [path for path in tmp_path.rglob("*") if path.name == "PWNED"]


@pytest.mark.parametrize("bad", ["$(touch PWNED)", "-oProxyCommand=x", "a b", "", "x" * 300])
def test_an_address_that_is_not_one_is_refused(bad: str) -> None:
    """A node's name is used as its address only when it can be one."""
    plan = mixed_plan()
    hosts = (plan.hosts[0].model_copy(update={"name": bad, "address": ""}), *plan.hosts[1:])
    pools = plan.model_copy(update={"hosts": hosts}).model_dump_json().replace("h100-0", json.dumps(bad)[1:-1])
    broken = type(plan).model_validate_json(pools)
    with pytest.raises(LaunchError, match="no usable address"):
        render(broken, OPTIONS)


def test_a_model_name_that_looks_like_an_option_is_refused() -> None:
    with pytest.raises(LaunchError, match="read as an option"):
        render(mixed_plan(), LaunchOptions(model_path="--trust-remote-code"))


def test_scripts_start_wait_stop(tmp_path: Path) -> None:
    """start, status, wait and stop work on real processes; a second start is harmless; stop leaves nothing running."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in ("vllm", "vllm-router"):
        (tools / tool).write_text("#!/bin/bash\nsleep 60 & wait\n")
        (tools / tool).chmod(0o755)
    (tools / "curl").write_text('#!/bin/bash\necho \'{"data": [{"id": "m"}]}\'\n')
    (tools / "curl").chmod(0o755)
    write_folder(render(mixed_plan(), OPTIONS), tmp_path / "out")
    script = tmp_path / "out" / "hosts" / "a100-0.sh"
    environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}

    def run(*arguments: str) -> str:
        done = subprocess.run(
            ["bash", str(script), *arguments], capture_output=True, text=True, check=True, env=environment, timeout=60
        )
        return done.stdout

    try:
        assert run("start").count("started") == 3
        assert run("start").count("already runs") == 3
        assert run("status") == "decode-0 running\ndecode-1 running\nrouter running\n"
        assert run("wait").count("ready") == 3
        pids = [int(path.read_text().split()[0]) for path in tmp_path.rglob("*.pid")]
        assert len(pids) == 3
    finally:
        stopped = run("stop")
    assert stopped.count("stopped") == 3
    assert run("status").count("stopped") == 3
    assert not [pid for pid in pids if _runs(pid)]


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_service_that_dies_is_reported_with_its_log(tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "vllm").write_text("#!/bin/bash\necho no GPU here\nexit 3\n")
    (tools / "vllm").chmod(0o755)
    write_folder(render(mixed_plan(), OPTIONS), tmp_path / "out")
    script = tmp_path / "out" / "hosts" / "h100-1.sh"
    environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}
    subprocess.run(["bash", str(script), "start"], check=True, env=environment, capture_output=True)
    result = subprocess.run(["bash", str(script), "wait"], env=environment, capture_output=True, text=True, timeout=60)
    assert result.returncode == 1
    assert "prefill-2 ended before it was ready" in result.stderr
    assert "no GPU here" in result.stderr
