"""What is simulated: engine instances with their step models and limits, and the links KV caches travel on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from splitplan.catalogs.errors import InputError, Problem
from splitplan.planner.latency.step import StepModel
from splitplan.planner.spec.length_buckets import PromptRange, buckets

InstanceRole = Literal["prefill", "decode", "colocated"]
Scheduler = Literal["vllm", "sglang", "static"]


@dataclass(frozen=True, slots=True)
class Link:
    """A shared resource on a transfer's path, one direction: a NIC's out or in, a leaf's up or down, the spine."""

    name: str
    bytes_per_s: float


@dataclass(frozen=True, slots=True)
class InstanceSpec:
    """One engine instance. Link fields are indices into `Deployment.links`.

    A transfer inside one node takes the prefill instance's `local_link`; inside one rack `egress[:1] + ingress[:1]`;
    between racks `egress`, the spine and `ingress`. What is None or left out is no limit.
    """

    name: str
    role: InstanceRole
    step: StepModel
    kv_capacity_tokens: int
    block_tokens: int = 16
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    share: float = 1.0  # relative, among instances that take new requests, or among decode instances
    watermark: float = 0.0  # share of the KV blocks kept free when a prompt is admitted to a busy instance
    kv_parts: tuple[int, int] = (1, 0)  # of the KV memory of a block: layers that keep every token, layers that free
    # what left their window (`Deployment.window_tokens`); (1, 0) where the engine frees nothing
    kv_sequence_tokens: int = 0  # KV memory of every sequence beside its tokens, as so many tokens: states of layers
    reserve_output_tokens: int = 0  # KV kept free per running sequence on admission (SGLang's decode reservation)
    prefix_cache: bool = True  # prompt blocks stay in HBM until KV needs the room (when requests name their blocks)
    host_cache_tokens: int = 0  # copies of prompt blocks in host memory
    host_cache_bytes_per_s: float = 0.0
    scheduler: Scheduler = "vllm"  # sglang: prompts first, decodes wait; static: as sglang, and nobody joins a batch
    above_tokens: int = 0  # takes prompts of more than this many tokens,
    up_to_tokens: int = 0  # and of at most this many; 0: no bound
    node: str = ""
    rack: str = ""
    kind: int = 0  # which entries of Deployment.path_costs are its own
    local_link: int | None = None
    egress: tuple[int, ...] = ()  # NIC out, leaf up
    ingress: tuple[int, ...] = ()  # NIC in, leaf down


@dataclass(frozen=True, slots=True)
class PathCost:
    """What a transfer costs beside its bytes, on one kind of path."""

    latency_s: float  # hand-shake, router hop
    descriptor_s: float
    descriptors_per_block: float
    windowed_descriptors_per_block: float = 0.0  # of them, in layers with a window
    copies: float = 1.0  # how often the bytes are sent: ranks that hold the same heads, or a latent, fetch their own


@dataclass(frozen=True, slots=True)
class Change:
    """Something that happens to an instance at a time.

    "fail" loses KV, queues and prefix cache at once; its requests start again elsewhere. "restart" brings a failed
    instance back `reload_s` later. "role" takes nothing new in, finishes what is there, and comes back in `role` after
    `reload_s`.
    """

    time_s: float
    instance: int  # position in Deployment.instances
    kind: Literal["fail", "restart", "role"]
    role: InstanceRole | None = None
    reload_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Deployment:
    """Instances that serve one model together.

    With prefill instances only, a request ends with its prefill; with decode instances only, it arrives with its KV at
    hand: both are for looking at one side alone. `routes` holds shares by (prefill index, decode index); without it the
    decode instances' own shares decide.

    `path_costs` holds, by (kind of prefill instance, kind of decode instance, whether both are in one node), what goes
    for these paths in place of the deployment's own `transfer_latency_s`, `descriptor_s` and `descriptors_per_block`.
    """

    instances: tuple[InstanceSpec, ...]
    links: tuple[Link, ...] = ()
    kv_bytes_per_token: float = 0.0  # over all layers
    kv_bytes_per_sequence: float = 0.0  # sent beside the tokens: states of layers that have no cache
    window_tokens: int = 0  # what layers with a sliding window see; 0: there are none
    windowed_kv_bytes_per_token: float = 0.0  # of `kv_bytes_per_token`, in those layers
    transfer_latency_s: float = 0.0  # per transfer: hand-shake, router hop
    descriptor_s: float = 0.0
    descriptors_per_block: float = 0.0
    layerwise_layers: int = 0  # > 0: KV moves layer by layer during prefill; only the last layer's share trails
    spine: int | None = None
    decode_emits_first_token: bool = True
    store_tokens: int = 0  # copies of prompt blocks in a store that all instances share
    store_bytes_per_s: float = 0.0
    decode_keeps_prefix: bool = False  # what the prefix cache saves is not transferred either
    routes: Mapping[tuple[int, int], float] = field(default_factory=dict)
    path_costs: Mapping[tuple[int, int, bool], PathCost] = field(default_factory=dict)

    def indices(self, *roles: InstanceRole) -> list[int]:
        """Positions of the instances that have one of these roles."""
        return [index for index, instance in enumerate(self.instances) if instance.role in roles]

    def path_cost(self, prefill: int, decode: int) -> PathCost:
        """What a transfer between two instances (by position) costs beside its bytes."""
        sender, receiver = self.instances[prefill], self.instances[decode]
        inside = prefill == decode or (sender.node == receiver.node and bool(sender.node))
        return self.path_costs.get((sender.kind, receiver.kind, inside), self.own_cost)

    @property
    def own_cost(self) -> PathCost:
        """What goes for paths that `path_costs` does not name."""
        return PathCost(self.transfer_latency_s, self.descriptor_s, self.descriptors_per_block)

    @property
    def prompt_ranges(self) -> tuple[PromptRange, ...]:
        """Stretches of prompt lengths that the same instances serve, shortest first; one where none are told apart."""
        ends = {end for instance in self.instances for end in (instance.above_tokens, instance.up_to_tokens) if end}
        return buckets(tuple(sorted(ends)))


