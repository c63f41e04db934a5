"""Dynamo: workers over vLLM, SGLang or TensorRT-LLM, or its mocker, behind its own frontend.

Workers find each other through a folder that all hosts share (`DYN_FILE_KV`; etcd where `ETCD_ENDPOINTS` is set on the
hosts). The frontend always routes in kv mode: the rule that keeps a pair inside its rack is ignored by the others.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from splitplan.catalogs.errors import Problem
from splitplan.launcher.cluster import Cluster, Member, RouterPlace
from splitplan.launcher.engines.base import Command, Comparison, EngineOptions, stage_environment
from splitplan.launcher.engines.mock import timing_problems
from splitplan.launcher.engines.sglang import SglangEngine
from splitplan.launcher.engines.vllm import VllmEngine, checkpoint_problems
from splitplan.launcher.inventory import check_options, find_version
from splitplan.launcher.naming import dns_label
from splitplan.planner.plan import Pool

BACKENDS = ("vllm", "sglang", "trtllm", "mocker")
VLLM_INSIDE, SGLANG_INSIDE = "0.32.0", "0.5.23"
"""Engine versions whose option names check the arguments that are passed through."""

DISCOVERY_FOLDER = "discovery"
KV_GIGABYTES_PER_S_FLOOR = 1e-3
MIN_VOCABULARY = 8192
"""With fewer tokens the mocker's stream collapses into one chunk."""

TRTLLM_OPTIONS = frozenset(
    (
        *("--model-path", "--served-model-name", "--disaggregation-mode", "--tensor-parallel-size"),
        *("--pipeline-parallel-size", "--expert-parallel-size", "--max-batch-size", "--max-num-tokens"),
        *("--max-seq-len", "--kv-block-size", "--free-gpu-memory-fraction"),
    )
)
"""Our own list: no inventory of dynamo.trtllm could be had; unverified."""


