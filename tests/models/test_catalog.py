"""The table of published accuracies: found for the very model, and for nothing that merely looks like it."""

from __future__ import annotations

import pytest

from lmr.models.catalog import DATASETS, find_published_accuracy


@pytest.mark.parametrize(
    ("model", "dataset", "accuracy"),
    [  # read off the source once more, by hand
        ("openai/clip-vit-base-patch16", "imagenet", 68.34),
        ("openai/clip-vit-base-patch32", "cifar100", 64.23),
        ("openai/clip-vit-large-patch14", "imagenet-r", 87.84),
        ("openai/clip-vit-large-patch14-336", "imagenet-a", 77.48),
        ("laion/CLIP-ViT-B-32-laion2B-s34B-b79K", "imagenet-v2", 58.14),
        ("laion/CLIP-ViT-L-14-DataComp.XL-s13B-b90K", "imagenet-sketch", 67.95),
        ("google/siglip-base-patch16-224", "cifar10", 92.34),
    ],
)
def test_known_numbers(model: str, dataset: str, accuracy: float) -> None:
    found = find_published_accuracy(model, dataset)
    assert found is not None
    assert (found.model, found.dataset, found.accuracy) == (model, dataset, accuracy)
    assert "open_clip" in found.source
    assert "prompts" in found.prompts


@pytest.mark.parametrize(
    "place",
    [
        "OpenAI/CLIP-ViT-base-patch16",
        "hf-hub:openai/clip-vit-base-patch16",
        "ViT-B-16",
        "ViT-B/16",
        "/data/openai/ViT-B-16.pt",
        "/data/models/openai/clip-vit-base-patch16/",
        r"D:\models\openai\clip-vit-base-patch16",
        "/home/me/.cache/huggingface/hub/models--openai--clip-vit-base-patch16/snapshots/57c216476eefef5ab752ec549e440a49",
    ],
)
def test_model_is_known_by_its_hub_name_wherever_it_lies(place: str) -> None:
    found = find_published_accuracy(place, "ImageNet-1k")
    assert found is not None
    assert found.accuracy == 68.34


@pytest.mark.parametrize(
    "model",
    ["pocket", "", "clip-vit-base-patch16", "me/openai/clip-vit-base-patch16-tuned", "notopenai/clip-vit-base-patch16"],
)
def test_what_only_looks_like_it_is_not_taken_for_it(model: str) -> None:
    assert find_published_accuracy(model, "imagenet") is None


def test_unknown_dataset_has_no_number() -> None:
    assert find_published_accuracy("openai/clip-vit-base-patch16", "pets") is None


@pytest.mark.parametrize("model", ["openai/clip-vit-large-patch14", "google/siglip-so400m-patch14-384"])
def test_every_dataset_of_a_model_has_a_number(model: str) -> None:
    for dataset in DATASETS:
        found = find_published_accuracy(model, dataset)
        assert found is not None
        assert 20 < found.accuracy < 100
