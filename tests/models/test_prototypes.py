"""Prototypes against a plain loop, and the cache: hits, misses, damage, folders that cannot be written."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lmr
from lmr.models.backbone import Backbone
from lmr.models.preprocessing import Preprocessing

NAMES = ["cat", "dog", "great_white_shark"]
SENTENCES = {"cat": ["a striped cat", "it purrs"], "dog": ["it barks"], "great white shark": ["a", "b", "c"]}


def draw_feature(text: str) -> Tensor:
    """A unit feature that every text has its own of."""
    seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "little")
    feature = torch.randn(6, generator=torch.Generator().manual_seed(seed))
    return feature / feature.norm()


class Toy(Backbone):
    """A model whose text features are random but fixed, and which counts what it encodes."""

    name = "toy"
    input_shape = (3, 4, 4)
    logit_scale = 20.0
    logit_bias = -3.0
    preprocessing = Preprocessing(4, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))

    def __init__(self, **changes: Any) -> None:
        torch.manual_seed(0)
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(48, 6))
        self._text = nn.Linear(3, 6)
        self.encoded: list[int] = []
        self.__dict__.update(changes)

    def encode_text(self, texts: Sequence[str]) -> Tensor:
        self.encoded.append(len(texts))
        return torch.stack([draw_feature(text) for text in texts])


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where prototypes are kept unless a test says otherwise."""
    monkeypatch.setenv("LMR_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "prototypes"


def list_kept(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.exists() else []


def test_classes_may_have_different_numbers_of_sentences() -> None:
    clip = Toy().classifier(NAMES, SENTENCES)
    for c, sentences in enumerate(SENTENCES.values()):
        mean = sum((draw_feature(text) for text in sentences), torch.zeros(6)) / len(sentences)
        torch.testing.assert_close(clip.prototypes[c], mean / mean.norm(), rtol=0, atol=1e-6)
    assert clip.logit_scale == 20
    assert clip.logit_bias == -3
    assert clip.names == tuple(NAMES)


# The cache.


def test_second_time_nothing_is_encoded(folder: Path) -> None:
    first = Toy().classifier(NAMES, SENTENCES)
    assert len(list_kept(folder)) == 1
    again = Toy()
    second = again.classifier(NAMES, SENTENCES)
    assert again.encoded == []
    assert torch.equal(first.prototypes, second.prototypes)
    assert second.prototypes.dtype == torch.float32


def test_everything_that_matters_is_in_the_key(folder: Path) -> None:
    Toy().classifier(NAMES)
    Toy().classifier(NAMES, ["a {}"])
    Toy().classifier(NAMES[::-1])
    Toy().classifier(NAMES, {"cat": ["a"], "dog": ["b", "c"], "great white shark": ["d"]})
    Toy().classifier(NAMES, {"cat": ["a", "b"], "dog": ["c"], "great white shark": ["d"]})
    assert len(list_kept(folder)) == 5
    other = Toy()
    other._text.weight.data[0, 0] += 1e-3
    other.classifier(NAMES)
    wide = Toy()
    wide._text.double()
    wide.classifier(NAMES)
    named = Toy()
    named._text.config = "another activation"  # type: ignore[assignment]
    named.classifier(NAMES)
    assert len(list_kept(folder)) == 8
    assert other.encoded == wide.encoded == named.encoded == [3]


def test_weights_that_change_are_noticed() -> None:
    """Also through ``.data``, of which autograd's version counters know nothing."""
    toy = Toy()
    toy.classifier(NAMES)
    with torch.no_grad():
        toy._text.weight.add_(1)
    toy.classifier(NAMES)
    toy._text.weight.data.mul_(2)
    toy.classifier(NAMES)
    toy.classifier(NAMES)
    assert toy.encoded == [3, 3, 3]


def test_state_survives_other_last_digits(tmp_path: Path) -> None:
    """Prototypes computed on another machine are not equal to the bit; what they were made from is."""
    lmr.create("lmr(pmr=False)", Toy().classifier(NAMES, cache=False)).save(tmp_path / "state")
    other = Toy()
    other.encode_text = lambda texts: Toy().encode_text(texts) + 1e-7  # type: ignore[method-assign]
    clip = other.classifier(NAMES, cache=False)
    assert not torch.equal(clip.prototypes, Toy().classifier(NAMES, cache=False).prototypes)
    lmr.create("lmr(pmr=False)", clip).load(tmp_path / "state")
    with pytest.raises(lmr.LmrError, match="other classes or prompts"):
        lmr.create("lmr(pmr=False)", Toy().classifier(NAMES, ["a {}"])).load(tmp_path / "state")


def test_embedded_model_keeps_nothing_unless_asked(folder: Path, tmp_path: Path) -> None:
    names = ["cat", "ship"]
    plain = lmr.load().classifier(names)
    assert list_kept(folder) == []
    for _ in range(2):
        kept = lmr.load().classifier(names, cache=tmp_path / "own")
        assert torch.equal(kept.prototypes, plain.prototypes)
    assert len(list_kept(tmp_path / "own")) == 1
    assert kept.text is not None


def test_damaged_file_is_computed_anew_and_replaced(folder: Path) -> None:
    good = Toy().classifier(NAMES, SENTENCES).prototypes
    (path,) = list_kept(folder)
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[-3] ^= 1
    other = folder / "other"
    Toy().classifier(NAMES[:2], cache=other)
    (foreign,) = list_kept(other)
    contents = [b"", b"noise" * 30, whole[:10], whole[:-1], whole + b"x", bytes(flipped), foreign.read_bytes()]
    for content in contents:
        path.write_bytes(content)
        toy = Toy()
        assert torch.equal(toy.classifier(NAMES, SENTENCES).prototypes, good)
        assert sum(toy.encoded) == 6
        assert path.read_bytes() == whole
        again = Toy()
        assert torch.equal(again.classifier(NAMES, SENTENCES).prototypes, good)
        assert again.encoded == []


def test_folder_that_cannot_be_written_is_survived(tmp_path: Path) -> None:
    good = Toy().classifier(NAMES, cache=False).prototypes
    blocked = tmp_path / "file"
    blocked.write_text("no folder")
    assert torch.equal(Toy().classifier(NAMES, cache=blocked).prototypes, good)
    assert torch.equal(Toy().classifier(NAMES, cache=blocked / "below").prototypes, good)
    assert blocked.read_text() == "no folder"


def test_classifier_of_kept_prototypes_can_adapt() -> None:
    """Also when both were made inside inference mode."""
    for _ in range(2):
        with torch.inference_mode():
            clip = Toy().classifier(NAMES)
        assert not clip.prototypes.is_inference()
        assert not clip.prototypes.requires_grad
