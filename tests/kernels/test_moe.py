"""Grouped products against float64, on odd sizes and lopsided routing."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="needs torch (extra gpu)")
pytest.importorskip("triton", reason="needs triton (extra gpu)")

from splitplan.kernels import reference  # noqa: E402
from splitplan.kernels.configs import Config  # noqa: E402
from splitplan.kernels.moe import grouped_gemm, route  # noqa: E402

CONFIG = Config(16, 32, 4, 2, block_k=32)


def choices(tokens: int, experts: int, topk: int) -> torch.Tensor:
    return torch.rand(tokens, experts).topk(topk).indices


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("tokens", "experts", "topk", "width", "columns"), [(33, 5, 2, 70, 100), (1, 8, 2, 33, 17)])
def test_grouped_product_is_within_its_bound(
    tokens: int, experts: int, topk: int, width: int, columns: int, dtype: torch.dtype
) -> None:
    rows = torch.randn(tokens, width).to(dtype)
    weights = torch.randn(experts, columns, width).to(dtype)
    chosen = choices(tokens, experts, topk)
    out = torch.full((tokens * topk, columns), float("nan"), dtype=dtype)
    grouped_gemm(rows, weights, route(chosen, experts, 16), out=out, config=CONFIG)
    expected = reference.grouped_gemm(rows, weights, chosen)
    assert bool(((out.double() - expected).abs() <= reference.product_bound(rows, weights, expected)).all())


def test_the_second_product_takes_a_row_per_choice_and_its_routing_weight() -> None:
    tokens, experts, topk = 9, 4, 2
    rows, weights = torch.randn(tokens * topk, 20), torch.randn(experts, 12, 20)
    chosen, scale = choices(tokens, experts, topk), torch.rand(tokens * topk)
    out = grouped_gemm(rows, weights, route(chosen, experts, 16), per_choice=True, scale=scale, config=CONFIG)
    expected = reference.grouped_gemm(rows, weights, chosen) * scale[:, None]
    assert bool(((out.double() - expected).abs() <= reference.product_bound(rows, weights, expected)).all())


@pytest.mark.parametrize(("tokens", "experts", "topk"), [(7, 5, 2), (40, 3, 1), (1, 64, 4), (100, 2, 2)])
def test_routing_gives_each_pair_one_row_in_a_tile_of_its_expert(tokens: int, experts: int, topk: int) -> None:
    chosen = choices(tokens, experts, topk)
    routing = route(chosen, experts, 16)
    placed = routing.rows[routing.rows < tokens * topk]
    assert sorted(placed.tolist()) == list(range(tokens * topk))
    tiles = routing.rows.view(-1, 16)
    for tile, expert in zip(tiles, routing.experts.tolist(), strict=True):
        mine = tile[tile < tokens * topk].long()
        assert bool((chosen.flatten()[mine] == expert).all())
        assert expert >= 0 or len(mine) == 0


def test_all_tokens_on_one_expert() -> None:
    """The worst routing there is: nothing is lost, and empty experts cost no row."""
    rows, weights = torch.randn(40, 16), torch.randn(4, 8, 16)
    chosen = torch.full((40, 1), 3)
    out = grouped_gemm(rows, weights, route(chosen, 4, 16), config=CONFIG)
    expected = reference.grouped_gemm(rows, weights, chosen)
    assert bool(((out.double() - expected).abs() <= reference.product_bound(rows, weights, expected)).all())


def test_a_routing_for_other_tiles_is_refused() -> None:
    routing = route(choices(4, 4, 1), 4, 32)
    with pytest.raises(ValueError, match="tiles of 32"):
        grouped_gemm(torch.randn(4, 16), torch.randn(4, 8, 16), routing, config=CONFIG)
