"""Ray: a Serve LLM configuration (`serve deploy serve.yaml`), one application for each front door.

Ray places replicas by GPU type; the planned nodes have no place in this configuration. A placement that cannot be met
stays pending without an error: watch `serve status`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from splitplan.catalogs.errors import LaunchError, Problem, shorten
from splitplan.launcher.cluster import Cluster, Member
from splitplan.launcher.engines.base import EngineAdapter
from splitplan.launcher.targets.groups import members_of, one_pool, one_type
from splitplan.launcher.targets.pods import Manifest, dump
from splitplan.planner.plan import Pool

ACCELERATORS = {
    "h100": "H100",
    "h200": "H200",
    "h20": "H20",
    "b200": "B200",
    "a100-sxm-80": "A100-80G",
    "a100-pcie-80": "A100-80G",
    "a100-sxm-40": "A100-40G",
    "a100-pcie-40": "A100-40G",
    "l40s": "L40S",
    "l4": "L4",
    "a10g": "A10G",
    "mi300x": "AMD-Instinct-MI300X-OAM",
}
"""GPU types, or their families, under the names that Ray gives them."""

FLAGS_WITHOUT_VALUE = ("--enable-chunked-prefill", "--enable-expert-parallel")
SERVED_BY_RAY = ("--host", "--port", "--served-model-name", "--nnodes", "--node-rank", "--master-addr", "--master-port")


def render(cluster: Cluster, engine: EngineAdapter) -> dict[str, str]:
    """`serve.yaml`: prefill and decode behind one ingress, colocated instances behind another."""
    if engine.name != "vllm":
        raise LaunchError(Problem(f"Ray Serve LLM runs vLLM, not {engine.name}", next_step="--engine vllm"))
    what = "a Ray Serve application"
    prefill, decode, colocated = (one_pool(cluster, role, what) for role in ("prefill", "decode", "colocated"))
    for pool in cluster.plan.pools:
        one_type(pool, what)
    applications: list[Manifest] = []
    if prefill is not None and decode is not None:
        sides = {"prefill_config": prefill, "decode_config": decode}
        arguments = {key: _model_config(cluster, engine, pool) for key, pool in sides.items()}
        applications.append(_application(cluster.name, "/", "ray.serve.llm:build_pd_openai_app", arguments))
    if colocated is not None:
        alone: Manifest = {"llm_configs": [_model_config(cluster, engine, colocated)]}
        prefix = "/colocated" if applications else "/"
        name = f"{cluster.name}-colocated" if applications else cluster.name
        applications.append(_application(name, prefix, "ray.serve.llm:build_openai_app", alone))
    return {"serve.yaml": dump([{"applications": applications}])}


def _application(name: str, prefix: str, builder: str, arguments: Manifest) -> Manifest:
    return {"name": name, "route_prefix": prefix, "import_path": builder, "args": arguments}


def _model_config(cluster: Cluster, engine: EngineAdapter, pool: Pool) -> Manifest:
    members = members_of(cluster, pool)
    return {
        "model_loading_config": {"model_id": cluster.served_name, "model_source": cluster.model_path},
        "accelerator_type": accelerator(pool.gpu),
        "deployment_config": {"num_replicas": len(members), "max_ongoing_requests": pool.max_num_seqs},
        "engine_kwargs": engine_arguments(cluster, engine, members[0]),
    }


def accelerator(gpu: str) -> str:
    """Ray's name of a GPU type; LaunchError where it has none that we know."""
    name = ACCELERATORS.get(gpu) or ACCELERATORS.get(gpu.partition("-")[0])
    if name is None:
        raise LaunchError(
            Problem(f"Ray has no accelerator type for {shorten(gpu)} that we know", expected=", ".join(ACCELERATORS))
        )
    return name


def engine_arguments(cluster: Cluster, engine: EngineAdapter, member: Member) -> dict[str, object]:
    """The flags of `vllm serve` as the engine's keyword arguments: checked against the same option names."""
    command = engine.member(cluster, member)
    words: Sequence[str] = command.argv[3:] if command else ()
    arguments: dict[str, object] = {}
    position = 0
    while position < len(words):
        flag = words[position]
        name = flag.removeprefix("--").replace("-", "_")
        if flag in FLAGS_WITHOUT_VALUE:
            arguments[name] = True
            position += 1
            continue
        if flag not in SERVED_BY_RAY:
            arguments[name] = _value(words[position + 1])
        position += 2
    return arguments


def _value(text: str) -> object:
    """Numbers and JSON objects as such, everything else as text."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, (int, float, dict)) and not isinstance(value, bool) else text
