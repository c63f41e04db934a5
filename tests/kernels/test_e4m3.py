"""e4m3 by integers is exact: every code, every tie, both ends, against the format's definition in float64."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="needs torch (extra gpu)")
pytest.importorskip("triton", reason="needs triton (extra gpu)")

from splitplan.kernels.e4m3 import dequantize_kv, quantize_kv  # noqa: E402
from splitplan.kernels.reference import e4m3_values  # noqa: E402

ONE = torch.ones(1)


def codes_of(values: torch.Tensor) -> torch.Tensor:
    return quantize_kv(values.float().view(1, 1, -1), ONE).view(-1)


def test_every_finite_value_keeps_its_code() -> None:
    values = e4m3_values()
    finite = ~values.isnan()
    codes = torch.arange(256)[finite]
    assert torch.equal(codes_of(values[finite]).long(), codes)


def test_every_code_has_its_value() -> None:
    codes = torch.arange(256, dtype=torch.uint8)
    values = dequantize_kv(codes.view(1, 1, -1), ONE, torch.empty(1, 1, 256)).view(-1)
    finite = ~e4m3_values().isnan()
    assert torch.equal(values.double()[finite], e4m3_values()[finite])


def test_midpoints_go_to_the_even_code() -> None:
    """Round to nearest even, subnormals included: halfway between two neighbours the even code wins."""
    sizes = e4m3_values()[:127]  # 0 … 448
    middle = (sizes[:-1] + sizes[1:]) / 2
    expected = torch.arange(126) + torch.arange(126) % 2
    assert torch.equal(codes_of(middle).long(), expected)
    above, below = (torch.nextafter(middle.float(), torch.tensor(to)) for to in (float("inf"), 0.0))
    assert torch.equal(codes_of(above).long(), torch.arange(126) + 1)
    assert torch.equal(codes_of(below).long(), torch.arange(126))


def test_any_value_goes_to_a_nearest_code() -> None:
    values = torch.randn(500) * torch.logspace(-4, 2.6, 500)
    finite = e4m3_values()[~e4m3_values().isnan()]
    decoded = e4m3_values()[codes_of(values).long()]
    nearest = (values.double()[:, None] - finite[None, :]).abs().min(1).values
    assert torch.equal((values.double() - decoded).abs(), nearest)


def test_torchs_own_conversion_agrees() -> None:
    values = torch.randn(1000) * torch.logspace(-4, 2.6, 1000)
    values = values[values.abs() < 448]
    assert torch.equal(codes_of(values), values.to(torch.float8_e4m3fn).view(torch.uint8))


def test_what_is_too_large_saturates() -> None:
    assert codes_of(torch.tensor([449.0, 1e9, -1e9, float("inf")])).tolist() == [0x7E, 0x7E, 0xFE, 0x7E]


def test_each_head_has_its_own_scale() -> None:
    values = torch.tensor([[[1.0, 2.0], [1.0, 2.0]]])
    codes = quantize_kv(values, torch.tensor([1.0, 0.5]))
    assert e4m3_values()[codes.long()].tolist() == [[[1.0, 2.0], [2.0, 4.0]]]
    back = dequantize_kv(codes, torch.tensor([1.0, 0.5]), torch.empty(1, 2, 2, dtype=torch.float16))
    assert torch.equal(back.float(), values)
