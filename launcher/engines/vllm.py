"""vLLM: `vllm serve` with the plan's numbers as flags, vllm-router in front.

What must be equal on both sides of the NIXL connector (read in vLLM 0.32): version, model string, dtype, KV dtype,
attention backend, block size. All of them are emitted explicitly, so that no default can differ between two GPU types.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from splitplan.catalogs.errors import Problem, UsageError, shorten
from splitplan.launcher.cluster import Cluster, Member, RouterPlace, load_policy
from splitplan.launcher.engines.base import (
    Command,
    Comparison,
    EngineOptions,
    net_devices,
    routed_roles,
    stage_environment,
)
from splitplan.launcher.inventory import check_options, find_version

CONNECTORS = {
    "nixl": "NixlConnector",
    "nixlconnector": "NixlConnector",
    "nixl-push": "NixlPushConnector",
    "nixlpushconnector": "NixlPushConnector",
    "mooncake": "MooncakeConnector",
    "mooncakeconnector": "MooncakeConnector",
}
"""Connector names of plans, folded, to vLLM class names."""

ROUTER_CONNECTORS = {"NixlConnector": "nixl", "NixlPushConnector": "nixl", "MooncakeConnector": "mooncake"}
LMCACHE_CHUNK_TOKENS = 256
ROUTER_VERSION = "0.1.17"
FLOAT_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
CPU_ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "VLLM_WORKER_MULTIPROC_METHOD": "fork",
    "UCX_TLS": "tcp",
}
"""What several instances of vLLM's CPU build need to share one machine."""

ONLINE_QUANTIZATION = {"fp8": "fp8"}
"""Weight dtypes that vLLM makes from a 16-bit checkpoint while loading; the others need a quantised checkpoint."""


