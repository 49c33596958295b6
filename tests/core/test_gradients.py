"""Gradients pulled back: the bits of torch.autograd.grad, without what its first call imports."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from lmr.core.gradients import vjp


def make_graph(shape: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    source = torch.randn(shape, generator=draw, requires_grad=True)
    return (source.sin() * source.exp()).cumsum(0), source, torch.randn(shape, generator=draw)


@pytest.mark.parametrize("shape", [(), (7,), (5, 3)])
def test_has_the_bits_of_autograd(shape: tuple[int, ...]) -> None:
    output, source, gradient = make_graph(shape)
    (expected,) = torch.autograd.grad(output, source, gradient, retain_graph=True)
    assert torch.equal(vjp(output, source, gradient), expected)


def test_a_step_imports_no_symbolic_algebra() -> None:
    """It took a second and 35 MB in every process."""
    code = (
        "import sys, lmr, torch\n"
        "backbone = lmr.load()\n"
        "clip = backbone.classifier('cat dog ship truck frog bird deer horse'.split())\n"
        "method = lmr.create('lmr', clip, preset='auto')\n"
        "torch.manual_seed(0)\n"
        "images = torch.randint(256, (16, 32, 32, 3), dtype=torch.uint8)\n"
        "assert method.step(backbone.preprocess(images)).info['stepped']\n"
        "assert 'sympy' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
