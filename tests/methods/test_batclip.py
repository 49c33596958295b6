"""The library's BATCLIP against the slow reference beside this file, batch by batch, over whole streams."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bimodal_reference as book
import lmr
from lmr.core.text import TextSide


def follow(
    spec: dict[str, Any], batches: list[Tensor], chunk: int = 128, **how: Any
) -> tuple[lmr.Method, Any, list[dict[str, Any]]]:
    """Send one stream through the library and the reference and compare all that comes out."""
    problem = book.make_problem(**how)
    words = ", ".join(f"{key}={value!r}" for key, value in (spec | {"chunk": chunk}).items())
    method = lmr.create(f"batclip({words})", problem.classifier)
    reference = book.BatclipReference(problem, **spec)
    infos, parts = [], []
    for images in batches:
        answer, (logits, info) = method.step(images), reference.step(images)
        torch.testing.assert_close(answer.logits, logits, atol=1e-6, rtol=0)
        assert answer.info.keys() == info.keys() | {"finite", "top_class_share"}
        for key, value in info.items():
            assert answer.info[key] == pytest.approx(value, abs=1e-6), key
        infos.append(answer.info)
        parts.append(reference.parts)
    torch.testing.assert_close(method.state["norms"][0], reference.flat, atol=1e-7, rtol=0)
    ahead = book.make_images(5, seed=99)
    torch.testing.assert_close(method.predict(ahead).logits, reference.answer(ahead), atol=1e-6, rtol=0)
    reference.all_parts = parts
    return method, reference, infos


def cut(count: int, size: int, **how: Any) -> list[Tensor]:
    return list(book.make_images(count, **how).split(size))


# Whole streams.


@pytest.mark.parametrize(("optimizer", "chunk"), [("adamw", 128), ("adam", 3), ("sgd", 1)])
def test_stream_follows_the_reference(optimizer: str, chunk: int) -> None:
    batches = cut(66, 8)
    assert len(batches) == 9
    assert len(batches[-1]) == 2
    spec = {"lr": 2e-3, "optimizer": optimizer, "weight_decay": 0.05}
    method, reference, infos = follow(spec, batches, chunk)
    assert max(info["present"] for info in infos) >= 4  # several classes in a batch, otherwise L_sp is not at work
    assert reference.drift > 1e-3
    moved = (reference.flat - reference.start).abs()
    count = sum(2 * norm.weight.numel() for norm in book.list_norms(method.classifier.encoder))
    assert moved[:count].max() > 1e-4  # both towers adapt
    assert moved[count:].max() > 1e-4


def test_one_class_in_the_batch_has_nothing_to_separate() -> None:
    one = book.make_images(1, seed=5)
    batches = [one + 0.01 * noise for noise in cut(40, 5, seed=6)]
    _, reference, infos = follow({}, batches, chunk=4)
    assert all(info["present"] == 1 for info in infos)
    assert all(apart == 0 for _, _, apart in reference.all_parts)


def test_logit_bias_and_scale_are_the_classifiers() -> None:
    problem = book.make_problem(scale=7.5)
    plain = problem.classifier
    shifted = lmr.ZeroShot(plain.encoder, plain.prototypes, 7.5, logit_bias=-3.0, text=problem.text)
    one, other = lmr.create("batclip", plain), lmr.create("batclip", shifted)
    for images in cut(24, 8):
        torch.testing.assert_close(one.step(images).logits - 3, other.step(images).logits, atol=1e-9, rtol=0)


# Precision and trouble.


def test_prototypes_wider_than_the_towers_set_the_precision() -> None:
    problem = book.make_problem(dtype=torch.float32)
    narrow = problem.classifier
    clip = lmr.ZeroShot(narrow.encoder, narrow.prototypes.double(), book.SCALE, text=problem.text)
    for chunk in (3, 7):
        answer = lmr.create(f"batclip(chunk={chunk})", clip).step(book.make_images(8, dtype=torch.float32))
        assert answer.logits.dtype == torch.float64
        assert answer.info["stepped"]


@pytest.mark.parametrize("chunk", [2, 7])
def test_features_without_a_tower_leave_the_text_to_adapt(chunk: int) -> None:
    problem = book.make_problem()
    images = book.make_images(8)
    features = problem.model.image(images).detach()
    clip = lmr.ZeroShot(nn.Identity(), problem.classifier.prototypes, book.SCALE, text=problem.text)
    method = lmr.create(f"batclip(chunk={chunk})", clip)
    info = method.step(features).info
    assert info["stepped"]
    assert method.bank.size == sum(2 * norm.weight.numel() for norm in book.list_norms(problem.model.text))
    assert info["drift"] > 1e-4


@pytest.mark.parametrize("chunk", [2, 7])
def test_text_tower_without_norms_leaves_the_images_to_adapt(chunk: int) -> None:
    problem = book.make_problem()
    words = nn.Embedding(7, book.CONFIG.features).double()
    text = TextSide(words, lambda tower, part: tower(torch.arange(part.start, part.stop)), 7)
    clip = lmr.ZeroShot(problem.model.image, words.weight.clone(), book.SCALE, text=text)
    method = lmr.create(f"batclip(chunk={chunk})", clip)
    images = book.make_images(8)
    before = method.step(images).logits
    assert (method.predict(images).logits - before).abs().max() > 1e-3


# What is missing is said when the method is made.


def test_classifier_without_text_gets_a_sentence() -> None:
    clip = lmr.ZeroShot(book.make_problem().model.image, torch.randn(5, book.CONFIG.features).double())
    with pytest.raises(lmr.LmrError, match="TextSide"):
        lmr.create("batclip", clip)
