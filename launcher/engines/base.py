"""What an engine adapter gives a target: commands, environments, images. Nothing here starts anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from splitplan.catalogs.engines import find_engine
from splitplan.catalogs.errors import Problem
from splitplan.launcher.cluster import Cluster, Member, RouterPlace, per_gpu

Comparison = Literal["alone", "twice", "none"]
"""With one instance's own answer; with a second answer across (where instances do not answer alone); not at all."""


@dataclass(frozen=True, slots=True)
class Command:
    """One process: its arguments (never a shell string) and the environment it needs on top of the host's."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(
        default_factory=dict
    )  # relative to the folder it runs in; written before it starts


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """What a user may set on the command line for any engine."""

    ucx_net_devices: str = ""
    shared_folder: str = ""  # where Dynamo's workers find each other; all hosts must see it
    host_cache: str = ""  # "native:64" or "lmcache:64": prompt KV also in host memory, GiB of it for each instance
    device: str = ""  # "cpu": the engine's build for CPUs, to try a launch without GPUs
    bind_all: bool = False  # listen on every address (inside a pod) instead of the host's own


class EngineAdapter(Protocol):
    """One engine version and its router."""

    @property
    def name(self) -> str:
        """ "vllm", "sglang", "mock", …"""

    @property
    def version(self) -> str:
        """The version whose option names were checked."""

    @property
    def image(self) -> str:
        """Container image, by tag."""

    @property
    def router_image(self) -> str:
        """Container image of the router, by tag."""

    @property
    def ready_path(self) -> str:
        """HTTP path that answers 200 once the model is loaded."""

    @property
    def one_router(self) -> bool:
        """Whether one router serves disaggregated and colocated instances together."""

    @property
    def routes_by_length(self) -> bool:
        """Whether its router can send a request by the length of its prompt."""

    @property
    def drains(self) -> bool:
        """Whether its router can share its port with a second one and ends after its last stream on SIGUSR1."""

    @property
    def needs_weights(self) -> bool:
        """Whether it loads a real model, and so obeys the real engine's rules."""

    @property
    def router_ready_path(self) -> str:
        """The same for the router."""

    @property
    def comparison(self) -> Comparison:
        """What the probe compares answers with."""

    def problems(self, cluster: Cluster) -> list[Problem]:
        """Why this engine cannot run this cluster; [] when it can."""

    def member(self, cluster: Cluster, member: Member) -> Command | None:
        """The command of one member; None where a member needs no process of its own."""

    def router(self, cluster: Cluster, place: RouterPlace) -> Command:
        """The command of a router: `cluster.router`, or the second one in front of the colocated instances."""


def stage_environment(member: Member, engine: str) -> dict[str, str]:
    """The variable that tells an engine of the catalog how many layers each stage of a mixed pipeline holds."""
    if not member.pool.stages:
        return {}
    variable = find_engine(engine).stage_layers
    return {variable: ",".join(str(stage.layers) for stage in member.pool.stages)} if variable else {}


def net_devices(member: Member, options: EngineOptions) -> str:
    """NICs for KV transfer: the node's own label, else the option for its GPU type; "" to let UCX choose."""
    return member.host.labels.get("ucx_net_devices") or per_gpu(options.ucx_net_devices, member.gpu)


def routed_roles(cluster: Cluster, place: RouterPlace) -> tuple[Sequence[Member], Sequence[Member], Sequence[Member]]:
    """(prefill, decode, colocated) leaders behind one front door."""
    if not place.prompts.is_all:
        prefill, decode, colocated = (
            tuple(member for member in cluster.leaders(role) if member.pool.prompts.covers(place.prompts))
            for role in ("prefill", "decode", "colocated")
        )
        return prefill, decode if prefill else (), colocated
    if place is cluster.colocated_router or not cluster.leaders("prefill"):
        return (), (), cluster.leaders("colocated")
    if cluster.colocated_router is None:
        return cluster.leaders("prefill"), cluster.leaders("decode"), cluster.leaders("colocated")
    return cluster.leaders("prefill"), cluster.leaders("decode"), ()
