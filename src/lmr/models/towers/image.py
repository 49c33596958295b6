"""CLIP's image tower, written for adaptation: its features, and their gradient to the parameters of its norms.

Three things make a step cheap and change no result. Images go through in parts small enough for the processor's
cache. Of the last block only the class token is computed. And the backward is written by hand: it keeps the few
tensors it needs, and skips every image whose features receive no gradient.

A tower whose tokens are expensive (``keeps_tokens``) takes them in place of images everywhere; ``embed`` gives them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, cast, get_args

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from lmr.core.errors import LmrError
from lmr.core.locks import hold
from lmr.core.norms import RowNorm
from lmr.models.towers.block import Activation, Block, Normed, NormParameters, Trace, normalise, pull_norm
from lmr.models.towers.buffers import Arena, BufferPool

Memory = Literal["fast", "lean"]

# Elements in the widest activation of the images that go through at once, measured on two cores: eight images of
# ViT-B/16 where a backward follows, sixteen otherwise.
_PART, _FORWARD_PART = 5_000_000, 10_000_000
_KEPT = 800_000_000  # elements kept at once for a backward: about 50 images of ViT-B/16, 3.2 GB


@dataclass(frozen=True)
class VisionConfig:
    """Sizes of an image tower; the defaults are ViT-B/16's."""

    resolution: int = 224
    patch: int = 16
    width: int = 768
    depth: int = 12
    heads: int = 12
    features: int = 512
    hidden: int = 3072
    activation: Activation = "quick_gelu"
    eps: float = 1e-5


class Kept(NamedTuple):
    """The tensors that the backward of a few images needs: of every block its trace, or only its input."""

    source: Tensor  # the images, or their tokens where these are expensive
    blocks: list[Trace | Tensor]
    post: Normed
    arena: Arena | None  # the memory they are in

    def select(self, rows: Tensor) -> Kept:
        """Return the same for some of the images."""
        blocks = [block[rows] if isinstance(block, Tensor) else block.select(rows) for block in self.blocks]
        return Kept(self.source[rows], blocks, self.post.select(rows), self.arena)


