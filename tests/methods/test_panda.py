"""Panda around six methods, each written out with its debiased logits; whole streams in float64."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import bimodal_reference as bimodal
import lmr
import norm_reference as plain
import small_world

SCALE = 30.0
SHARE = 4  # images of a batch for each negative
SIZES = [9, 9, 1, 9, 9, 9, 9, 4]  # a single image has no negatives


def draw_negatives(sizes: Sequence[int], per_batch: int, patches: int) -> tuple[Tensor, Tensor]:
    """Base and source of every draw for batches of these sizes, -1 beyond the negatives of a batch."""
    generator, rows = torch.Generator().manual_seed(3), []
    for size in (size for size in sizes if size > 1 for _ in range(per_batch)):
        base, source = torch.full((3,), -1), torch.full((3, patches), -1)
        for m in range(math.ceil(size / SHARE)):
            base[m] = torch.randint(size, (1,), generator=generator)
            others = [i for i in range(size) if i != base[m]]
            for j in range(patches):
                source[m, j] = others[int(torch.randint(len(others), (1,), generator=generator))]
        rows.append((base, source))
    return torch.stack([base for base, _ in rows]), torch.stack([source for _, source in rows])


def count_patches(patch: int) -> int:
    """Of images [3, 6]."""
    return (3 // min(patch, 3)) * (6 // min(patch, 6))


def mix(images: Tensor, base: list[int], source: list[list[int]], patch: int) -> Tensor:
    """Negatives of a batch [B, ..., H, W]."""
    height, width = images.shape[-2:]
    high, wide = min(patch, height), min(patch, width)
    made = []
    for m in range(math.ceil(len(images) / SHARE)):
        image = images[base[m]].clone()
        for j, other in enumerate(source[m]):
            top, left = j // (width // wide) * high, j % (width // wide) * wide
            place = ..., slice(top, top + high), slice(left, left + wide)
            image[place] = images[other][place]
        made.append(image)
    return torch.stack(made)


class Reference(plain.NormReference):
    """One stream of a method with debiased logits."""

    def __init__(self, negatives: tuple[Tensor, Tensor], beta: float, patch: int) -> None:
        super().__init__(SCALE)
        self.negatives, self.beta, self.patch, self.draws = negatives, beta, patch, 0

    def make_negatives(self, images: Tensor) -> Tensor:
        self.draws += 1
        return mix(images, *(table[self.draws - 1].tolist() for table in self.negatives), self.patch)

    def find_mean(self, images: Tensor, leaves: Sequence[Tensor] | None = None) -> Tensor:
        """The mean unit feature [10] of new negatives."""
        if len(images) == 1:
            return torch.zeros(10, dtype=torch.float64)
        features = self.features(self.make_negatives(images), leaves)
        return sum(features) / len(features)

    def debias(self, images: Tensor, leaves: Sequence[Tensor] | None = None) -> Tensor:
        """Logits of a pass with negatives of its own."""
        features = self.features(images, leaves)
        return self.scale * (features - self.beta * self.find_mean(images, leaves)) @ self.prototypes.T

    def step(self, images: Tensor) -> Tensor:
        return self.debias(images).detach()


class Tent(Reference):
    """Answers after the step, by new negatives."""

    def __init__(self, *how: Any) -> None:
        super().__init__(*how)
        self.optim = torch.optim.Adam(self.leaves, lr=2e-3)

    def step(self, images: Tensor) -> Tensor:
        loss = plain.measure_entropies(self.debias(images)).mean()
        for leaf, gradient in zip(self.leaves, torch.autograd.grad(loss, self.leaves), strict=True):
            leaf.grad = gradient
        self.optim.step()
        return self.debias(images).detach()


class Eta(Tent):
    """Answers before the step on certain images; nothing is filtered for diversity."""

    def step(self, images: Tensor) -> Tensor:
        logits, limit = self.debias(images), 0.6 * math.log(plain.CLASSES)
        entropies = plain.measure_entropies(logits)
        certain = [h for h in entropies if h < limit]
        if certain:
            loss = sum(math.exp(limit - h.item()) * h for h in certain) / len(certain)
            for leaf, gradient in zip(self.leaves, torch.autograd.grad(loss, self.leaves), strict=True):
                leaf.grad = gradient
            self.optim.step()
        return logits.detach()


class Sar(Reference):
    """New negatives uphill, of the whole batch."""

    def __init__(self, *how: Any) -> None:
        super().__init__(*how)
        self.buffers = [torch.zeros_like(leaf) for leaf in self.start]

    def step(self, images: Tensor) -> Tensor:
        logits, limit = self.debias(images), 0.6 * math.log(plain.CLASSES)
        entropies = plain.measure_entropies(logits)
        certain = [i for i in range(len(images)) if entropies[i] < limit]
        gradients = [torch.zeros_like(leaf) for leaf in self.leaves]
        if certain:
            first = torch.autograd.grad(entropies[certain].mean(), self.leaves)
            length = math.sqrt(sum(float((g**2).sum()) for g in first)) + 1e-12
            uphill = [leaf + 0.2 * g / length for leaf, g in zip(self.leaves, first, strict=True)]
            uphill = [leaf.detach().requires_grad_() for leaf in uphill]
            again = plain.measure_entropies(self.debias(images, uphill))
            still = [i for i in certain if again[i] < limit]
            if still:
                gradients = list(torch.autograd.grad(again[still].mean(), uphill))
        for leaf, buffer, gradient in zip(self.leaves, self.buffers, gradients, strict=True):
            buffer.mul_(0.9).add_(gradient)
            leaf.data -= 0.01 * buffer
        return logits.detach()


class Tps(Reference):
    """Views [B, V, ...]: negatives of the images themselves, once for a batch."""

    def step(self, images: Tensor) -> Tensor:
        mean, answers = self.find_mean(images[:, 0]).detach(), []
        for views in images:
            features = self.features(views).detach() - self.beta * mean
            shift = torch.zeros_like(self.prototypes).requires_grad_()

            def compare(rows: Tensor, shift: Tensor) -> Tensor:
                moved = self.prototypes + shift
                return self.scale * rows @ (moved / moved.norm(dim=1, keepdim=True)).T

            order = plain.measure_entropies(compare(features, shift)).argsort(stable=True)
            p = compare(features[order[:2]], shift).softmax(1).mean(0)
            (gradient,) = torch.autograd.grad(-(p * p.log()).sum(), shift)
            moved = -5e-3 * gradient / (gradient.abs() + 1e-8)  # the first step of AdamW, from 0
            answers.append(compare(features[:1], moved)[0].detach())
        return torch.stack(answers)


METHODS: dict[str, tuple[type[Reference], int, bool]] = {  # the reference, the draws of a batch, and 'again'
    "zeroshot": (Reference, 1, False),
    "tent(lr=2e-3)": (Tent, 2, True),
    "eta(lr=2e-3, margin=0.6, diversity=2.0)": (Eta, 1, False),
    "sar(lr=0.01, rho=0.2, margin=0.6, recovery=0.0)": (Sar, 2, False),
    "tps(views=4, keep=0.5)": (Tps, 1, False),
}


def make_method(**arguments: Any) -> Any:
    return lmr.create("panda", plain.make_method("zeroshot", SCALE).classifier, **arguments)


def make_images(spec: str) -> Tensor:
    _, _, images = plain.make_problem()
    if not spec.startswith("tps"):
        return images
    noise = torch.randn(len(images), 3, 3, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return torch.cat([images.unsqueeze(1), images.unsqueeze(1) + 0.3 * noise], 1)


def fix_negatives(method: Any, negatives: tuple[Tensor, Tensor]) -> None:
    """Let the method take these draws."""
    method._find_negatives = lambda count, patches, size, number: tuple(table[number, :count] for table in negatives)


@pytest.mark.parametrize("patch", [2, 8])
@pytest.mark.parametrize("spec", METHODS)
def test_stream_is_that_of_the_equations(spec: str, patch: int) -> None:
    kind, draws, again = METHODS[spec]
    images = make_images(spec)
    method = make_method(method=spec, beta=0.6, patch=patch, share=SHARE, again=again)
    negatives = draw_negatives(SIZES, draws, count_patches(patch))
    fix_negatives(method, negatives)
    reference = kind(negatives, 0.6, patch)
    bare = lmr.create(spec, plain.make_method("zeroshot", SCALE).classifier)
    apart = 0.0
    for batch in images.split(SIZES):
        expected, answer = reference.step(batch), method.step(batch)
        torch.testing.assert_close(answer.logits, expected, atol=1e-10, rtol=0)
        assert method.state["draws"].tolist() == [reference.draws]
        if "norms" in method.state:
            plain.compare_norms(method, reference)
        apart = max(apart, float((bare.step(batch).logits - expected).abs().max()))
    assert apart > 0.1


class Batclip(bimodal.Reference):
    """Both towers learn in one graph of images, negatives and prompts."""

    def __init__(self, negatives: tuple[Tensor, Tensor], beta: float, patch: int) -> None:
        super().__init__(bimodal.make_problem(), lr=2e-3, optimizer="adamw", weight_decay=0.01)
        self.negatives, self.beta, self.patch, self.draws = negatives, beta, patch, 0

    def look(self, images: Tensor, prototypes: Tensor) -> tuple[Tensor, Tensor]:
        """Raw features, and debiased logits by the negatives of this batch."""
        raw, mean = self.model.image(images), torch.zeros(bimodal.CONFIG.features, dtype=torch.float64)
        if len(images) > 1:
            made = mix(images, *(table[self.draws].tolist() for table in self.negatives), self.patch)
            mean = sum(bimodal.unit(row) for row in self.model.image(made)) / len(made)
        unit = torch.stack([bimodal.unit(row) for row in raw])
        return raw, self.problem.scale * (unit - self.beta * mean) @ prototypes.T

    def step(self, images: Tensor) -> tuple[Tensor, Tensor]:
        text = self.model.text(self.problem.tokens, self.problem.end)
        prototypes = torch.stack([bimodal.unit(row) for row in text])
        raw, before = self.look(images, prototypes)
        entropy, matching, apart = bimodal.measure_objective(list(raw), prototypes, list(before))
        self.descend(entropy - matching - apart)
        after = self.look(images, prototypes.detach())[1]  # by the prompts of before the step
        self.draws += len(images) > 1
        return before.detach(), after.detach()


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("chunk", [2, 128])
def test_stream_of_batclip_is_that_of_the_equations(chunk: int, again: bool) -> None:
    spec, sizes = f"batclip(lr=2e-3, weight_decay=0.01, chunk={chunk})", [9, 9, 1, 9, 4, 9]
    clip = bimodal.make_problem().classifier
    method = lmr.create("panda", clip, method=spec, beta=0.6, patch=4, share=SHARE, again=again)
    negatives = draw_negatives(sizes, 1, 4)
    fix_negatives(method, negatives)
    reference = Batclip(negatives, 0.6, 4)
    for batch in bimodal.make_images(sum(sizes)).split(sizes):
        expected = reference.step(batch)
        torch.testing.assert_close(method.step(batch).logits, expected[again], atol=1e-10, rtol=0)
        torch.testing.assert_close(method.state["norms"][0], reference.flat, atol=1e-10, rtol=0)
        assert (expected[0] - expected[1]).abs().max() > 1e-3
        assert method.state["draws"].tolist() == [reference.draws]


def test_single_image_is_answered_without_negatives() -> None:
    _, _, images = plain.make_problem()
    method = make_method()
    assert torch.equal(method.step(images[:1]).logits, method.classifier(images[:1]))
    assert method.state["draws"].tolist() == [0]


def test_prompts_that_are_learnt_see_debiased_features() -> None:
    clip = small_world.make_classifier()
    views = torch.stack([small_world.make_images(k) for k in range(3)], 1)  # [8, 3, 4, 8]
    clip.input_shape = small_world.SHAPE
    plain_logits = lmr.create("tpt(lr=0.0)", clip).step(views).logits
    method = lmr.create("panda", clip, method="tpt(lr=0.0)", patch=2, share=SHARE)
    mean = clip.features(method._make_negatives(views[:, 0], 0)).mean(0)  # type: ignore[attr-defined]
    prototypes = method.inner.tuner.start_prototypes  # type: ignore[attr-defined]
    expected = plain_logits - clip.logit_scale * 0.6 * prototypes @ mean
    torch.testing.assert_close(method.step(views).logits, expected, atol=1e-10, rtol=0)
    learnt = lmr.create("panda", clip, method="tpt(lr=0.05)", patch=2, share=SHARE).step(views).logits
    assert (learnt - expected).abs().max() > 1e-2


def test_strip_beside_the_patches_is_of_the_base() -> None:
    images = torch.arange(7).view(7, 1, 1, 1).expand(-1, 3, 7, 8).double()
    method = make_method(patch=3, share=2)
    for number in range(20):
        made = method._make_negatives(images, number)
        assert made.shape == (4, 3, 7, 8)
        for image in made[:, 0]:
            base = image[6, 0]
            assert (image[6] == base).all()
            assert (image[:, 6:] == base).all()
            patches = image[:6, :6].view(2, 3, 2, 3).permute(0, 2, 1, 3).flatten(2)
            assert (patches == patches[..., :1]).all()
            assert (patches != base).all()


def test_draws_depend_on_the_seed_and_go_on() -> None:
    _, _, images = plain.make_problem()
    one, other = make_method(seed=1), make_method(seed=2)
    first = one.step(images[:20]).logits
    assert (one.step(images[:20]).logits - first).abs().max() > 1e-3
    assert (other.step(images[:20]).logits - first).abs().max() > 1e-3
    one.reset()
    assert torch.equal(one.step(images[:20]).logits, first)


def test_method_is_written_with_all_its_arguments() -> None:
    method = make_method(method="tent")
    assert method.method == "tent(lr=0.00025, optimizer='adam', weight_decay=0.0)"
    assert lmr.create(method.spec, method.classifier).spec == method.spec


@pytest.mark.parametrize("method", ["panda", "panda(method='tent')", "ramen"])
def test_some_methods_are_refused(method: str) -> None:
    clip = lmr.load().classifier(["cat", "dog", "ship"])
    with pytest.raises(lmr.LmrError, match="panda cannot debias"):
        lmr.create("panda", clip, method=method)
