"""CLIP models with a tokenizer of their own: features as transformers gives them, and files that cannot be read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from transformers import AutoTokenizer, CLIPModel

import checkpoint_maker as clips
import lmr
import processor_maker as maker
from lmr.models.clip.clip_model import Clip
from lmr.models.model_facts import TokenizerKind
from lmr.models.transformers_tokenizer import TransformersTokenizer, digest_tokenizer, read_tokenizer
from lmr.models.verify.agreement import compare_with_transformers

TEXTS = ["a photo of the cat", "dog", "a small red bird of the ship " * 9, "an unknown word"]


def save(folder: Path, end: int | None = None, **config: Any) -> Any:
    """A whole folder; the id of the end token is the last one, or ``end``."""
    tokenizer = maker.make_tokenizer(end)
    number = tokenizer.convert_tokens_to_ids("</s>")
    model = clips.make_model(words=len(tokenizer) + 3, text={"eos_token_id": number, **config})
    clips.write_huggingface(model, folder)
    tokenizer.save_pretrained(folder)
    change(folder / "tokenizer_config.json", tokenizer_class="PreTrainedTokenizerFast")
    return model


def change(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def expect(model: Any, folder: Path) -> torch.Tensor:
    """transformers' unit features of the texts, padded together on the right, as its processor pads them."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    context = {"truncation": True, "max_length": clips.CONTEXT}
    with torch.no_grad():
        given = tokenizer(TEXTS, padding=True, return_tensors="pt", **context)
        raw = model.get_text_features(given["input_ids"], attention_mask=given["attention_mask"])
    return F.normalize(raw.pooler_output, dim=-1)


@pytest.mark.parametrize(
    ("end", "config"),
    [(None, {}), (5, {}), (None, {"eos_token_id": 2})],
    ids=["last", "in between", "the highest id"],
)
def test_features_are_those_of_transformers(end: int | None, config: dict[str, Any], tmp_path: Path) -> None:
    model = save(tmp_path, end, **config)
    backbone = lmr.load(tmp_path)
    torch.testing.assert_close(backbone.encode_text(TEXTS), expect(model, tmp_path), rtol=0, atol=1e-5)
    assert backbone.model_facts.tokenizer is TokenizerKind.TRANSFORMERS
    assert backbone.model_facts.reads_texts
    assert (
        backbone.facts["tokenizer"].endswith("Backend, 14 tokens") or "Fast, 14 tokens" in backbone.facts["tokenizer"]
    )
    side = backbone.text_side(TEXTS)
    torch.testing.assert_close(side.all_prototypes(2), backbone.encode_text(TEXTS), rtol=0, atol=1e-6)
    images = torch.randn(2, *backbone.input_shape)
    assert compare_with_transformers(backbone, images, TEXTS).holds(1e-5)


def test_folder_is_written_with_its_tokenizer(tmp_path: Path) -> None:
    """transformers and lmr read the written folder as the first one."""
    save(tmp_path / "one", 5)
    backbone = lmr.load(tmp_path / "one")
    (tmp_path / "two").mkdir()
    backbone.write_huggingface(tmp_path / "two", {})
    again = CLIPModel.from_pretrained(tmp_path / "two")
    torch.testing.assert_close(expect(again, tmp_path / "two"), backbone.encode_text(TEXTS), rtol=0, atol=1e-5)
    twin = lmr.load(tmp_path / "two")
    torch.testing.assert_close(twin.encode_text(TEXTS), backbone.encode_text(TEXTS), rtol=0, atol=1e-5)


def test_tokenizer_decides_the_digest(tmp_path: Path) -> None:
    save(tmp_path)
    digest = lmr.load(tmp_path).text_digest()
    assert lmr.load(tmp_path).text_digest() == digest
    text = (tmp_path / "tokenizer.json").read_text()
    (tmp_path / "tokenizer.json").write_text(text.replace('"cat"', '"cow"'))
    assert lmr.load(tmp_path).text_digest() != digest
    used, fresh = maker.make_tokenizer(), maker.make_tokenizer()
    used("a cat", padding="max_length", truncation=True, max_length=9)  # the tokenizers library remembers this
    assert digest_tokenizer(used) == digest_tokenizer(fresh)


def test_end_token_and_context_decide_the_digest(tmp_path: Path) -> None:
    """Both decide the features of a text, so prototypes kept for one end token are not those of another."""
    save(tmp_path)
    backbone = lmr.load(tmp_path)
    assert isinstance(backbone, Clip)
    own, digest = backbone._own_tokenizer, backbone.text_digest()
    assert own is not None
    for name, value in (("end", 2), ("context", own.context - 1)):
        before = getattr(own, name)
        setattr(own, name, value)
        assert backbone.text_digest() != digest
        setattr(own, name, before)
    assert backbone.text_digest() == digest


@pytest.mark.parametrize("content", ["", "{", "[]", '{"model": 3}', "\x00"])
def test_broken_file_gets_a_sentence(content: str, tmp_path: Path) -> None:
    save(tmp_path)
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(lmr.LmrError, match=r"tokenizer in .*; expected tokenizer\.json with tokenizer_config\.json"):
        lmr.load(tmp_path)


def test_vocabulary_of_another_kind_is_not_made_up(tmp_path: Path) -> None:
    """Without a file that it knows, transformers gives a tokenizer of two special tokens."""
    clips.write_huggingface(clips.make_model(), tmp_path)
    (tmp_path / "spiece.model").write_bytes(b"?")
    with pytest.raises(lmr.LmrError, match="has no vocabulary"):
        read_tokenizer(tmp_path)
    with pytest.raises(lmr.LmrError, match="has no vocabulary"):
        lmr.load(tmp_path)


def test_code_beside_the_weights_never_runs(tmp_path: Path) -> None:
    save(tmp_path)
    (tmp_path / "mine.py").write_text("raise SystemExit('run')")
    change(tmp_path / "tokenizer_config.json", auto_map={"AutoTokenizer": ["mine.Mine", None]}, tokenizer_class="Mine")
    assert len(read_tokenizer(tmp_path)) == 14  # transformers reads the files and leaves the code alone


def test_tokens_that_do_not_fit_are_refused() -> None:
    sizes = {"context": 9, "end": 13}
    with pytest.raises(lmr.LmrError, match=r"gives the token 13 .* but the model knows 10 tokens"):
        TransformersTokenizer(maker.make_tokenizer(), "mine", vocabulary=10, **sizes)(["cat"])
    with pytest.raises(lmr.LmrError, match="does not end texts with the token 3"):
        TransformersTokenizer(maker.make_tokenizer(), "mine", vocabulary=14, **sizes | {"end": 3})(["cat"])
    read = TransformersTokenizer(maker.make_tokenizer(), "mine", vocabulary=14, **sizes)
    tokens, end = read(["cat", "a photo of the dog"])
    assert tokens.tolist() == [[1, 7, 13, 0, 0, 0, 0], [1, 3, 4, 5, 6, 8, 13]]
    assert end.tolist() == [2, 6]
    for texts in ("cat", [], [3]):
        with pytest.raises(lmr.LmrError):
            read(texts)  # type: ignore[arg-type]