def check_deployment(deployment: Deployment) -> None:
    """Raise InputError with all that is inconsistent in a deployment."""
    problems = [problem for instance in deployment.instances for problem in _instance_problems(instance, deployment)]
    if not deployment.instances:
        problems.append(Problem("a deployment without instances", expected="at least one"))
    problems += _role_problems(deployment)
    problems += _cost_problems(deployment)
    problems += [
        Problem(f"link '{link.name}' has {link.bytes_per_s} bytes/s", expected="a positive number")
        for link in deployment.links
        if not link.bytes_per_s > 0
    ]
    if deployment.store_tokens < 0 or (deployment.store_tokens and not deployment.store_bytes_per_s > 0):
        problems.append(Problem(f"a store of {deployment.store_tokens} tokens", expected="with store_bytes_per_s"))
    for (prefill, decode), share in deployment.routes.items():
        if not _is_route(deployment, prefill, decode) or not share >= 0:
            expected = "(prefill index, decode index) with a share of at least 0"
            problems.append(Problem(f"route {prefill} → {decode} with share {share}", expected=expected))
    if problems:
        raise InputError(problems)


def check_changes(deployment: Deployment, changes: Sequence[Change]) -> None:
    """Raise InputError with every change that cannot happen."""
    problems = []
    for change in changes:
        if not 0 <= change.instance < len(deployment.instances):
            expected = f"0 to {len(deployment.instances) - 1}"
            problems.append(Problem(f"a change of instance {change.instance}", expected=expected))
        if not (change.time_s >= 0 and change.reload_s >= 0):
            problems.append(Problem(f"a change at {change.time_s} s with reload {change.reload_s} s", expected="≥ 0"))
        if (change.kind == "role") != (change.role is not None):
            problems.append(Problem(f"a change '{change.kind}' with role {change.role}", expected="a role iff 'role'"))
    if changes and deployment.layerwise_layers:
        problems.append(Problem("changes with layer-wise transfers are not modelled", next_step="layerwise_layers=0"))
    if changes and not deployment.indices("prefill", "colocated"):
        problems.append(Problem("changes of decode instances alone are not modelled"))
    if problems:
        raise InputError(problems)


def _is_route(deployment: Deployment, prefill: int, decode: int) -> bool:
    return prefill in deployment.indices("prefill") and decode in deployment.indices("decode")