@dataclass(frozen=True, slots=True)
class DynamoEngine:
    """Dynamo, one version, one kind of worker."""

    backend: str
    version: str
    options: EngineOptions = field(default_factory=EngineOptions)
    image_override: str = ""
    router_image_override: str = ""
    python: str = "python3"
    ready_path: str = "/health"
    router_ready_path: str = "/v1/models"
    one_router: bool = True
    routes_by_length: bool = False
    drains: bool = False

    @staticmethod
    def create(
        backend: str,
        wanted: str = "",
        options: EngineOptions | None = None,
        image: str = "",
        router_image: str = "",
        python: str = "",
    ) -> DynamoEngine:
        """The adapter for "1.6", "1.6.1" or "" (the newest whose options are known)."""
        version = find_version("dynamo.frontend", wanted)
        return DynamoEngine(backend, version, options or EngineOptions(), image, router_image, python or "python3")

    @property
    def name(self) -> str:
        """ "dynamo-vllm", …"""
        return f"dynamo-{self.backend}"

    @property
    def image(self) -> str:
        """Container image, by tag."""
        kind = {"trtllm": "tensorrtllm"}.get(self.backend, self.backend)
        return self.image_override or f"nvcr.io/nvidia/ai-dynamo/{kind}-runtime:{self.version}"

    @property
    def router_image(self) -> str:
        """The frontend is in every worker's image."""
        return self.router_image_override or self.image

    @property
    def needs_weights(self) -> bool:
        """All but the mocker load a model."""
        return self.backend != "mocker"

    @property
    def comparison(self) -> Comparison:
        """Workers have no API of their own; the mocker's answers are random."""
        return "none" if self.backend == "mocker" else "twice"

    def problems(self, cluster: Cluster) -> list[Problem]:
        """What this worker cannot do."""
        if self.backend == "mocker":
            return timing_problems(cluster, "mocker")
        return checkpoint_problems(cluster, self.name)

    def member(self, cluster: Cluster, member: Member) -> Command | None:
        """One worker."""
        if self.backend == "mocker":
            return self._mocker(cluster, member) if member.rank == 0 else None
        mode = () if member.pool.role == "colocated" else ("--disaggregation-mode", member.pool.role)
        argv = (self.python, "-m", f"dynamo.{self.backend}", *self._arguments(cluster, member, mode))
        extra = {"VLLM_NIXL_SIDE_CHANNEL_HOST", "VLLM_NIXL_SIDE_CHANNEL_PORT", "VLLM_HOST_IP", "UCX_NET_DEVICES"}
        inner = VllmEngine(VLLM_INSIDE, self.options).member(cluster, member).env if self.backend == "vllm" else {}
        kept = {name: value for name, value in inner.items() if name in extra} | stage_environment(member, self.name)
        topology, files = self._topology(cluster, member)
        return Command(
            argv, {**self._environment(member.host.address), **self._system(member), **topology, **kept}, files
        )

    def _arguments(self, cluster: Cluster, member: Member, mode: tuple[str, ...]) -> tuple[str, ...]:
        named = ("--served-model-name", cluster.served_name)
        if self.backend == "vllm":
            inside = VllmEngine(VLLM_INSIDE, self.options).engine_arguments(cluster, member)
            options = ("--model", cluster.model_path, *named, *mode, *inside)
            check_options("dynamo.vllm", find_version("dynamo.vllm", self.version), options)
            return options
        if self.backend == "sglang":
            inside = SglangEngine(SGLANG_INSIDE, self.options).engine_arguments(cluster, member)
            options = ("--model-path", cluster.model_path, *inside)
            check_options("sglang", SGLANG_INSIDE, options)
            return options
        pool = member.pool
        return (
            *("--model-path", cluster.model_path, *named, *mode),
            *("--tensor-parallel-size", str(pool.tensor_parallel)),
            *("--pipeline-parallel-size", str(pool.pipeline_parallel)),
            *("--expert-parallel-size", str(pool.expert_parallel)),
            *("--max-batch-size", str(pool.max_num_seqs), "--max-num-tokens", str(pool.max_num_batched_tokens)),
            *("--max-seq-len", str(pool.max_model_len), "--kv-block-size", str(pool.block_tokens)),
            *("--free-gpu-memory-fraction", f"{pool.memory_fraction:g}"),
        )

    def router(self, cluster: Cluster, place: RouterPlace) -> Command:
        """The frontend: HTTP in front, routing by KV and load behind."""
        host = "0.0.0.0" if self.options.bind_all else place.host.address
        argv = [self.python, "-m", "dynamo.frontend", "--http-host", host, "--http-port", str(place.port)]
        argv += ["--router-mode", "kv"]
        if cluster.leaders("prefill"):
            argv.append("--enforce-disagg")  # an answer without its prefill side is an error, not a slow success
        check_options("dynamo.frontend", self.version, argv)
        return Command(tuple(argv), self._environment(place.host.address))

    def _environment(self, address: str) -> dict[str, str]:
        return {
            "DYN_DISCOVERY_BACKEND": "file",
            "DYN_FILE_KV": self.options.shared_folder or DISCOVERY_FOLDER,
            "DYN_REQUEST_PLANE": "tcp",
            "DYN_EVENT_PLANE": "zmq",
            "DYN_EVENT_PLANE_HOST": address,
            "DYN_TCP_RPC_HOST": address,
            "DYN_TCP_RESPONSE_STREAM_HOST": address,
        }

    def _system(self, member: Member) -> dict[str, str]:
        """Health and metrics of a worker, on the port that an engine would serve on."""
        return {
            "DYN_SYSTEM_HOST": member.host.address,
            "DYN_SYSTEM_PORT": str(member.ports.http),
            "DYN_SYSTEM_USE_ENDPOINT_HEALTH_STATUS": '["generate"]',
        }

    def _topology(self, cluster: Cluster, member: Member) -> tuple[dict[str, str], dict[str, bytes]]:
        """Keep pairs inside a rack where the plan has no route between racks."""
        if not pairs_in_racks(cluster) or member.pool.role == "colocated":
            return {}, {}
        folder = f"topology/{dns_label(member.instance.rack or 'rack')}"
        env = {
            "DYN_TOPOLOGY_ENABLED": "true",
            "DYN_TOPOLOGY_MOUNT_PATH": folder,
            "DYN_KV_TRANSFER_DOMAIN": "rack",
            "DYN_KV_TRANSFER_ENFORCEMENT": "required",
        }
        return env, {f"{folder}/rack": member.instance.rack.encode()}

    def _mocker(self, cluster: Cluster, member: Member) -> Command:
        pool, table = member.pool, f"tables/{dns_label(member.pool.name)}.npz"
        argv = [self.python, "-m", "dynamo.mocker", "--model-path", "model", "--model-name", cluster.served_name]
        argv += ["--block-size", str(pool.block_tokens), "--max-num-seqs", str(pool.max_num_seqs)]
        argv += ["--max-num-batched-tokens", str(pool.max_num_batched_tokens)]
        argv += ["--num-gpu-blocks-override", str(max(1, (pool.kv_capacity_tokens or 2**20) // pool.block_tokens))]
        argv += ["--planner-profile-data", table]
        if pool.role != "colocated":
            argv += ["--disaggregation-mode", pool.role]
        if pool.role == "prefill":
            argv += ["--bootstrap-ports", str(member.ports.bootstrap), *_transfer_options(cluster, member)]
        check_options("dynamo.mocker", self.version, argv)
        topology, files = self._topology(cluster, member)
        env = {**self._environment(member.host.address), **self._system(member), **topology, "HF_HUB_OFFLINE": "1"}
        return Command(tuple(argv), env, {**files, table: timing_table(pool), **model_files()})


def pairs_in_racks(cluster: Cluster) -> bool:
    """Whether every planned route stays in one rack, and there is more than one rack to confuse."""
    routes = cluster.plan.routes
    racks = {member.instance.rack for member in cluster.members if member.pool.role != "colocated"}
    return bool(routes) and len(racks) > 1 and all(route.path != "cross-rack" for route in routes)


def timing_table(pool: Pool) -> bytes:
    """The mocker's NPZ from a pool's predictions: TTFT by prompt length, ITL by active KV tokens and context, in ms."""
    timing = pool.timing
    if timing is None:
        return b""
    context = np.maximum(np.asarray(timing.decode_context_tokens, dtype=float), 1.0)
    batch = np.asarray(timing.decode_batch, dtype=float)
    active = np.unique(np.concatenate([[0.0], np.outer(batch, context).ravel()]))
    steps = np.asarray(timing.decode_step_s)
    grid = np.empty((len(active), len(context)))
    for column, tokens in enumerate(context):
        grid[:, column] = np.interp(active / tokens, batch, steps[:, column])
    return _npz(
        {
            "prefill_isl": np.asarray(timing.prefill_tokens, dtype=float),
            "prefill_ttft_ms": 1e3 * np.asarray(timing.prefill_s),
            "decode_active_kv_tokens": active,
            "decode_context_length": context,
            "decode_itl": 1e3 * grid,
        }
    )


def _npz(arrays: Mapping[str, NDArray[np.float64]]) -> bytes:
    """An NPZ file whose bytes depend on its content only: `numpy.savez` writes the time of day into it."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, array in arrays.items():
            member = io.BytesIO()
            np.lib.format.write_array(member, np.ascontiguousarray(array))
            archive.writestr(zipfile.ZipInfo(f"{name}.npy", (1980, 1, 1, 0, 0, 0)), member.getvalue())
    return stream.getvalue()


def model_files() -> dict[str, bytes]:
    """A model folder that the mocker accepts: a small configuration and a tokenizer of made-up words, no weights."""
    syllables = [consonant + vowel for consonant in "bcdfghklmnprstvz" for vowel in "aeiou"]
    words = [first + second + end for end in ("", "n") for first in syllables for second in syllables]
    vocabulary = {word: number for number, word in enumerate(["<s>", "</s>", "<unk>", *words])}
    assert len(vocabulary) > MIN_VOCABULARY
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [{"id": n, "content": word, **special} for n, word in enumerate(("<s>", "</s>", "<unk>"))],
        "pre_tokenizer": {"type": "Whitespace"},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"},
    }
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(vocabulary),
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 131072,
        "torch_dtype": "bfloat16",
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    template = "{% for message in messages %}{{ message['content'] }} {% endfor %}"
    names = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
    }
    documents = {
        "config.json": config,
        "tokenizer.json": tokenizer,
        "tokenizer_config.json": {**names, "chat_template": template},
        "generation_config.json": {"bos_token_id": 0, "eos_token_id": 1},
    }
    return {f"model/{name}": json.dumps(document).encode() for name, document in documents.items()}


def _transfer_options(cluster: Cluster, member: Member) -> list[str]:
    """The mean planned bandwidth out of a prefill instance; the mocker charges it there."""
    rates = [
        route.transfer_s_per_token
        for route in cluster.plan.routes
        if route.prefill == member.instance.name and route.transfer_s_per_token > 0
    ]
    per_token = cluster.plan.kv_bytes_per_token
    if not rates or per_token <= 0:
        return []
    gigabytes_per_s = max(KV_GIGABYTES_PER_S_FLOOR, per_token / (sum(rates) / len(rates)) / 1e9)
    return ["--kv-transfer-bandwidth", f"{gigabytes_per_s:.6g}", "--kv-bytes-per-token", str(round(per_token))]
