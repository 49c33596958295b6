"""CLIP's image tower, written for adaptation: its features, and their gradient to the parameters of its norms.

Three things make a step cheap and change no result. Images go through in parts small enough for the processor's
cache. Of the last block only the class token is computed. And the backward is written by hand: it keeps the few
tensors it needs, and skips every image whose features receive no gradient.

Where only the last blocks adapt, ``embed_until`` gives the activations before them once, and every pass of a step
starts there: ``tower(activations, first)``. A tower whose tokens are expensive (``keeps_tokens``) takes them in place
of images everywhere; ``embed`` gives them.
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
from lmr.models.towers import block as steps
from lmr.models.towers.block import Activation, Block, Normed, NormParameters, Trace
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

    source: Tensor | None  # the images, or their tokens where these are expensive; None if the pass began after them
    blocks: list[Trace | Tensor]
    post: Normed
    arena: Arena | None  # the memory they are in

    def select(self, rows: Tensor) -> Kept:
        """Return the same for some of the images."""
        blocks = [block[rows] if isinstance(block, Tensor) else block.select(rows) for block in self.blocks]
        source = None if self.source is None else self.source[rows]
        return Kept(source, blocks, self.post.select(rows), self.arena)


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
        sizes: dict[str, Any] = {"hidden": config.hidden, "activation": config.activation, "eps": config.eps}
        self.blocks = nn.Sequential(*(Block(width, config.heads, causal=False, **sizes) for _ in range(config.depth)))
        self.ln_post = RowNorm(width, eps=config.eps)
        self.projection = nn.Parameter(torch.randn(width, config.features) * width**-0.5)
        self.set_mode()

    def set_mode(self, memory: Memory = "fast", compile: bool = False) -> None:
        """Choose how a step is computed; the results stay the same.

        "lean" keeps one tensor of each block and computes the others again in the backward. ``compile`` compiles the
        forward and the backward of a block with torch.compile.
        """
        check_memory(memory)
        self.memory = memory
        self.compiled = compile
        self._pool = BufferPool()  # frees the memory of an earlier mode
        self._run_block = torch.compile(steps.run_block) if compile else steps.run_block
        self._push_block = torch.compile(steps.push_block) if compile else steps.push_block
        # Only images that passed the gate go backwards, so their number differs from step to step.
        self._pull_block = torch.compile(steps.pull_block, dynamic=True) if compile else steps.pull_block

    def forward(self, images: Tensor, first: int | None = None) -> Tensor:
        """Return features [B, features] before normalisation. Any tensor may require gradient; norms alone are fastest.

        With ``first``, the activations [B, tokens, width] before that block are given in place of images.
        A tower that ``keeps_tokens`` also takes what ``embed`` gives.
        """
        self._check(images, first)
        with hold(self):  # its norms and its memory serve one thread at a time
            return self._encode(images, first)

    @torch.no_grad()
    def embed(self, images: Tensor) -> Tensor:
        """Return the tokens [B, tokens, width] of images, before the first norm, without gradient."""
        self._check(images, None)
        return self._embed(images)

    @torch.no_grad()
    def embed_until(self, images: Tensor, block: int) -> Tensor:
        """Return the activations [B, tokens, width] of images before a block (0 is the first), without gradient."""
        self._check(images, None)
        if not 0 <= block < self.config.depth:
            raise LmrError(f"Expected a block from 0 to {self.config.depth - 1}, got {block}.")
        with hold(self):
            parameters = pair_up(self._list_parameters(None))
            pieces = []
            for part in self._cut(len(images), _FORWARD_PART):
                arena, own = self._make_arena(part.stop - part.start), take_rows(parameters, part)
                x, _ = steps.normalise(self._embed(images[part]), own[0], self.config.eps)
                pieces.append(self._run_blocks(x, range(block), own[1:], None, arena)[0])
            return torch.cat(pieces)

    def _check(self, x: Tensor, first: int | None) -> None:
        """Refuse what is not a batch of images, or with ``first`` of activations before that block."""
        side, depth = self.config.resolution, self.config.depth
        shape = (3, side, side) if first is None and not self.is_embedded(x) else tuple(self.positions.shape)
        if first is not None and not 0 <= first < depth:
            raise LmrError(f"Expected a block from 0 to {depth - 1} to start at, got {first}.")
        if x.ndim != 1 + len(shape) or x.shape[1:] != shape:
            what = "images" if first is None else "activations"
            raise LmrError(f"Expected {what} {['B', *shape]}, got {list(x.shape)}.")

    def _encode(self, images: Tensor, first: int | None) -> Tensor:
        features: Tensor
        if torch.is_grad_enabled() and (images.requires_grad or self._trains()):
            x = self.ln_pre(self._embed(images)) if first is None else images
            x = self.blocks[first or 0 :](x)
            features = self.ln_post(x[:, 0]) @ self.projection
            return features
        flat = self._list_parameters(first)
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in flat):
            features = _Features.apply(self, images, first, *flat)  # type: ignore[no-untyped-call]
            return features
        parameters = pair_up(flat)
        with torch.no_grad():
            parts = self._cut(len(images), _FORWARD_PART)
            runs = [self.run(images[part], take_rows(parameters, part), False, first) for part in parts]
            return torch.cat([found for found, _ in runs])

    def run(
        self, x: Tensor, parameters: Sequence[NormParameters], keep: bool, first: int | None = None
    ) -> tuple[Tensor, Kept | None]:
        """Return features of a few images with the given norm parameters, without gradient, and what a backward needs.

        With ``first``, ``x`` is the activations before that block, and the norms are those from there on.
        """
        eps, fast = self.config.eps, keep and self.memory == "fast"
        blocks = range(first or 0, self.config.depth)
        arena = self._make_arena(len(x), len(blocks) if fast else 0)
        source = None
        if first is None:
            tokens = self._embed(x)
            source = tokens if self.keeps_tokens else x
            x, _ = steps.normalise(tokens, parameters[0], eps)
            parameters = parameters[1:]
        elif not fast:
            x = x.clone()  # the blocks write to it
        x, kept = self._run_blocks(x, blocks, parameters, self.memory if keep else None, arena)
        x, seen = steps.normalise(x[:, 0] if fast else x[:, 0].clone(), parameters[-1], eps)
        if arena is not None:
            arena.close()
        return x @ self.projection, Kept(source, kept, seen, arena if fast else None) if keep else None

    def _run_blocks(
        self, x: Tensor, numbers: range, parameters: Sequence[NormParameters], keep: Memory | None, arena: Arena | None
    ) -> tuple[Tensor, list[Trace | Tensor]]:
        """Run some blocks, the first with the first two parameters; return the output and what is kept of each."""
        fast, kept = keep == "fast", list[Trace | Tensor]()
        for k, number in enumerate(numbers):
            block = self._block(number)
            if arena is not None and not fast:
                arena.restart()
            if keep == "lean":
                kept.append(x.clone())
            first, second = parameters[2 * k : 2 * k + 2]
            last = number == self.config.depth - 1
            x, trace = self._run_block(x, steps.freeze(block), first, second, last, fast, arena)
            if trace is not None:
                kept.append(trace)
        return x, kept

    def pull(self, grad: Tensor, kept: Kept, parameters: Sequence[NormParameters]) -> Iterator[NormParameters]:
        """Yield the gradient to each norm's parameters, the last norm first, from that of the features of a few images.

        Yielded one by one, so that small tensors are not held between larger ones until all are computed.
        """
        x, to_parameters = steps.pull_norm(grad @ self.projection.T, kept.post, parameters[-1])
        yield to_parameters
        x = x.to(grad.dtype).unsqueeze(1)
        depth, before = self.config.depth, 0 if kept.source is None else 1
        for k in reversed(range(len(kept.blocks))):
            number = depth - len(kept.blocks) + k
            frozen, trace = steps.freeze(self._block(number)), kept.blocks[k]
            first, second = parameters[before + 2 * k : before + 2 * k + 2]
            if isinstance(trace, Tensor):
                trace = self._push_block(trace, frozen, first, second, number == depth - 1)[1]
            x, to_first, to_second = self._pull_block(x, trace, frozen, first, second)
            yield to_second
            yield to_first
        if kept.source is not None:
            tokens = kept.source if self.keeps_tokens else self._embed(kept.source)
            _, embedded = steps.normalise(tokens, parameters[0], self.config.eps)
            yield steps.pull_norm(x, embedded, parameters[0], to_input=False)[1]

    def count_embedding(self) -> int:
        """Return the multiply-adds that turn one image into tokens."""
        return (self.config.resolution // self.config.patch) ** 2 * 3 * self.config.patch**2 * self.config.width

    def count_kept(self, first: int | None = None) -> int:
        """Return the number of elements kept of one image for its backward."""
        blocks = self.config.depth - (first or 0)
        lean = blocks * len(self.positions) * self.config.width
        return lean if self.memory == "lean" else self._count_elements(blocks)

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

    def _make_arena(self, count: int, kept: int = 0) -> Arena | None:
        """Return memory for ``count`` images: for all that is kept of ``kept`` blocks, or for one block at a time."""
        if self.compiled:
            return None
        return Arena(self._pool, count * self._count_elements(kept), self.positions)

    def _count_elements(self, kept: int) -> int:
        """Return the number of elements in the traces of one image: of ``kept`` blocks, or (0) of any one."""
        config = self.config
        block = 5 * config.width + config.hidden + 4  # q, k, v, middle, output, hidden, and the statistics of two norms
        return len(self.positions) * (block * (kept - 1) + 2 * config.width + 4 if kept else block)

    def is_embedded(self, x: Tensor) -> bool:
        """Return True for tokens, which the tower takes in place of images."""
        return self.keeps_tokens and x.ndim == 3 and x.shape[1:] == self.positions.shape

    def _embed(self, images: Tensor) -> Tensor:
        """Return class token and patches with positions [n, L, w]; tokens stay as they are."""
        if self.is_embedded(images):
            return images
        class_token = self.class_token.expand(len(images), 1, -1)
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

    def _norms(self, first: int | None = None) -> Iterator[RowNorm]:
        """Yield the norms that a pass meets, in order."""
        if first is None:
            yield self.ln_pre
        for number in range(first or 0, self.config.depth):
            yield from (self._block(number).ln_1, self._block(number).ln_2)
        yield self.ln_post

    def _list_parameters(self, first: int | None) -> list[Tensor]:
        """Return weight, bias, weight, bias, ... of the norms, as they are served."""
        return [tensor for norm in self._norms(first) for tensor in (norm.weight, norm.bias)]

    def _trains(self) -> bool:
        """Return True if weights other than the norms' require gradient."""
        norms = {id(tensor) for norm in self._norms() for tensor in norm.parameters()}
        return any(tensor.requires_grad and id(tensor) not in norms for tensor in self.parameters())