class VisionTower(nn.Module):
    """Images [B, 3, H, W] to features [B, features], not normalised."""

    is_clip = True  # False for a tower that embeds images in another way, which transformers has no model of
    # Whether embedding is expensive: the tokens are kept for the backward, and taken in place of images. Embedding
    # patches again is cheaper than keeping what came out.
    keeps_tokens = False
    patches: nn.Module

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        width = config.width
        tokens = (config.resolution // config.patch) ** 2
        self.config = config
        self.patches = nn.Conv2d(3, width, config.patch, stride=config.patch, bias=False)
        self.class_token = nn.Parameter(torch.randn(width) * width**-0.5)
        self.positions = nn.Parameter(torch.randn(tokens + 1, width) * width**-0.5)
        self.ln_pre = RowNorm(width, eps=config.eps)
        self.blocks = nn.Sequential(*(Block(config, causal=False) for _ in range(config.depth)))
        self.ln_post = RowNorm(width, eps=config.eps)
        self.projection = nn.Parameter(torch.randn(width, config.features) * width**-0.5)
        self.set_memory("fast")

    def set_memory(self, memory: Memory) -> None:
        """Choose what a forward keeps for the backward; the results stay the same.

        "fast" keeps all that the backward needs. "lean" keeps one tensor of each block and computes the others again.
        """
        check_memory(memory)
        self.memory = memory
        self._pool = BufferPool()  # frees the memory of an earlier mode

    def forward(self, images: Tensor) -> Tensor:
        """Return features [B, features] before normalisation. Any tensor may require gradient; norms alone are fastest.

        A tower that ``keeps_tokens`` also takes what ``embed`` gives.
        """
        self._check(images)
        with hold(self):  # its norms and its memory serve one thread at a time
            return self._encode(images)

    @torch.no_grad()
    def embed(self, images: Tensor) -> Tensor:
        """Return the tokens [B, tokens, width] of images, before the first norm, without gradient."""
        self._check(images)
        return self._embed(images)

    def _check(self, images: Tensor) -> None:
        """Refuse what is neither a batch of images nor of tokens that the tower takes in their place."""
        shape = (3, self.config.resolution, self.config.resolution)
        if not self.is_embedded(images) and (images.ndim != 4 or images.shape[1:] != shape):
            raise LmrError(f"Expected images {['B', *shape]}, got {list(images.shape)}.")

    def _encode(self, images: Tensor) -> Tensor:
        features: Tensor
        if torch.is_grad_enabled() and (images.requires_grad or self._trains()):
            x = self.blocks(self.ln_pre(self._embed(images)))
            features = self.ln_post(x[:, 0]) @ self.projection
            return features
        flat = [tensor for norm in self._norms() for tensor in (norm.weight, norm.bias)]  # as they are served
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in flat):
            features = _Features.apply(self, images, *flat)  # type: ignore[no-untyped-call]
            return features
        parameters = pair_up(flat)
        with torch.no_grad():
            parts = self._cut(len(images), _FORWARD_PART)
            return torch.cat([self.run(images[part], take_rows(parameters, part), False)[0] for part in parts])

    def run(self, images: Tensor, parameters: Sequence[NormParameters], keep: bool) -> tuple[Tensor, Kept | None]:
        """Return features of a few images with these norm parameters, without gradient, and what a backward needs."""
        eps, depth, fast = self.config.eps, self.config.depth, keep and self.memory == "fast"
        arena = Arena(self._pool, len(images) * self._count_elements(fast), self.positions)
        tokens = self._embed(images)
        x, _ = normalise(tokens, parameters[0], eps)
        kept: list[Trace | Tensor] = []
        for number in range(depth):
            if not fast:
                arena.restart()
            if keep and not fast:
                kept.append(x.clone())
            norms = parameters[2 * number + 1 : 2 * number + 3]
            x, trace = self._block(number).run(x, norms, number == depth - 1, fast, arena)
            if trace is not None:
                kept.append(trace)
        x, seen = normalise(x[:, 0] if fast else x[:, 0].clone(), parameters[-1], eps)
        arena.close()
        source = tokens if self.keeps_tokens else images
        return x @ self.projection, Kept(source, kept, seen, arena if fast else None) if keep else None

    def pull(self, grad: Tensor, kept: Kept, parameters: Sequence[NormParameters]) -> Iterator[NormParameters]:
        """Yield the gradient to each norm's parameters, the last norm first, from that of the features of a few images.

        Yielded one by one, so that small tensors are not held between larger ones until all are computed.
        """
        x, to_parameters = pull_norm(grad @ self.projection.T, kept.post, parameters[-1])
        yield to_parameters
        x = x.to(grad.dtype).unsqueeze(1)
        for number in reversed(range(self.config.depth)):
            block, trace, norms = self._block(number), kept.blocks[number], parameters[2 * number + 1 : 2 * number + 3]
            if isinstance(trace, Tensor):
                trace = block.push(trace, norms, number == self.config.depth - 1)[1]
            x, to_first, to_second = block.pull(x, trace, norms)
            yield to_second
            yield to_first
        tokens = kept.source if self.keeps_tokens else self._embed(kept.source)
        _, embedded = normalise(tokens, parameters[0], self.config.eps)
        yield pull_norm(x, embedded, parameters[0], to_input=False)[1]

    def count_embedding(self) -> int:
        """Return the multiply-adds that turn one image into tokens."""
        return (self.config.resolution // self.config.patch) ** 2 * 3 * self.config.patch**2 * self.config.width

    def count_kept(self) -> int:
        """Return the number of elements kept of one image for its backward."""
        lean = self.config.depth * len(self.positions) * self.config.width
        return lean if self.memory == "lean" else self._count_elements(every=True)

    def split_batch(self, count: int) -> Iterator[slice]:
        """Split a batch of ``count`` images into parts that are best differentiated together."""
        return self._cut(count, _PART)

    def _cut(self, count: int, elements: int) -> Iterator[slice]:
        """Split a batch into parts of about equal size with at most ``elements`` in their widest activation."""
        parts = 1
        if self.positions.device.type == "cpu":
            parts = max(1, -(-count // max(1, elements // (len(self.positions) * self.config.hidden))))
        bounds = [count * k // parts for k in range(parts + 1)]
        return (slice(first, last) for first, last in itertools.pairwise(bounds))

    def _count_elements(self, every: bool) -> int:
        """Return the number of elements in the traces of one image: of every block, or of one at a time."""
        config = self.config
        block = 5 * config.width + config.hidden + 4  # q, k, v, middle, output, hidden, and the statistics of two norms
        whole = block * (config.depth - 1) + 2 * config.width + 4  # of the last block keys and values, almost alone
        return len(self.positions) * (whole if every else block)

    def is_embedded(self, x: Tensor) -> bool:
        """Return True for tokens, which the tower takes in place of images."""
        return self.keeps_tokens and x.ndim == 3 and x.shape[1:] == self.positions.shape

    def _embed(self, images: Tensor) -> Tensor:
        """Return class token and patches with positions [n, L, w]; tokens stay as they are."""
        if self.is_embedded(images):
            return images
        class_token = self.class_token.expand(images.shape[0], 1, -1)
        return torch.cat([class_token, self._cut_patches(images)], dim=1) + self.positions

    def _cut_patches(self, images: Tensor) -> Tensor:
        """Return one token per patch [n, L - 1, w]; patches do not overlap, so one product embeds them."""
        patch, (n, colours) = self.config.patch, images.shape[:2]
        side = self.config.resolution // patch
        cut = images[:, :, : side * patch, : side * patch].reshape(n, colours, side, patch, side, patch)
        weight = cast(Tensor, self.patches.weight).flatten(1)
        return cut.permute(0, 2, 4, 1, 3, 5).reshape(n, side * side, -1) @ weight.T

    def _block(self, number: int) -> Block:
        block = self.blocks[number]
        assert isinstance(block, Block)
        return block

    def _norms(self) -> Iterator[RowNorm]:
        """Yield the norms that a pass meets, in order."""
        yield self.ln_pre
        for number in range(self.config.depth):
            yield from (self._block(number).ln_1, self._block(number).ln_2)
        yield self.ln_post

    def _trains(self) -> bool:
        """Return True if weights other than the norms' require gradient."""
        # Not by ``parameters()``, which takes ten times as long: every step asks.
        others = (module for module in self.modules() if not isinstance(module, RowNorm))
        return any(own is not None and own.requires_grad for module in others for own in module._parameters.values())


def check_memory(memory: str) -> None:
    """Refuse an unknown mode."""
    if memory not in get_args(Memory):
        raise LmrError(f"Expected memory 'fast' or 'lean', got {memory!r}.")


class _Features(torch.autograd.Function):
    """Features of a batch whose backward gives gradients to norm parameters and to nothing else.

    Of a large batch only the first parts are kept; the others run forward again in the backward.
    """

    @staticmethod
    def forward(ctx: Any, tower: VisionTower, images: Tensor, *flat: Tensor) -> Tensor:
        ctx.tower, ctx.parameters = tower, pair_up(flat)
        ctx.images, ctx.parts = images, list(tower.split_batch(len(images)))
        most = len(images) if len(ctx.parts) == 1 else _KEPT // tower.count_kept()
        rows = [take_rows(ctx.parameters, part) for part in ctx.parts]
        runs = [tower.run(images[p], own, p.stop <= most) for p, own in zip(ctx.parts, rows, strict=True)]
        ctx.kept = [kept for _, kept in runs]
        return torch.cat([features for features, _ in runs])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        totals = [(torch.zeros_like(weight), torch.zeros_like(bias)) for weight, bias in ctx.parameters]
        touched = (grad != 0).any(1)
        for part, kept in zip(ctx.parts, ctx.kept, strict=True):
            rows = touched[part].nonzero().flatten()
            if not len(rows):
                continue
            where = rows + part.start
            parameters = take_rows(ctx.parameters, where)
            if kept is None:
                kept = ctx.tower.run(ctx.images[where], parameters, True)[1]
            elif len(rows) < part.stop - part.start:
                kept = kept.select(rows)
            found = ctx.tower.pull(grad[where], kept, parameters)
            for pair, pieces in zip(reversed(totals), found, strict=True):
                for total, piece in zip(pair, pieces, strict=True):
                    if total.ndim == 1:
                        total += piece
                    else:
                        total[where] = piece
        return None, None, *(total for pair in totals for total in pair)


def pair_up(flat: Sequence[Tensor]) -> list[NormParameters]:
    """Return weight, bias, weight, bias, ... as pairs."""
    return list(zip(flat[::2], flat[1::2], strict=True))


def take_rows(parameters: Sequence[NormParameters], rows: slice | Tensor) -> list[NormParameters]:
    """Return the norm parameters of some images: the same for all, or one row each."""
    return [(weight, bias) if weight.ndim == 1 else (weight[rows], bias[rows]) for weight, bias in parameters]
