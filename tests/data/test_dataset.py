"""Some classes of a set: the same images with labels that count the chosen classes."""

from __future__ import annotations

import numpy as np
import pytest

import lmr
from lmr.bench.inputs import name_clean_set
from lmr.data.catalogue import open_dataset
from lmr.data.dataset import choose_classes


def test_images_and_labels_are_those_of_the_whole_set() -> None:
    whole, part = open_dataset("photo-c"), open_dataset("photo-c@4.3")
    assert len(part.classes) == 4
    truth = [whole.classes[label] for label in whole.labels("fog")]
    places = [place for place, name in enumerate(truth) if name in part.classes]
    assert part.count("fog") == len(places)
    assert [part.classes[label] for label in part.labels("fog")] == [truth[place] for place in places]
    ours, theirs = part.read("fog", 5, [0, 9]), whole.read("fog", 5, [places[0], places[9]])
    np.testing.assert_array_equal(np.stack(ours), np.stack(theirs))
    assert part.digest not in (whole.digest, open_dataset("photo-c@4").digest)
    assert part.digest_part(["fog"], 5) == open_dataset("photo-c@4.3").digest_part(["fog"], 5)
    assert part.describe_part(["fog"])["subset"] == "4 of 10, chosen with seed 3"


@pytest.mark.parametrize("seed", range(3))
def test_smaller_subsets_lie_within_larger_ones(seed: int) -> None:
    small, large = choose_classes(100, 5, seed), choose_classes(100, 50, seed)
    assert len(set(small)) == 5
    assert set(small) <= set(large) <= set(range(100))
    assert large == sorted(large)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("photo-c@1", "from 2 to 10 classes"),
        ("photo-c@11", "from 2 to 10 classes"),
        ("photo-c@ten", "ten classes of it are photo-c@10"),
        ("photo-c@4.", "Cannot read the dataset"),
        ("phto-c@10", "Did you mean 'photo"),
    ],
)
def test_missing_domains_and_images_are_refused(name: str, message: str) -> None:
    with pytest.raises(lmr.LmrError, match=message):
        open_dataset(name)


def test_the_clean_set_has_the_same_classes() -> None:
    assert name_clean_set("cifar100-c@10.2") == "cifar100@10.2"
    assert name_clean_set("imagenet-c-5000@10") == "imagenet@10"
    assert open_dataset("photo-c@4").classes == open_dataset("photo@4").classes
