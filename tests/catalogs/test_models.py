"""Model sizes, each against a second source."""

from __future__ import annotations

import pytest

from splitplan.catalogs.models import Model, find_model, load_models

MODELS = sorted(load_models())


@pytest.mark.parametrize("name", MODELS)
def test_parameters_counted_from_dimensions_match_the_published_total(name: str) -> None:
    """Within 2 % of what the publisher says, with the vision tower where the published figure includes it."""
    model = load_models()[name]
    counted = model.total_parameters + (model.vision_parameters if model.published_includes_vision else 0)
    assert model.published_parameters is not None
    assert counted == pytest.approx(model.published_parameters, rel=0.02)


@pytest.mark.parametrize(
    ("name", "active"),
    [
        ("mixtral-8x7b", 12.88e9),
        ("qwen3-30b-a3b", 3.35e9),
        ("qwen3-235b-a22b", 22.2e9),
        ("deepseek-v3", 37.55e9),
        ("gpt-oss-120b", 5.71e9),
        ("llama-4-maverick", 17.18e9),
        ("kimi-k2-instruct", 32.9e9),
        ("llama-3.1-8b", 8.03e9),
    ],
)
def test_active_parameters_leave_out_idle_experts(name: str, active: float) -> None:
    assert find_model(name).active_parameters == pytest.approx(active, rel=0.01)


@pytest.mark.parametrize("name", MODELS)
def test_attention_groups_add_up_to_the_layers(name: str) -> None:
    model = load_models()[name]
    mixing = sum(group.num_layers for group in model.attention)
    alone = model.moe.num_moe_layers if model.moe and model.mamba2 else 0  # Nemotron-H: feed-forward layers stand alone
    assert mixing + alone == model.num_layers


@pytest.mark.parametrize(
    ("name", "dtype", "expected_bytes"),
    [
        ("llama-3.1-8b", "bf16", 128 * 1024),
        ("llama-3.1-8b", "fp8", 64 * 1024),
        ("llama-3.1-70b", "bf16", 320 * 1024),
        ("llama-3.1-70b", "fp8", 160 * 1024),
        ("deepseek-v3", "bf16", 70_272),
        ("deepseek-v3.2", "bf16", 70_272 + 61 * 132),
        ("qwen2.5-7b", "bf16", 57_344),
        ("opt-175b", "fp16", 4_718_592),
        ("gemma-4-31b", "bf16", 901_120),
        ("nemotron-3-super-120b-a12b", "bf16", 8_192),
    ],
)
def test_kv_bytes_per_token(name: str, dtype: str, expected_bytes: int) -> None:
    assert find_model(name).kv_bytes_per_token(dtype) == expected_bytes


def test_kv_of_2000_tokens() -> None:
    """2,000 tokens are 262 MB on the 8B and 655 MB on the 70B model; 655 MB over 50 GB/s take 13 ms."""
    assert find_model("llama-3.1-8b").kv_bytes(2000, "bf16") == pytest.approx(262e6, rel=0.002)
    moved = find_model("llama-3.1-70b").kv_bytes(2000, "bf16")
    assert moved == pytest.approx(655e6, rel=0.002)
    assert moved / 50e9 == pytest.approx(13e-3, rel=0.01)


def test_prefill_work_of_the_70b() -> None:
    """2 × 70.6e9 × 2,000 = 2.8e14 FLOP, 286 ms at one H100's dense BF16 peak, 71 ms over four."""
    from splitplan.catalogs.gpus import find_gpu

    flop = 2 * find_model("llama-3.1-70b").total_parameters * 2000
    assert flop == pytest.approx(2.8e14, rel=0.01)
    assert flop / find_gpu("h100").flops_per_s["bf16"] == pytest.approx(0.286, rel=0.01)
    assert flop / find_gpu("h100").flops_per_s["bf16"] / 4 == pytest.approx(0.071, rel=0.01)


