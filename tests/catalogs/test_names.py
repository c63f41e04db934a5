"""Finding things in the catalogs by name."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from splitplan.catalogs.engines import find_engine, load_engines
from splitplan.catalogs.errors import InputError, SplitplanError, UnknownNameError
from splitplan.catalogs.gpus import find_gpu, load_gpus
from splitplan.catalogs.links import find_link, load_links
from splitplan.catalogs.models import find_model, load_models


@pytest.mark.parametrize(
    ("name", "canonical"),
    [
        ("h100", "h100-sxm"),
        ("H100_SXM", "h100-sxm"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("NVIDIA-H100-80GB-HBM3", "h100-sxm"),
        ("a100", "a100-sxm-80"),
        ("A100-SXM-80", "a100-sxm-80"),
        ("A100 40GB", "a100-sxm-40"),
        ("h200", "h200-sxm"),
        ("H20", "h20"),
        ("L40S", "l40s"),
        ("l40", "l40"),
        ("L4", "l4"),
        ("A10G", "a10g"),
        ("a10", "a10"),
        ("NVIDIA-L4-SHARED", "l4"),
        ("B200", "b200"),
        ("GB200", "gb200"),
        ("mi300x", "mi300x"),
        ("cpu", "cpu"),
    ],
)
def test_gpu_names_match_whole(name: str, canonical: str) -> None:
    """Case, spaces and underscores do not count; a name that contains another is not that other."""
    assert find_gpu(name).name == canonical


def test_every_name_of_every_catalog_finds_its_entry() -> None:
    for gpu in load_gpus().values():
        assert {find_gpu(n).name for n in (gpu.name, *gpu.aliases, *gpu.nvml_names, *gpu.product_labels)} == {gpu.name}
    for link in load_links().values():
        assert {find_link(name).name for name in (link.name, *link.aliases)} == {link.name}
    for model in load_models().values():
        assert {find_model(name).name for name in (model.name, *model.aliases, *model.variants)} == {model.name}
    for engine in load_engines().values():
        assert find_engine(f"{engine.name}@{engine.version}") == engine


def test_unknown_gpu_offers_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="did you mean h100-sxm") as caught:
        find_gpu("h100-sxmm", where="fleet.yaml:7", key="racks[0].gpu")
    assert str(caught.value).startswith("fleet.yaml:7 `racks[0].gpu`: unknown gpu 'h100-sxmm'")


def test_unknown_names_in_the_other_catalogs() -> None:
    with pytest.raises(UnknownNameError, match="unknown link"):
        find_link("nvlink9")
    with pytest.raises(UnknownNameError, match=r"llama-3\.1-70b"):
        find_model("llama-3.1-700b")
    with pytest.raises(UnknownNameError, match="did you mean vllm"):
        find_engine("vlm")


def test_mig_slice_is_refused_with_a_way_out() -> None:
    with pytest.raises(InputError, match=r"MIG slice[\s\S]*turn MIG off"):
        find_gpu("NVIDIA-A100-SXM4-80GB-MIG-1g.10gb")


def test_alias_of_a_quantised_checkpoint_changes_the_dtype_only() -> None:
    plain, quantised = find_model("Qwen/Qwen3-8B"), find_model("qwen3-8b-fp8")
    assert (plain.weight_dtype, quantised.weight_dtype) == ("bf16", "fp8")
    assert plain.total_parameters == quantised.total_parameters
    assert plain.content_hash != quantised.content_hash


def test_model_folder_of_another_machine_is_found_by_its_last_part() -> None:
    assert find_model("/models/elsewhere/DeepSeek-R1-0528").name == "deepseek-r1"


def test_other_engine_version_says_whose_defaults_it_has() -> None:
    engine = find_engine("vllm@0.24.0")
    assert engine.version == "0.24.0"
    assert "0.32.0" in engine.notes[-1]
    with pytest.raises(InputError, match="names no version"):
        find_engine("vllm@")


@settings(max_examples=200, deadline=None)
@given(
    st.text(max_size=40)
    | st.sampled_from(
        ["x" * 5000, "a/" * 3000, "a\0b", "a\0.json", "x" * 5000 + ".json", "../..", "~", "vllm@@", "h100\n"]
    )
)
def test_no_name_raises_anything_but_our_errors(name: str) -> None:
    for find in (find_gpu, find_link, find_model, find_engine):
        try:
            found = find(name).name
        except SplitplanError as error:
            found = str(error)
        assert found
        assert len(found) < 500


def test_dynamo_engine_inherits_from_the_engine_inside() -> None:
    assert find_engine("dynamo-vllm").memory_fraction == find_engine("vllm").memory_fraction
    assert find_engine("dynamo-vllm").connectors == ("nixl",)
