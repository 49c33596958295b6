"""What people tell ``steady``: class shares by name, and true labels of its images."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import lmr
from lmr.core.method import Method
from lmr.data.corruptions.apply import corrupt_batch
from lmr.data.dataset import CLEAN
from lmr.data.photographs import Photographs
from pocket import load_pocket

NAMES = ["red ring", "blue star", "green heart"]
CAR = 1


@cache
def make_classifier() -> lmr.ZeroShot:
    return load_pocket().classifier(NAMES)


def make_method(**options: object) -> Method:
    return lmr.create("steady", make_classifier(), preset="auto", **options)  # type: ignore[arg-type]


def make_images(count: int, seed: int = 0) -> Tensor:
    """Noise of many colours, so that each image is a new one."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 3, 32, 32, generator=generator) + 2 * torch.randn(count, 3, 1, 1, generator=generator)


def count_all(method: Method) -> Tensor:
    return method.state["history"]


def test_shares_by_name_are_those_in_order() -> None:
    assert make_method(prior={"Blue_star": 0.6}).spec == make_method(prior=(0.2, 0.6, 0.2)).spec
    assert lmr.create("lmr_variants(prior={'red ring': 1})", make_classifier(), preset="auto").prior == (1, 0, 0)  # type: ignore[attr-defined]
    with pytest.raises(lmr.LmrError, match="did you mean 'blue star'"):
        make_method(prior={"blu star": 0.6})


def test_label_takes_the_place_of_what_was_counted() -> None:
    method = make_method()
    answer = method.step(make_images(1)).labels.item()
    truth = (answer + 1) % 3
    assert count_all(method)[0, answer] == 1  # the first image is a new one
    assert method.count_labels([truth], counted=[answer])
    assert count_all(method)[0].tolist() == [float(kind == truth) for kind in range(3)]
    assert method.count_labels([truth])  # of an image from elsewhere
    assert count_all(method).sum() == 2


def test_labels_of_the_first_images_stay_as_more_are_counted() -> None:
    method = make_method()
    method.count_labels([2] * 50)
    method.step(make_images(64))
    assert method.state["history"][0, 2] > 45  # counts of quiet images fade slowly
    method.count_labels([0])
    assert method.state["history"][0, 0] >= 1


def test_label_of_a_doubtful_image_stays_when_the_others_go() -> None:
    method = make_method()
    method.step(make_images(4))
    doubtful = method.state["doubtful"].clone()
    counted = int(doubtful[0].argmax())
    truth = (counted + 1) % 3
    assert torch.equal(count_all(method), doubtful)  # until the block of eight is over
    method.count_labels([truth], counted=[counted])
    kept = count_all(method) - method.state["doubtful"]
    assert kept[0].tolist() == pytest.approx([float(kind == truth) for kind in range(3)], abs=1e-6)


def test_each_stream_of_a_mixed_batch_gets_its_own_labels_and_resumes_with_them(tmp_path: Path) -> None:
    labels, streams, counted = [0, 2, 2, 1, 0], [0, 1, 0, 1, 1], [-1, 0, 1, -1, 2]
    images = make_images(40)
    mixed, alone = make_method(streams=2), [make_method(), make_method()]
    mixed.step(images, [k % 2 for k in range(40)])
    for number, method in enumerate(alone):
        method.step(images[number::2])
    assert mixed.count_labels(labels, streams, counted)
    for number, method in enumerate(alone):
        own = [k for k, stream in enumerate(streams) if stream == number]
        method.count_labels([labels[k] for k in own], counted=[counted[k] for k in own])
        torch.testing.assert_close(count_all(mixed)[number], count_all(method)[0])
    mixed.save(tmp_path / "s")
    again = make_method(streams=2)
    again.load(tmp_path / "s")
    more, ids = make_images(20, 1), [k % 2 for k in range(20)]
    assert torch.equal(mixed.step(more, ids).logits, again.step(more, ids).logits)
    assert torch.equal(count_all(mixed), count_all(again))


def test_given_shares_and_other_methods_need_no_labels() -> None:
    for method in (make_method(prior="uniform"), lmr.create("zeroshot", make_classifier())):
        before = {key: value.clone() for key, value in method.state.items()}
        assert not method.count_labels([0, 1])
        assert all(torch.equal(value, method.state[key]) for key, value in before.items())


def test_watched_method_counts_labels_too() -> None:
    watched = lmr.Watched(make_method())
    assert watched.count_labels([1])
    assert count_all(watched.method)[0].tolist() == [0, 1, 0]
    assert watched.phases() == ["quiet"]


@pytest.fixture(scope="module")
def foggy() -> dict[str, tuple[Tensor, Tensor]]:
    """160 photographs in fog with their classes: as many of each class, and 80 % cars."""
    random = np.random.default_rng(0)
    return {name: draw(random, 160, share, "fog") for name, share in (("balanced", 0.1), ("skewed", 0.8))}


def draw(random: np.random.Generator, count: int, share: float, corruption: str = "") -> tuple[Tensor, Tensor]:
    """Photographs with their classes, a share of them cars."""
    photographs, preprocess = Photographs(), lmr.load("photo").preprocess
    labels = np.array(photographs.labels(CLEAN))
    shares = np.full(10, (1 - share) / 9)
    shares[CAR] = share
    index = np.array([random.choice(np.flatnonzero(labels == kind)) for kind in random.choice(10, count, p=shares)])
    images = np.stack(photographs.read(CLEAN, 0, index.tolist()))
    if corruption:
        images = corrupt_batch(images, corruption, 5, seed=1, indices=index, constants="cifar")
    return torch.stack([preprocess(one) for one in images]), torch.tensor(labels[index])


def measure(stream: tuple[Tensor, Tensor], **prior: object) -> float:
    """Accuracy, in points, of the frozen model or with class shares."""
    names = Photographs().classes
    clip = lmr.load("photo").classifier(names)
    method = lmr.create("steady", clip, preset="auto", **prior) if prior else lmr.create("zeroshot", clip)  # type: ignore[arg-type]
    images, classes = stream
    labels = torch.cat([method.step(part).labels for part in images.split(32)])
    return 100 * (labels == classes).double().mean().item()


@pytest.mark.usefixtures("real_models")
def test_skewed_stream_gains_as_a_balanced_one_with_its_true_shares(foggy: dict[str, tuple[Tensor, Tensor]]) -> None:
    balanced = measure(foggy["balanced"], prior="uniform") - measure(foggy["balanced"])
    frozen = measure(foggy["skewed"])
    given = measure(foggy["skewed"], prior={Photographs().classes[CAR]: 0.8}) - frozen
    wrong = measure(foggy["skewed"], prior="uniform") - frozen
    assert balanced > 0
    assert given > balanced
    assert given > wrong + 2  # points: cars are not driven to a tenth of the answers


@pytest.mark.usefixtures("real_models")
def test_motion_blur_wakes_it_within_64_images_and_another_mix_of_classes_does_not() -> None:
    random, clip = np.random.default_rng(0), lmr.load("photo").classifier(Photographs().classes)
    before, blurred, cars = draw(random, 128, 0.1), draw(random, 64, 0.1, "motion_blur"), draw(random, 128, 0.8)
    for (images, _), phase in ((blurred, "adapting"), (cars, "quiet")):
        method = lmr.create("steady(lr=0.0)", clip, preset="auto")
        for part in torch.cat([before[0], images]).split(64):
            assert method.phases() == ["quiet"]
            method.step(part)
        assert method.phases() == [phase]