@dataclass(frozen=True, slots=True)
class VllmEngine:
    """vLLM, one version."""

    version: str
    options: EngineOptions = field(default_factory=EngineOptions)
    image_override: str = ""
    router_image_override: str = ""
    name: str = "vllm"
    ready_path: str = "/v1/models"
    one_router: bool = False
    routes_by_length: bool = False
    needs_weights: bool = True
    comparison: Comparison = "alone"
    router_ready_path: str = "/v1/models"
    drains: bool = False

    @staticmethod
    def create(
        wanted: str = "", options: EngineOptions | None = None, image: str = "", router_image: str = ""
    ) -> VllmEngine:
        """The adapter for "0.32", "0.32.0" or "" (the newest whose options are known)."""
        return VllmEngine(find_version("vllm", wanted), options or EngineOptions(), image, router_image)

    @property
    def image(self) -> str:
        """Container image, by tag."""
        return self.image_override or f"vllm/vllm-openai:v{self.version}"

    @property
    def router_image(self) -> str:
        """Container image of the router, by dated tag."""
        return self.router_image_override or "vllm/vllm-router:nightly-20260710-b93cbcb"

    def problems(self, cluster: Cluster) -> list[Problem]:
        """Rules of this engine that no catalog knows: names, checkpoints, expert parallelism."""
        found = []
        if cluster.leaders("prefill") and cluster.plan.connector.casefold() not in CONNECTORS:
            known = ", ".join(sorted(set(CONNECTORS.values())))
            found.append(Problem(f"vLLM has no connector {shorten(cluster.plan.connector)!r} here", expected=known))
        found += [
            Problem(
                f"{shorten(pool.name)}: vLLM spreads experts over all tensor-parallel ranks",
                expected=f"expert_parallel 1 or {pool.tensor_parallel}",
            )
            for pool in cluster.plan.pools
            if pool.expert_parallel not in (1, pool.tensor_parallel)
        ]
        found += self._host_cache_problems(cluster)
        if self.options.device not in ("", "cpu"):
            found.append(
                Problem(f"vLLM has no device {shorten(self.options.device)!r} here", expected="cpu, or nothing")
            )
        return found + checkpoint_problems(cluster, "vLLM")

    def _host_cache_problems(self, cluster: Cluster) -> list[Problem]:
        """A chunk of LMCache holds whole blocks (its adapter in vLLM asserts it), on instances that keep prompts."""
        host_tier(self.options.host_cache)
        if not self.options.host_cache.startswith("lmcache"):
            return []
        return [
            Problem(
                f"{shorten(pool.name)}: LMCache keeps KV in chunks of {LMCACHE_CHUNK_TOKENS} tokens, "
                f"no multiple of the block size {pool.block_tokens}",
                next_step="--host-cache native:GIB, or solve with another block size",
            )
            for pool in cluster.plan.pools
            if pool.role != "decode" and LMCACHE_CHUNK_TOKENS % pool.block_tokens
        ]

    @property
    def on_cpu(self) -> bool:
        """Whether it is vLLM's build for CPUs that runs."""
        return self.options.device == "cpu"

    def member(self, cluster: Cluster, member: Member) -> Command:
        """`vllm serve` for one member; ranks after the first run headless."""
        argv = ("vllm", "serve", cluster.model_path, *self.serve_options(cluster, member))
        check_options("vllm", self.version, argv)
        return Command(argv, self._environment(member))

    def serve_options(self, cluster: Cluster, member: Member) -> tuple[str, ...]:
        """The options of `vllm serve` (also accepted by wrappers of vLLM that take its engine arguments)."""
        host = "0.0.0.0" if self.options.bind_all else member.host.address
        listen = ["--host", host, "--port", str(member.ports.http), "--served-model-name", cluster.served_name]
        if member.rank > 0:
            listen = ["--headless"]
        return (*listen, *self.engine_arguments(cluster, member))

    def engine_arguments(self, cluster: Cluster, member: Member) -> tuple[str, ...]:
        """What the plan decided, as options: parallelism, limits, dtypes, connector."""
        pool = member.pool
        options = ["--tensor-parallel-size", str(pool.tensor_parallel)]
        options += ["--pipeline-parallel-size", str(pool.pipeline_parallel)]
        if pool.expert_parallel > 1:
            options += ["--enable-expert-parallel"]
        options += ["--max-model-len", str(pool.max_model_len), "--max-num-seqs", str(pool.max_num_seqs)]
        options += ["--max-num-batched-tokens", str(pool.max_num_batched_tokens), "--enable-chunked-prefill"]
        options += ["--block-size", str(pool.block_tokens)]
        options += ["--enforce-eager"] if self.on_cpu else ["--gpu-memory-utilization", f"{pool.memory_fraction:g}"]
        options += ["--dtype", FLOAT_DTYPES.get(pool.weight_dtype, "auto")]
        online = quantization(pool.weight_dtype, cluster.checkpoint_dtype)
        if online:
            options += ["--quantization", online]
        options += ["--kv-cache-dtype", _kv_cache_dtype(pool.kv_dtype)]
        if pool.attention_backend and not self.on_cpu:
            options += ["--attention-backend", pool.attention_backend]
        if member.num_ranks > 1:
            options += ["--nnodes", str(member.num_ranks), "--node-rank", str(member.rank)]
            options += ["--master-addr", member.leader_address, "--master-port", str(member.ports.master)]
        tier = host_tier(self.options.host_cache) if pool.role != "decode" else None
        if self.options.host_cache and cluster.leaders("prefill"):
            options += ["--disable-hybrid-kv-cache-manager"]  # a tier knows no hybrid KV, and both sides must agree
        if pool.role != "colocated" or tier:
            config = transfer_config(cluster.plan.connector, pool.role, on_cpu=self.on_cpu, tier=tier)
            options += ["--kv-transfer-config", config]
        return tuple(options)

    def router(self, cluster: Cluster, place: RouterPlace) -> Command:
        """vllm-router: two-sided for prefill and decode, plain for colocated instances."""
        prefill, decode, colocated = routed_roles(cluster, place)
        host = "0.0.0.0" if self.options.bind_all else place.host.address
        argv = ["vllm-router", "--host", host, "--port", str(place.port)]
        argv += ["--prometheus-host", host, "--prometheus-port", str(place.metrics_port)]
        argv += ["--request-timeout-secs", "1800", "--worker-startup-timeout-secs", "3600"]
        if prefill:
            connector = CONNECTORS.get(cluster.plan.connector.casefold(), "NixlConnector")
            argv += ["--vllm-pd-disaggregation", "--kv-connector", ROUTER_CONNECTORS[connector]]
            for member in prefill:
                argv += ["--prefill", member.url]
            for member in decode:
                argv += ["--decode", member.url]
            argv += ["--prefill-policy", cluster.entry_policy(len(prefill))]
            argv += ["--decode-policy", load_policy(len(decode))]
        else:
            argv += [
                "--worker-urls",
                *[member.url for member in colocated],
                "--policy",
                cluster.entry_policy(len(colocated)),
            ]
        check_options("vllm-router", ROUTER_VERSION, argv)
        return Command(tuple(argv))

    def _environment(self, member: Member) -> dict[str, str]:
        env = {**(CPU_ENVIRONMENT if self.on_cpu else {}), **stage_environment(member, "vllm")}
        if member.num_ranks > 1:
            env["VLLM_HOST_IP"] = member.host.address
        if member.pool.role != "colocated":
            env["VLLM_NIXL_SIDE_CHANNEL_HOST"] = member.host.address
            env["VLLM_NIXL_SIDE_CHANNEL_PORT"] = str(member.ports.side_channel)
        devices = net_devices(member, self.options)
        if devices:
            env["UCX_NET_DEVICES"] = devices
        return env