def test_sliding_windows_cap_the_cache() -> None:
    """gpt-oss-120b at 65,536 tokens and fp8 KV holds 1.13 GiB, not 2.26: half of its layers keep 128 tokens."""
    model = find_model("gpt-oss-120b")
    assert model.kv_bytes(65_536, "fp8") / 2**30 == pytest.approx(1.13, abs=0.005)
    assert model.kv_bytes_per_token("fp8") * 65_536 / 2**30 == pytest.approx(2.25, abs=0.02)


def test_window_is_not_felt_before_it_is_full() -> None:
    model = find_model("gemma-3-27b")
    assert model.kv_bytes(1024, "bf16") == 1024 * model.kv_bytes_per_token("bf16")
    grown = model.kv_bytes(2024, "bf16") - model.kv_bytes(1024, "bf16")
    assert grown == 1000 * 81_920  # only the 10 full layers grow on


def test_state_layers_hold_a_constant() -> None:
    model = find_model("nemotron-3-super-120b-a12b")
    assert model.kv_bytes(0, "bf16") == model.state_bytes == 170_229_760
    assert model.kv_bytes(1000, "bf16") == model.state_bytes + 1000 * 8_192


@pytest.mark.parametrize(
    ("name", "dtype", "gigabytes"),
    [
        ("llama-3.1-70b", "bf16", 141.1),
        ("llama-3.1-70b", "fp8", 70.6 + 2.1),  # embedding and head stay in 16 bits
        ("gpt-oss-120b", "mxfp4", 65.2),
        ("gpt-oss-20b", "mxfp4", 13.8),
        ("deepseek-v3", "fp8", 673.0),
        ("deepseek-r1", "nvfp4", 396.0),  # attention stays in 16 bits
        ("llama-3.1-405b", "bf16", 811.7),
        ("kimi-k2.5", "int4", 546.6),
    ],
)
def test_weight_bytes(name: str, dtype: str, gigabytes: float) -> None:
    assert find_model(name).weight_bytes(dtype) / 1e9 == pytest.approx(gigabytes, rel=0.01)


@pytest.mark.parametrize("name", MODELS)
def test_fewer_bits_never_weigh_more(name: str) -> None:
    model = load_models()[name]
    sizes = [model.weight_bytes(dtype) for dtype in ("fp32", "bf16", "fp8", "nvfp4")]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[1] == 2 * model.total_parameters


def test_kv_heads_are_replicated_beyond_their_number() -> None:
    model = find_model("llama-3.1-70b")
    group = model.attention[0]
    assert [group.kv_heads_per_rank(tp) for tp in (1, 2, 8, 16)] == [8, 4, 1, 1]
    assert model.kv_bytes_per_token_per_rank("bf16", 16) == model.kv_bytes_per_token("bf16") / 8
    deepseek = find_model("deepseek-v3")
    assert deepseek.kv_bytes_per_token_per_rank("bf16", 8) == deepseek.kv_bytes_per_token("bf16")


@pytest.mark.parametrize("stages", [1, 2, 3, 7, 80])
def test_layers_per_stage_add_up(stages: int) -> None:
    """Stages differ by at most one layer, and the last never has more than another."""
    layers = find_model("llama-3.1-70b").layers_per_stage(stages)
    assert sum(layers) == 80
    assert max(layers) - min(layers) <= 1
    assert layers[-1] == min(layers)
    assert sorted(layers) == sorted((80 // stages + (index < 80 % stages)) for index in range(stages))


def test_content_hash_ignores_names_and_follows_dimensions() -> None:
    from dataclasses import replace

    def changed(**fields: object) -> Model:
        return replace(find_model("llama-3.1-8b"), **fields)  # type: ignore[arg-type]

    base = changed().content_hash
    assert changed(name="other", source="elsewhere", notes=("x",)).content_hash == base
    assert changed(hidden_size=4097).content_hash != base
    assert changed(weight_dtype="fp8").content_hash != base
    assert len({model.content_hash for model in load_models().values()}) >= len(MODELS) - 12  # twins share dimensions