def _cost_problems(deployment: Deployment) -> list[Problem]:
    """Times and sizes that are no numbers would never let a simulation end."""
    problems = []
    if not 0 <= deployment.windowed_kv_bytes_per_token <= deployment.kv_bytes_per_token:
        value = f"{deployment.windowed_kv_bytes_per_token}"
        problems.append(Problem(value, key="windowed_kv_bytes_per_token", expected="at most kv_bytes_per_token"))
    for key in (
        "kv_bytes_per_token",
        "kv_bytes_per_sequence",
        "transfer_latency_s",
        "descriptor_s",
        "descriptors_per_block",
    ):
        value = getattr(deployment, key)
        if not 0 <= value < math.inf:
            problems.append(Problem(f"{value}", key=key, expected="a finite number from 0 on"))
    for path, cost in deployment.path_costs.items():
        values = (cost.latency_s, cost.descriptor_s, cost.descriptors_per_block, cost.copies)
        if not all(0 <= value < math.inf for value in values):
            problems.append(Problem(f"cost of path {path} is {cost}", expected="finite numbers from 0 on"))
    for step in {id(instance.step): instance.step for instance in deployment.instances}.values():
        tables = (step.host_s, step.token_s, step.sequence_s, step.prefill_attention_s, step.decode_attention_s)
        scalars = np.array([*step.overhead_s, step.gap_s, step.handoff_s])
        if not all(np.isfinite(table).all() for table in (*tables, scalars)) or (scalars < 0).any():
            problems.append(Problem("a step model holds times that are no numbers", expected="finite seconds"))
    return problems


def _role_problems(deployment: Deployment) -> list[Problem]:
    roles = {instance.role for instance in deployment.instances}
    if "decode" in roles and "colocated" in roles and "prefill" not in roles:
        return [Problem("decode instances beside colocated ones, but no prefill instance feeds them")]
    if "prefill" in roles and "colocated" in roles and "decode" not in roles:
        return [Problem("prefill instances beside colocated ones, but no decode instance takes their requests")]
    problems = []
    for kind in (("prefill", "colocated"), ("decode",)):
        shares = [instance.share for instance in deployment.instances if instance.role in kind]
        if any(not share >= 0 for share in shares) or (shares and not sum(shares) > 0):
            problems.append(Problem(f"shares of {' and '.join(kind)} instances are {shares}", expected="≥ 0, sum > 0"))
    return problems


def _instance_problems(instance: InstanceSpec, deployment: Deployment) -> Sequence[Problem]:
    step = instance.step
    wrong: list[tuple[str, object, str]] = []
    if instance.block_tokens < 1:
        wrong.append(("block_tokens", instance.block_tokens, "at least 1"))
    elif instance.kv_capacity_tokens < instance.block_tokens:
        wrong.append(("kv_capacity_tokens", instance.kv_capacity_tokens, "room for one block"))
    if not 1 <= instance.max_num_seqs < len(step.sequence_s):
        wrong.append(("max_num_seqs", instance.max_num_seqs, f"1 to {len(step.sequence_s) - 1}, what the tables cover"))
    most_tokens = len(step.token_s) - 1
    fewest_tokens = 1 if instance.role == "prefill" else instance.max_num_seqs
    if not fewest_tokens <= instance.max_num_batched_tokens <= most_tokens:
        expected = f"{fewest_tokens} (max_num_seqs) to {most_tokens} (what the tables cover)"
        wrong.append(("max_num_batched_tokens", instance.max_num_batched_tokens, expected))
    if instance.above_tokens < 0 or 0 < instance.up_to_tokens <= instance.above_tokens or instance.up_to_tokens < 0:
        wrong.append(("up_to_tokens", instance.up_to_tokens, f"more than above_tokens {instance.above_tokens}, or 0"))
    if not 0 <= instance.watermark < 1:
        wrong.append(("watermark", instance.watermark, "a share below 1"))
    if instance.host_cache_tokens < 0 or (instance.host_cache_tokens and not instance.host_cache_bytes_per_s > 0):
        wrong.append(("host_cache_tokens", instance.host_cache_tokens, "at least 0, with host_cache_bytes_per_s"))
    full, windowed = instance.kv_parts
    if not (full >= 0 and windowed >= 0 and full + windowed > 0) or (windowed and deployment.window_tokens < 1):
        expected = "two numbers from 0 on, not both 0; the second above 0 only with window_tokens"
        wrong.append(("kv_parts", instance.kv_parts, expected))
    if instance.kv_sequence_tokens < 0:
        wrong.append(("kv_sequence_tokens", instance.kv_sequence_tokens, "at least 0"))
    if instance.kind < 0:
        wrong.append(("kind", instance.kind, "at least 0"))
    if instance.reserve_output_tokens < 0:
        wrong.append(("reserve_output_tokens", instance.reserve_output_tokens, "at least 0"))
    used = [*instance.egress, *instance.ingress, *([] if instance.local_link is None else [instance.local_link])]
    too_many = max(len(instance.egress), len(instance.ingress)) > 2
    if too_many or any(not 0 <= link < len(deployment.links) for link in used):
        wrong.append(("links", used, f"at most two each way, indices below {len(deployment.links)}"))
    return [Problem(f"{value} on instance '{instance.name}'", key=key, expected=text) for key, value, text in wrong]
