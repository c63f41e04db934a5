"""Published inputs and answers, each with its source. Figures are facts of those sources."""

from __future__ import annotations

from dataclasses import dataclass

MELANGE_SOURCE = "github.com/tyler-griggs/melange-release d46ab43, melange/config/example.json and README"
MELANGE_USD_PER_HOUR = {"a10g": 1.01, "a100-sxm-80": 3.67}
MELANGE_MAX_REQ_PER_S = {  # [input bucket][output bucket]
    "a10g": ((2.0, 1.0), (5.0, 2.0)),
    "a100-sxm-80": ((20.0, 20.0), (40.0, 20.0)),
}
MELANGE_SHARES = ((0.2, 0.1), (0.5, 0.2))
MELANGE_RATE_REQ_PER_S = 30.0
MELANGE_PLAN = {"a10g": 3, "a100-sxm-80": 1}
MELANGE_COST = 6.70


@dataclass(frozen=True, slots=True)
class LayerTable:
    """Helix: tokens/s a node of each type serves while it holds so many layers, and how many nodes there are."""

    name: str
    num_layers: int
    nodes: dict[str, int]
    tokens_per_s: dict[str, tuple[float, ...]]  # index 0: one layer
    helix_objective: float
    helix_bound: float


HELIX_SOURCE = "github.com/Thesys-lab/Helix-ASPLOS25 148b733, artifact_evaluation"
HELIX_10 = LayerTable(
    "10 nodes, 30B",
    60,
    {"T4": 6, "L4": 4},
    {
        "T4": (1987.969, 901.938, 539.039, 404.262, 285.345, 331.343, 231.062),
        "L4": (
            2485.538,
            1145.044,
            763.518,
            480.992,
            384.901,
            286.587,
            245.735,
            189.108,
            168.167,
            212.637,
            193.496,
        ),
    },
    286.587,
    286.587,
)
HELIX_24 = LayerTable(
    "24 nodes, 70B",
    80,
    {"L4": 8, "T4": 12, "A100": 4},
    {
        "L4": (7557.863, 3625.715, 2171.878, 1476.085, 1017.573, 747.785, 531.703),
        "T4": (5709.208, 2434.367, 1347.867, 757.853),
        "A100": (
            23833.87,
            11384.255,
            7201.412,
            5264.623,
            4096.655,
            3124.143,
            2595.679,
            2045.641,
            1754.382,
            1392.635,
            1212.177,
            952.107,
        ),
    },
    1289.56,
    78062.4,
)

WVA_SOURCE = "github.com/llm-d/llm-d-autoscaling pull request 21, a log line"
WVA_COST = {"MI300X": 65.0, "A100": 40.0, "Gaudi2": 23.0}
WVA_ITL_MS = {"MI300X": (7.77, 0.15), "A100": (20.58, 0.41), "Gaudi2": (17.15, 0.34)}  # alpha + beta · batch
WVA_MAX_BATCH, WVA_REQ_PER_MIN, WVA_TOKENS, WVA_ITL_LIMIT_MS = 4, 38.67, 119, 24.0
WVA_ACCELERATOR, WVA_REPLICAS = "Gaudi2", 1

AIBRIX_SOURCE = "github.com/vllm-project/aibrix issue 637: a plan asked for 2 L20 where there was 1"
AIBRIX_INVENTORY = {"l20": 1, "a10g": 8}
AIBRIX_PLAN = {"a10g": 7, "l20": 1}
