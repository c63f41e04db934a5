"""SGLang: `sglang.launch_server` with the plan's numbers as flags, its own router in front.

What must be equal on both sides (read in SGLang 0.5.23): page size and KV dtype. A prefill instance has a bootstrap
server; a decode instance finds it through the router.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from splitplan.catalogs.errors import Problem, shorten
from splitplan.launcher.cluster import Cluster, Member, RouterPlace, load_policy
from splitplan.launcher.engines.base import (
    Command,
    Comparison,
    EngineOptions,
    net_devices,
    routed_roles,
    stage_environment,
)
from splitplan.launcher.engines.vllm import FLOAT_DTYPES, checkpoint_problems, quantization
from splitplan.launcher.inventory import check_options, find_version

BACKENDS = {"nixl": "nixl", "nixlconnector": "nixl", "mooncake": "mooncake", "mooncakeconnector": "mooncake"}
"""Connector names of plans, folded, to transfer backends."""

ROUTER_VERSION = "0.3.2"
KV_DTYPES = {"fp8": "fp8_e4m3"}


@dataclass(frozen=True, slots=True)
class SglangEngine:
    """SGLang, one version."""

    version: str
    options: EngineOptions = field(default_factory=EngineOptions)
    image_override: str = ""
    router_image_override: str = ""
    name: str = "sglang"
    ready_path: str = "/v1/models"
    one_router: bool = False
    routes_by_length: bool = False
    needs_weights: bool = True
    comparison: Comparison = "twice"  # a prefill or decode server answers only as half of a pair
    router_ready_path: str = "/v1/models"
    drains: bool = False

    @staticmethod
    def create(
        wanted: str = "", options: EngineOptions | None = None, image: str = "", router_image: str = ""
    ) -> SglangEngine:
        """The adapter for "0.5", "0.5.23" or "" (the newest whose options are known)."""
        return SglangEngine(find_version("sglang", wanted), options or EngineOptions(), image, router_image)

    @property
    def image(self) -> str:
        """Container image, by tag."""
        return self.image_override or f"lmsysorg/sglang:v{self.version}"

    @property
    def router_image(self) -> str:
        """Container image of the router: the engine's own carries it."""
        return self.router_image_override or self.image

    def problems(self, cluster: Cluster) -> list[Problem]:
        """Rules of this engine that no catalog knows."""
        found = []
        if cluster.leaders("prefill") and cluster.plan.connector.casefold() not in BACKENDS:
            name = shorten(cluster.plan.connector)
            found.append(Problem(f"SGLang has no transfer backend {name!r} here", expected="nixl or mooncake"))
        return found + checkpoint_problems(cluster, "SGLang")

    def member(self, cluster: Cluster, member: Member) -> Command:
        """`python3 -m sglang.launch_server` for one member."""
        program = ("python3", "-m", "sglang.launch_server", "--model-path", cluster.model_path)
        argv = (*program, *self.engine_arguments(cluster, member))
        check_options("sglang", self.version, argv)
        return Command(argv, stage_environment(member, "sglang"))

    def engine_arguments(self, cluster: Cluster, member: Member) -> tuple[str, ...]:
        """What the plan decided, as options."""
        pool = member.pool
        host = "0.0.0.0" if self.options.bind_all else member.host.address
        options = ["--served-model-name", cluster.served_name, "--host", host, "--port", str(member.ports.http)]
        options += ["--tp-size", str(pool.tensor_parallel), "--pp-size", str(pool.pipeline_parallel)]
        options += ["--ep-size", str(pool.expert_parallel), "--page-size", str(pool.block_tokens)]
        options += ["--context-length", str(pool.max_model_len), "--max-running-requests", str(pool.max_num_seqs)]
        options += ["--chunked-prefill-size", str(pool.max_num_batched_tokens)]
        options += ["--mem-fraction-static", f"{pool.memory_fraction:g}", "--enable-metrics"]
        options += ["--dtype", FLOAT_DTYPES.get(pool.weight_dtype, "auto")]
        online = quantization(pool.weight_dtype, cluster.checkpoint_dtype)
        if online:
            options += ["--quantization", online]
        options += ["--kv-cache-dtype", KV_DTYPES.get(pool.kv_dtype, "auto")]
        if pool.attention_backend:
            options += ["--attention-backend", pool.attention_backend]
        if member.num_ranks > 1:
            options += ["--nnodes", str(member.num_ranks), "--node-rank", str(member.rank)]
            options += ["--dist-init-addr", f"{member.leader_address}:{member.ports.master}"]
        return (*options, *self._disaggregation(cluster, member))

    def _disaggregation(self, cluster: Cluster, member: Member) -> tuple[str, ...]:
        if member.pool.role == "colocated":
            return ()
        backend = BACKENDS.get(cluster.plan.connector.casefold(), "nixl")
        options = ["--disaggregation-mode", member.pool.role, "--disaggregation-transfer-backend", backend]
        if member.pool.role == "prefill":
            options += ["--disaggregation-bootstrap-port", str(member.ports.bootstrap)]
        devices = net_devices(member, self.options)
        if devices:
            options += ["--disaggregation-ib-device", devices.partition(":")[0]]
        return tuple(options)

    def router(self, cluster: Cluster, place: RouterPlace) -> Command:
        """The SGLang router: two-sided for prefill and decode, plain for colocated instances."""
        prefill, decode, colocated = routed_roles(cluster, place)
        host = "0.0.0.0" if self.options.bind_all else place.host.address
        argv = ["python3", "-m", "sglang_router.launch_router", "--host", host, "--port", str(place.port)]
        argv += ["--prometheus-host", host, "--prometheus-port", str(place.metrics_port)]
        argv += ["--request-timeout-secs", "1800", "--worker-startup-timeout-secs", "3600"]
        if prefill:
            argv += ["--pd-disaggregation"]
            for member in prefill:
                argv += ["--prefill", member.url, str(member.ports.bootstrap)]
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
        check_options("sglang-router", ROUTER_VERSION, argv)
        return Command(tuple(argv))
