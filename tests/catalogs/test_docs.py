"""What docs/catalogs.md and docs/fleets.md state about the code is so."""

from __future__ import annotations

import re
from pathlib import Path

from splitplan.catalogs.engines import EngineSide, connector_problems, find_engine
from splitplan.catalogs.models import find_model, load_models
from splitplan.planner.spec.readers.kubectl import TOPOLOGY_SCHEMES

DOCS = Path(__file__).parents[2] / "docs"


def test_the_connector_example_gives_the_sentence_shown() -> None:
    text = (DOCS / "catalogs.md").read_text()
    shown = re.search(r">>> connector_problems\([^\n]*\n\['([^\n]*)'\]", text)
    prefill, decode = (EngineSide("m", gpu, 4, 1, "bf16", "bf16", 16, "", "0.32.0") for gpu in ("h100-sxm", "b200"))
    found = connector_problems(find_engine("vllm"), "nixl", find_model("llama-3.1-70b"), prefill, decode)
    assert shown is not None
    assert found == [shown[1]]


def test_the_number_of_models_is_current() -> None:
    assert f"all {len(load_models())} models" in (DOCS / "catalogs.md").read_text()


def test_every_topology_label_is_documented() -> None:
    text = (DOCS / "fleets.md").read_text()
    assert [key for scheme in TOPOLOGY_SCHEMES for key in scheme if f"`{key}`" not in text] == []
