"""Modules that compute with complex numbers are exported as real ones, and compute the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from representatives import representatives
from running import on_ort
from torch import nn

from attnport.artifacts import IOContract
from attnport.dims import Dim, TensorSpec
from attnport.errors import ExportError
from attnport.exporter.capture import capture

DIMS = (Dim("batch", 1, 2, 4), Dim("seq", 1, 5, 40))
SIZES = ((2, 5), (1, 1), (3, 16), (1, 40))


def turns() -> torch.Tensor:
    """The table of rotations that Meta's Llama makes: `[40,4]`, complex."""
    frequencies = 1.0 / (100.0 ** (torch.arange(0, 8, 2).float() / 8))
    angles = torch.outer(torch.arange(40).float(), frequencies)
    return torch.polar(torch.ones_like(angles), angles)


class Rotated(nn.Module):
    """Attention with rotary positions as Meta's Llama has them, from a complex buffer."""

    freqs_cis: torch.Tensor

    def __init__(self, *, persistent: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.register_buffer("freqs_cis", turns(), persistent=persistent)
        self.qkv = nn.Linear(16, 48, bias=False)

    def rotate(self, x: torch.Tensor) -> torch.Tensor:
        x_ = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(x_ * self.freqs_cis[: x.shape[1]][None, :, None, :]).flatten(3).type_as(x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.unflatten(-1, (2, 8)) for part in self.qkv(x).chunk(3, dim=-1))
        q, k, v = (part.transpose(1, 2) for part in (self.rotate(q), self.rotate(k), v))
        found = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return found.transpose(1, 2).flatten(2)


class RotatedHeads(Rotated):
    """Rotates behind the transpose, so that attention keeps the layout of tokens, and takes a view of it."""

    def __init__(self, *, view: bool) -> None:
        super().__init__(persistent=False)
        self.view = view

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.unflatten(-1, (2, 8)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        q, k = (
            torch.view_as_real(
                torch.view_as_complex(part.reshape(*part.shape[:-1], -1, 2)) * self.freqs_cis[: x.shape[1]]
            ).flatten(3)
            for part in (q, k)
        )
        found = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
        return found.view(*x.shape) if self.view else found.flatten(2)


class Weighted(nn.Module):
    """Complex weights, as filters in the domain of frequencies have."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weight = nn.Parameter(torch.randn(16, 16, dtype=torch.complex64))
        self.mix = nn.Linear(16, 16, dtype=torch.complex64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = torch.complex(x, x[:1] * 0.5)
        return (self.mix(z @ self.weight) / (2 + x)).abs()


class Called(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


def z(x: torch.Tensor) -> torch.Tensor:
    """Complex numbers of real ones, `[batch,seq,8]`."""
    return torch.view_as_complex(x.unflatten(-1, (8, 2)))


def real(value: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(value).flatten(2)


CASES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sums with real ones": lambda x: real((z(x) + 1.5 - 2j) + x[..., :8] - (3 - z(x))),
    "products": lambda x: real(z(x) * 1j * z(x).conj() * x[..., :8] + 2.0 * -z(x)),
    "quotients": lambda x: real(z(x) / (z(x) + 4j) + 1 / (z(x) + 3) + z(x) / 2j + x[..., :8] / (z(x) - 5)),
    "powers": lambda x: real(z(x) ** 2 + z(x) ** 3 + z(x).square()),
    "exponentials": lambda x: real(torch.exp(0.1j * z(x)) + torch.polar(x[..., :8].abs(), x[..., 8:])),
    "parts": lambda x: z(x).real + z(x).imag * z(x).abs() + z(x).angle(),
    "layouts": lambda x: real(torch.stack(torch.cat([z(x), x[..., :8]], 2).transpose(1, 2).chunk(2, 1), 1).flatten(3)),
    "choice": lambda x: real(torch.where(x[..., :8] > 0, z(x), x[..., 8:])[:, -1:].expand(-1, x.shape[1], -1)),
    "einsum": lambda x: torch.einsum("bsd,btd,btd->bst", z(x), z(x), z(x)).imag.float(),
    "double": lambda x: z(x).to(torch.complex128).sum(-1, keepdim=True).abs().float() + x,
    "fft over a size": lambda x: torch.fft.fft(torch.fft.fft(x, dim=-1), dim=1).real,
    "fftn and back": lambda x: torch.fft.ifftn(torch.fft.fftn(x, dim=(1, 2)) * 1j, dim=(1, 2)).imag,
    "convolution": lambda x: torch.fft.irfft(
        torch.fft.rfft(x, n=2 * x.shape[1], dim=1) * torch.fft.rfft(x.flip(1), n=2 * x.shape[1], dim=1),
        n=2 * x.shape[1], dim=1,
    )[:, : x.shape[1]],
    "frequencies that are cut": lambda x: real(torch.fft.fft(x, n=9, norm="ortho")),
    "an odd size": lambda x: torch.fft.irfft(z(x), n=13, norm="forward"),
    "a size of half": lambda x: torch.fft.irfft(z(x)),
    "fft2 of a picture": lambda x: torch.fft.ifft2(torch.fft.fft2(x, norm="ortho")[..., ::2]).abs(),
}  # fmt: skip


def checked(module: nn.Module, *, width: int = 16, relative: float = 1e-5) -> None:
    """Exports a module of `[batch,seq,16]`, and compares it in ONNX Runtime."""
    contract = IOContract(
        (TensorSpec("x", "float32", ("batch", "seq", 16)),),
        (TensorSpec("y", "float32", ("batch", "seq", width)),),
        DIMS,
    )
    run = on_ort(capture(module.eval(), contract).model)
    for batch, length in SIZES:
        x = torch.randn(batch, length, 16, generator=torch.Generator().manual_seed(length))
        with torch.no_grad():
            expected = module(x).numpy()
        got = run({"x": x.numpy()})[0]
        assert got.shape == expected.shape, (batch, length)
        np.testing.assert_allclose(got, expected, rtol=relative, atol=relative * np.abs(expected).max())


@pytest.mark.parametrize("persistent", representatives([True, False], [False]))
def test_a_complex_buffer_turns_queries_and_keys(persistent: bool) -> None:
    checked(Rotated(persistent=persistent))


@pytest.mark.parametrize("view", representatives([True, False], [True]))
def test_a_view_of_what_lies_otherwise_as_pairs_is_a_reshape(view: bool) -> None:
    checked(RotatedHeads(view=view))


def test_complex_weights_are_pairs() -> None:
    checked(Weighted())


@pytest.mark.parametrize("name", representatives(CASES, list(CASES)[::4]))
def test_an_operator_of_complex_numbers_computes_what_torch_computes(name: str) -> None:
    with torch.no_grad():
        module = Called(CASES[name])
        width: Any = {5: "seq"}.get(module(torch.randn(2, 5, 16)).shape[-1], module(torch.randn(2, 5, 16)).shape[-1])
    checked(module, width=width)


def test_the_weights_of_the_module_stay_complex() -> None:
    module = Rotated(persistent=True)
    checked(module)
    assert module.freqs_cis.dtype == torch.complex64


def test_an_operator_without_a_rule_is_named() -> None:
    with pytest.raises(ExportError, match="asinh"):
        checked(Called(lambda x: real(torch.asinh(z(x)))))
