"""Reading config.json files. The files here are written for the tests, from the published dimensions of the models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from splitplan.catalogs.errors import DocumentError
from splitplan.catalogs.huggingface import read_config
from splitplan.catalogs.models import Model, find_model

LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192},
}
QWEN2 = {
    **LLAMA,
    "model_type": "qwen2",
    "num_hidden_layers": 28,
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152064,
    "max_position_embeddings": 32768,
    "use_sliding_window": False,
    "sliding_window": 131072,
    "max_window_layers": 28,
    "rope_scaling": None,
}
MIXTRAL = {
    **LLAMA,
    "model_type": "mixtral",
    "vocab_size": 32000,
    "max_position_embeddings": 32768,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "sliding_window": None,
    "rope_scaling": None,
}
QWEN3_MOE = {
    **LLAMA,
    "model_type": "qwen3_moe",
    "num_hidden_layers": 48,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "vocab_size": 151936,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "max_position_embeddings": 40960,
    "rope_scaling": None,
}
GPT_OSS = {
    "model_type": "gpt_oss",
    "num_hidden_layers": 36,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "head_dim": 64,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 201088,
    "max_position_embeddings": 131072,
    "num_local_experts": 128,
    "num_experts_per_tok": 4,
    "sliding_window": 128,
    "tie_word_embeddings": False,
    "layer_types": ["sliding_attention", "full_attention"] * 18,
    "quantization_config": {
        "quant_method": "mxfp4",
        "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "lm_head"],
    },
}
DEEPSEEK = {
    "model_type": "deepseek_v3",
    "num_hidden_layers": 61,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "vocab_size": 129280,
    "tie_word_embeddings": False,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "moe_intermediate_size": 2048,
    "first_k_dense_replace": 3,
    "moe_layer_freq": 1,
    "num_nextn_predict_layers": 1,
    "max_position_embeddings": 163840,
    "rope_scaling": {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096},
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    "time_step_limit": [0.0, float("inf")],  # other keys may hold what JSON does not know
}
GEMMA3 = {
    "model_type": "gemma3",
    "vision_config": {"hidden_size": 1152},
    "text_config": {
        "model_type": "gemma3_text",
        "num_hidden_layers": 62,
        "hidden_size": 5376,
        "intermediate_size": 21504,
        "num_attention_heads": 32,
        "num_key_value_heads": 16,
        "head_dim": 128,
        "vocab_size": 262144,
        "sliding_window": 1024,
        "max_position_embeddings": 131072,
    },
}
GEMMA2 = {
    "model_type": "gemma2",
    "num_hidden_layers": 42,
    "hidden_size": 3584,
    "intermediate_size": 14336,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 256,
    "vocab_size": 256000,
    "sliding_window": 4096,
    "max_position_embeddings": 8192,
}
PHI4 = {
    **LLAMA,
    "model_type": "phi3",
    "num_hidden_layers": 40,
    "hidden_size": 5120,
    "intermediate_size": 17920,
    "vocab_size": 100352,
    "num_attention_heads": 40,
    "num_key_value_heads": 10,
    "max_position_embeddings": 16384,
    "sliding_window": None,
}
OPT = {
    "model_type": "opt",
    "num_hidden_layers": 40,
    "hidden_size": 5120,
    "ffn_dim": 20480,
    "num_attention_heads": 40,
    "vocab_size": 50272,
    "max_position_embeddings": 2048,
    "torch_dtype": "float16",
}
BLOOM = {
    "model_type": "bloom",
    "n_layer": 70,
    "hidden_size": 14336,
    "n_head": 112,
    "vocab_size": 250880,
    "torch_dtype": "bfloat16",
    "seq_length": 2048,
}
GLM = {
    "model_type": "glm4_moe",
    "num_hidden_layers": 46,
    "hidden_size": 4096,
    "intermediate_size": 10944,
    "head_dim": 128,
    "num_attention_heads": 96,
    "num_key_value_heads": 8,
    "vocab_size": 151552,
    "max_position_embeddings": 131072,
    "n_routed_experts": 128,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "moe_intermediate_size": 1408,
    "first_k_dense_replace": 1,
    "attention_bias": True,
    "tie_word_embeddings": False,
    "num_nextn_predict_layers": 1,
}
LLAMA4 = {
    "model_type": "llama4",
    "text_config": {
        "model_type": "llama4_text",
        "num_hidden_layers": 48,
        "hidden_size": 5120,
        "intermediate_size": 8192,
        "intermediate_size_mlp": 16384,
        "num_attention_heads": 40,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 202048,
        "num_local_experts": 128,
        "num_experts_per_tok": 1,
        "interleave_moe_layer_step": 2,
        "attention_chunk_size": 8192,
        "max_position_embeddings": 1048576,
        "tie_word_embeddings": False,
    },
}
MISTRAL = {
    **LLAMA,
    "model_type": "mistral",
    "vocab_size": 32000,
    "max_position_embeddings": 32768,
    "sliding_window": 4096,
    "rope_scaling": None,
}


def read(tmp_path: Path, config: dict[str, Any], name: str = "model") -> Model:
    folder = tmp_path / name
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    return read_config(folder / "config.json")


@pytest.mark.parametrize(
    ("config", "catalog_name"),
    [
        (LLAMA, "llama-3.1-8b"),
        (QWEN2, "qwen2.5-7b"),
        (MIXTRAL, "mixtral-8x7b"),
        (QWEN3_MOE, "qwen3-30b-a3b"),
        (GPT_OSS, "gpt-oss-120b"),
        (DEEPSEEK, "deepseek-v3"),
        (GEMMA3, "gemma-3-27b"),
        (GEMMA2, "gemma-2-9b"),
        (PHI4, "phi-4"),
        (OPT, "opt-13b"),
        (BLOOM, "bloom-176b"),
        (GLM, "glm-4.5-air"),
        (LLAMA4, "llama-4-maverick"),
        (MISTRAL, "mistral-7b-v0.1"),
    ],
)
def test_config_gives_the_model_of_the_catalog(tmp_path: Path, config: dict[str, Any], catalog_name: str) -> None:
    """Two ways to the same sizes: the file's keys and the catalog's dimensions."""
    ours, catalog = read(tmp_path, config), find_model(catalog_name)
    assert ours.attention == catalog.attention
    assert (ours.mla, ours.moe) == (catalog.mla, catalog.moe)
    assert ours.total_parameters == catalog.total_parameters
    assert ours.active_parameters == catalog.active_parameters
    assert ours.weight_bytes(catalog.weight_dtype) == catalog.weight_bytes(catalog.weight_dtype)
    assert ours.weight_dtype == catalog.weight_dtype
    assert ours.kv_bytes(50_000, "bf16") == catalog.kv_bytes(50_000, "bf16")
    assert ours.max_position_embeddings == catalog.max_position_embeddings
    assert ours.attention_sinks == catalog.attention_sinks
    assert ours.confidence == "solid"


def test_model_is_found_by_file_and_by_folder(tmp_path: Path) -> None:
    by_file = read(tmp_path, LLAMA, "my-llama")
    assert by_file.name == "my-llama"
    assert find_model(str(tmp_path / "my-llama")) == by_file
    assert find_model(str(tmp_path / "my-llama" / "config.json")) == by_file
    assert by_file.content_hash == find_model("llama-3.1-8b").content_hash


def test_folder_without_a_config_says_so(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match=r"holds no config\.json"):
        find_model(str(tmp_path))


@pytest.mark.parametrize(
    ("quantization", "dtype"),
    [
        ({"quant_method": "fp8"}, "fp8"),
        ({"quant_method": "gptq", "bits": 4}, "int4"),
        ({"quant_method": "gptq", "bits": 8}, "int8"),
        ({"quant_method": "awq", "bits": 4}, "int4"),
        ({"quant_method": "mxfp4"}, "mxfp4"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "int4"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4"),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "fp8"),
        (
            {
                "quant_method": "modelopt",
                "quant_algo": "MIXED_PRECISION",
                "config_groups": {
                    "group_0": {"weights": {"num_bits": 8, "type": "float"}},
                    "group_1": {"weights": {"num_bits": 4, "type": "float", "group_size": 16}},
                },
            },
            "nvfp4",
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"g": {"weights": {"num_bits": 8, "type": "float"}}},
            },
            "fp8",
        ),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"num_bits": 8, "type": "int"}}}},
            "int8",
        ),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"num_bits": 4, "type": "int"}}}},
            "int4",
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"g": {"weights": {"num_bits": 4, "type": "float", "group_size": 16}}},
            },
            "nvfp4",
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "format": "mxfp4-pack-quantized",
                "config_groups": {"g": {"weights": {"num_bits": 4, "type": "float", "group_size": 32}}},
            },
            "mxfp4",
        ),
    ],
)
def test_quantised_checkpoints(tmp_path: Path, quantization: dict[str, Any], dtype: str) -> None:
    assert read(tmp_path, {**LLAMA, "quantization_config": quantization}).weight_dtype == dtype


def test_layers_left_out_of_quantisation_stay_in_16_bits(tmp_path: Path) -> None:
    """A checkpoint that keeps attention and shared experts in bf16 weighs what Kimi-K2.5 weighs."""
    groups = {"g": {"weights": {"num_bits": 4, "type": "int", "group_size": 32}}}
    ignore = ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", r"re:.*mlp\.(gate|up|gate_up|down)_proj.*"]
    config = {
        **DEEPSEEK,
        "num_attention_heads": 64,
        "vocab_size": 163840,
        "n_routed_experts": 384,
        "first_k_dense_replace": 1,
        "quantization_config": {"quant_method": "compressed-tensors", "config_groups": groups, "ignore": ignore},
    }
    ours, catalog = read(tmp_path, config), find_model("kimi-k2.5")
    assert ours.quantized_parts == ("experts",)
    assert ours.weight_bytes("int4") == catalog.weight_bytes("int4")


def test_mixed_precision_counts_only_the_feed_forward_parts_in_the_narrow_dtype(tmp_path: Path) -> None:
    """What lies between, attention in fp8 for instance, is counted in 16 bits: too much rather than too little."""
    groups = {"a": {"weights": {"num_bits": 4, "type": "float", "group_size": 16}}}
    config = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "config_groups": groups}
    model = read(tmp_path, {**LLAMA, "quantization_config": config})
    assert model.quantized_parts == ("mlp",)
    assert model.weight_bytes("nvfp4") > find_model("llama-3.1-8b").weight_bytes("nvfp4")


def test_modelopt_file_beside_the_config(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "hf_quant_config.json").write_text('{"quantization": {"quant_algo": "FP8"}}')
    assert read(tmp_path, LLAMA).weight_dtype == "fp8"


def test_yarn_stretches_the_positions(tmp_path: Path) -> None:
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    assert read(tmp_path, {**QWEN2, "rope_scaling": scaling}).max_position_embeddings == 131072


def test_sliding_window_of_qwen2_from_a_layer_on(tmp_path: Path) -> None:
    config = {**QWEN2, "use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 20}
    groups = read(tmp_path, config).attention
    assert [(group.kind, group.num_layers) for group in groups] == [("full", 20), ("sliding", 8)]


def test_mamba_hybrid_by_its_pattern(tmp_path: Path) -> None:
    config = {
        "model_type": "nemotron_h",
        "num_hidden_layers": 8,
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "vocab_size": 1000,
        "mamba_num_heads": 32,
        "mamba_head_dim": 64,
        "n_groups": 8,
        "ssm_state_size": 128,
        "conv_kernel": 4,
        "hybrid_override_pattern": "M-M-M*M-",
        "max_position_embeddings": 8192,
    }
    model = read(tmp_path, config)
    assert [(group.kind, group.num_layers) for group in model.attention] == [("full", 1), ("state", 4)]
    assert model.num_dense_mlp_layers == 3
    assert model.state_bytes == 4 * (32 * 64 * 128 * 4 + (32 * 64 + 2 * 8 * 128) * 3 * 2)
    blocks = ["mamba", "mlp", "mamba", "mlp", "mamba", "attention", "mamba", "mlp"]
    listed = {
        key: value for key, value in config.items() if key not in ("hybrid_override_pattern", "num_hidden_layers")
    }
    assert read(tmp_path, {**listed, "layers_block_type": blocks}).content_hash == model.content_hash


@pytest.mark.parametrize(
    ("layers", "hidden", "experts", "moe_width", "heads", "value_heads", "billions"),
    [(40, 2048, 256, 512, 16, 32, 34.7), (60, 4096, 512, 1024, 32, 64, 396.3)],
)
def test_delta_rule_hybrid(
    tmp_path: Path,
    layers: int,
    hidden: int,
    experts: int,
    moe_width: int,
    heads: int,
    value_heads: int,
    billions: float,
) -> None:
    """Qwen3.5-35B-A3B and 397B-A17B: three delta-rule layers before each full one; the counts match their names."""
    text = {"model_type": "qwen3_5_moe_text", "num_hidden_layers": layers, "hidden_size": hidden, "vocab_size": 248320}
    text |= {"num_attention_heads": heads, "num_key_value_heads": 2, "head_dim": 256, "max_position_embeddings": 262144}
    text |= {"num_experts": experts, "num_experts_per_tok": 8, "moe_intermediate_size": moe_width}
    text |= {"shared_expert_intermediate_size": moe_width, "tie_word_embeddings": False, "attn_output_gate": True}
    text |= {"linear_num_key_heads": 16, "linear_num_value_heads": value_heads, "linear_key_head_dim": 128}
    text |= {"linear_value_head_dim": 128, "linear_conv_kernel_dim": 4}
    text["layer_types"] = (["linear_attention"] * 3 + ["full_attention"]) * (layers // 4)  # type: ignore[assignment]
    model = read(tmp_path, {"model_type": "qwen3_5_moe", "text_config": text})
    assert model.total_parameters / 1e9 == pytest.approx(billions, rel=0.002)
    assert [(group.kind, group.num_layers) for group in model.attention] == [
        ("full", layers // 4),
        ("state", layers * 3 // 4),
    ]
    assert model.kv_bytes_per_token("bf16") == layers // 4 * 2 * 2 * 256 * 2
    assert model.kv_bytes(0, "bf16") == layers * 3 // 4 * (
        value_heads * 128 * 128 * 4 + (2 * 16 + value_heads) * 128 * 3 * 2
    )


def test_unknown_architecture_is_read_by_its_keys_and_says_so(tmp_path: Path) -> None:
    model = read(tmp_path, {**LLAMA, "model_type": "novel"})
    assert model.total_parameters == find_model("llama-3.1-8b").total_parameters
    assert model.confidence.startswith("likely: architecture 'novel' is not known here")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_hidden_layers": None}, "`num_hidden_layers`: missing (also looked for: n_layer"),
        ({"hidden_size": "big"}, "`hidden_size`: is 'big'; expected a whole number of at least 1"),
        ({"hidden_size": -4096}, "`hidden_size`: is -4096"),
        ({"num_attention_heads": 0}, "`num_attention_heads`: is 0"),
        ({"num_key_value_heads": 5}, "expected a divisor of the 32 attention heads"),
        ({"vocab_size": True}, "`vocab_size`: is True"),
        ({"tie_word_embeddings": "no"}, "expected true or false"),
        ({"torch_dtype": "int3"}, "expected bfloat16, float16 or float32"),
        ({"quantization_config": {"quant_method": "magic"}}, "has a method that is not known: 'magic'; expected fp8"),
        ({"layer_types": ["full_attention"]}, "is not a list with one name per layer; expected 32 names"),
        ({"layer_types": ["hyena"] * 32}, "names a kind that is not known here: hyena"),
        ({"layer_types": ["sliding_attention"] * 32}, "missing, though layer_types names sliding layers"),
        ({"compress_ratios": [4] * 32}, "describes layers of a kind that is not known here\n  next: add the model"),
        ({"num_local_experts": 8, "num_experts_per_tok": 9}, "expected at most the 8 experts"),
        ({"num_local_experts": 8}, "`num_experts_per_tok`: missing"),
        ({"kv_lora_rank": 512}, "`qk_rope_head_dim`: missing"),
    ],
)
def test_what_is_wrong_names_the_key(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(DocumentError) as caught:
        read(tmp_path, {**LLAMA, **change})
    assert message in str(caught.value)
    assert "config.json:" in str(caught.value)


def test_a_config_that_is_no_model_lists_all_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(DocumentError) as caught:
        read(tmp_path, {"hello": "world"})
    assert {"num_hidden_layers", "hidden_size", "vocab_size"} <= {problem.key for problem in caught.value.problems}


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(sorted(DEEPSEEK)),
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.lists(st.none()),
)
def test_no_value_raises_anything_but_document_error(key: str, value: object) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        try:
            model = read(Path(folder), {**DEEPSEEK, key: value})
        except DocumentError as error:
            message = str(error)
        else:
            message = model.name
    assert message