def check_memory(memory: str) -> None:
    """Refuse an unknown mode."""
    if memory not in get_args(Memory):
        raise LmrError(f"Expected memory 'fast' or 'lean', got {memory!r}.")


class _Features(torch.autograd.Function):
    """Features of a batch whose backward gives gradients to norm parameters and to nothing else.

    Of a large batch only the first parts are kept; the others run forward again in the backward.
    """

    @staticmethod
    def forward(ctx: Any, tower: VisionTower, images: Tensor, first: int | None, *flat: Tensor) -> Tensor:
        ctx.tower, ctx.parameters, ctx.first = tower, pair_up(flat), first
        ctx.images, ctx.parts = images, list(tower.split_batch(len(images)))
        most = len(images) if len(ctx.parts) == 1 else _KEPT // tower.count_kept(first)
        rows = [take_rows(ctx.parameters, part) for part in ctx.parts]
        runs = [tower.run(images[p], own, p.stop <= most, first) for p, own in zip(ctx.parts, rows, strict=True)]
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
                kept = ctx.tower.run(ctx.images[where], parameters, True, ctx.first)[1]
            elif len(rows) < part.stop - part.start:
                kept = kept.select(rows)
            found = ctx.tower.pull(grad[where], kept, parameters)
            for pair, pieces in zip(reversed(totals), found, strict=True):
                for total, piece in zip(pair, pieces, strict=True):
                    if total.ndim == 1:
                        total += piece
                    else:
                        total[where] = piece
        return None, None, None, *(total for pair in totals for total in pair)


def pair_up(flat: Sequence[Tensor]) -> list[NormParameters]:
    """Return weight, bias, weight, bias, ... as pairs."""
    return list(zip(flat[::2], flat[1::2], strict=True))


def take_rows(parameters: Sequence[NormParameters], rows: slice | Tensor) -> list[NormParameters]:
    """Return the norm parameters of some images: the same for all, or one row each."""
    return [(weight, bias) if weight.ndim == 1 else (weight[rows], bias[rows]) for weight, bias in parameters]
