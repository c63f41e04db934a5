"""Option names of the engines."""

from __future__ import annotations

import pytest

from splitplan.catalogs.errors import LaunchError
from splitplan.launcher.inventory import check_options, find_version, options, unknown_options, versions
from splitplan.launcher.render import LaunchOptions, render
from tests.launcher.plans import mixed_plan


def test_a_prefix_of_a_version_finds_it() -> None:
    assert find_version("vllm", "0.32") == "0.32.0"
    assert find_version("vllm") == versions("vllm")[-1]


def test_a_tool_s_name_does_not_match_another_s() -> None:
    """vllm-router's file is not a version of vllm."""
    assert all(version[0].isdigit() for version in versions("vllm"))
    assert versions("vllm-router") == ["0.1.17"]


def test_an_unknown_version_names_those_there_are() -> None:
    with pytest.raises(LaunchError, match=r"vllm@0\.32\.0"):
        find_version("vllm", "0.11")


def test_an_option_the_tool_lacks_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(LaunchError, match=r"did you mean --max-num-seqs"):
        check_options("vllm", "0.32.0", ["vllm", "--max-num-seq", "4"])


def test_values_that_are_not_options_pass() -> None:
    assert not unknown_options("vllm", "0.32.0", ["serve", "a-model", "--port=8000", "-1", "{}"])


def test_inventories_hold_whole_names_only() -> None:
    for tool in ("vllm", "vllm-router", "sglang", "sglang-router", "dynamo.vllm", "dynamo.mocker", "dynamo.frontend"):
        found = options(tool, versions(tool)[-1])
        assert len(found) > 50
        assert not [name for name in found if name.endswith("-") or " " in name]


def test_a_plan_for_an_engine_version_without_inventory_is_refused_unless_told_which() -> None:
    old = mixed_plan(engine_version="0.11.0")
    with pytest.raises(LaunchError, match=r"--engine vllm@0\.32\.0"):
        render(old, LaunchOptions(model_path="m/x", checkpoint_dtype="bf16"))
    assert render(old, LaunchOptions(model_path="m/x", checkpoint_dtype="bf16", engine="vllm@0.32"))