def transfer_config(
    connector: str, role: str, *, on_cpu: bool = False, tier: Mapping[str, object] | None = None
) -> str:
    """The JSON of --kv-transfer-config for one side of a connector, with a tier of host memory beside it.

    `--kv-offloading-size` would say the latter shorter, but puts its own connector in place of NIXL's (vLLM 0.32).
    """
    if role == "colocated":
        return json.dumps(tier, separators=(",", ":"))
    name = CONNECTORS.get(connector.casefold(), connector)
    config: dict[str, object] = {
        "kv_connector": name,
        "kv_role": "kv_producer" if role == "prefill" else "kv_consumer",
        "kv_load_failure_policy": "fail",
    }
    if name in ("NixlConnector", "NixlPushConnector"):
        config["kv_connector_extra_config"] = {"backends": ["UCX"]}
    if on_cpu:
        config["kv_buffer_device"] = "cpu"
    if tier:
        both = {"connectors": [config, tier]}
        config = {"kv_connector": "MultiConnector", "kv_role": "kv_both", "kv_connector_extra_config": both}
    return json.dumps(config, separators=(",", ":"))


def host_tier(text: str) -> dict[str, object] | None:
    """A connector that keeps prompt KV in host memory, from "native:GIB" or "lmcache:GIB"; None for "".

    Raises UsageError for anything else. `native` is vLLM's own; `lmcache` needs the package in the image.
    """
    if not text:
        return None
    found = re.fullmatch(r"(native|lmcache):([1-9][0-9]{0,5})", text)
    if found is None:
        raise UsageError(Problem(f"unknown host cache {shorten(text)!r}", expected="native:GIB or lmcache:GIB"))
    kind, gib = found.group(1), int(found.group(2))
    name, extra = (
        ("OffloadingConnector", {"cpu_bytes_to_use": gib * 2**30})
        if kind == "native"
        else (
            "LMCacheConnectorV1",
            {"lmcache.local_cpu": True, "lmcache.max_local_cpu_size": gib, "lmcache.chunk_size": LMCACHE_CHUNK_TOKENS},
        )
    )
    return {"kv_connector": name, "kv_role": "kv_both", "kv_connector_extra_config": extra}


def _kv_cache_dtype(kv_dtype: str) -> str:
    return "fp8" if kv_dtype == "fp8" else "auto"


def quantization(weight_dtype: str, checkpoint_dtype: str) -> str | None:
    """The --quantization value, "" for none needed, None when the engine cannot make this dtype while loading."""
    if weight_dtype in FLOAT_DTYPES or weight_dtype == checkpoint_dtype:
        return ""
    return ONLINE_QUANTIZATION.get(weight_dtype)


def checkpoint_problems(cluster: Cluster, engine: str) -> list[Problem]:
    """Pools whose planned weights are not what the engine would load from the checkpoint."""
    found, stored = [], cluster.checkpoint_dtype
    for pool in cluster.plan.pools:
        if pool.weight_dtype in FLOAT_DTYPES and stored and stored not in FLOAT_DTYPES:
            found.append(
                Problem(
                    f"{shorten(pool.name)}: planned with {pool.weight_dtype} weights, but the checkpoint is stored in "
                    f"{stored}, and {engine} loads it as it is",
                    next_step=f"planner solve --weight-dtype {stored}, or another --model-path",
                )
            )
        if quantization(pool.weight_dtype, stored) is None:
            found.append(
                Problem(
                    f"{shorten(pool.name)}: weights in {pool.weight_dtype} need a checkpoint stored in that dtype",
                    next_step=f"--model-path … --checkpoint-dtype {pool.weight_dtype}",
                )
            )
    return found
