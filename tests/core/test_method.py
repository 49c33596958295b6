"""Many streams in one method: kept, moved, forgotten and refused one by one, on a tower small enough to be quick."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lmr
from few_views import create
from lmr.core.method import Method
from tiny_models import draw_batches, load_tiny

WIDTH, CLASSES, STREAMS = 8, 6, 5


def make_classifier(change: Callable[[nn.Sequential, Tensor], None] | None = None, **options: Any) -> lmr.ZeroShot:
    generator = torch.Generator().manual_seed(11)
    encoder = nn.Sequential(nn.Linear(12, WIDTH), nn.LayerNorm(WIDTH), nn.Tanh(), nn.LayerNorm(WIDTH, bias=False))
    for parameter in encoder.parameters():
        parameter.data.copy_(parameter.data.new_ones(1) + torch.randn(parameter.shape, generator=generator))
    prototypes = torch.randn(CLASSES, WIDTH, generator=generator)
    if change is not None:
        change(encoder, prototypes)
    return lmr.ZeroShot(encoder, prototypes, **{"logit_scale": 20.0, **options})


def make_images(count: int, seed: int) -> Tensor:
    return torch.randn(count, 12, generator=torch.Generator().manual_seed(seed))


def make_ids(count: int, seed: int) -> Tensor:
    return torch.randint(STREAMS, (count,), generator=torch.Generator().manual_seed(100 + seed))


def flow(method: Method, seeds: range) -> list[Tensor]:
    """Mixed batches through all streams."""
    return [method.step(make_images(16, seed), streams=make_ids(16, seed)).logits for seed in seeds]


def flow_one(method: Method, stream: int, seeds: range) -> list[Tensor]:
    """Batches of one stream."""
    return [method.step(make_images(6, seed), streams=[stream] * 6).logits for seed in seeds]


def copy_rows(method: Method, rows: Any = slice(None)) -> dict[str, Tensor]:
    return {key: value[rows].clone() for key, value in method.state.items()}


def are_equal(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(are_equal(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(are_equal, one, other))
    return one.dtype == other.dtype and torch.equal(one, other)


@pytest.fixture
def clip() -> lmr.ZeroShot:
    return make_classifier()


@pytest.fixture
def many(clip: lmr.ZeroShot) -> Method:
    """Five streams in the middle of their lives."""
    method = lmr.create("lmr", clip, streams=STREAMS)
    flow(method, range(3))
    assert (method.state["steps"] > 0).all()  # every stream has moved: equal means more than untouched
    return method


# Streams one by one.


def test_all_streams_saved_together_go_on_as_if_never_stopped(many: Method, tmp_path: Path) -> None:
    many.save(tmp_path / "state")
    again = lmr.create(many.spec, make_classifier(), streams=STREAMS)
    again.load(tmp_path / "state")
    assert are_equal(again.state, many.state)
    assert are_equal(flow(again, range(3, 6)), flow(many, range(3, 6)))
    assert are_equal(again.state, many.state)


@pytest.mark.parametrize("other_streams", [1, 3])
def test_one_stream_moves_to_another_place_of_another_method(many: Method, tmp_path: Path, other_streams: int) -> None:
    many.save(tmp_path / "state", streams=3, notes={"camera": "gate"})
    other = lmr.create(many.spec, make_classifier(), streams=other_streams)
    flow_one(other, 0, range(50, 52))
    place = other_streams - 1
    others = [k for k in range(other_streams) if k != place]
    before = copy_rows(other, others)
    assert other.load(tmp_path / "state", streams=place) == {"camera": "gate"}
    assert are_equal(copy_rows(other, others), before)
    assert are_equal(copy_rows(other, place), copy_rows(many, 3))
    assert are_equal(flow_one(other, place, range(60, 63)), flow_one(many, 3, range(60, 63)))
    assert are_equal(copy_rows(other, place), copy_rows(many, 3))
    assert are_equal(copy_rows(other, others), before)


def test_reset_stream_lives_again_and_the_others_do_not_notice(many: Method) -> None:
    twin = lmr.create(many.spec, many.classifier, streams=STREAMS)
    twin.load_state_dict(many.state_dict())
    first = flow_one(lmr.create(many.spec, many.classifier, streams=STREAMS), 2, range(70, 73))
    others = [0, 1, 3, 4]
    before = copy_rows(many, others)
    many.reset(streams=[2])
    assert are_equal(flow_one(many, 2, range(70, 73)), first)
    assert are_equal(copy_rows(many, others), before)
    assert are_equal(flow_one(many, 4, range(80, 82)), flow_one(twin, 4, range(80, 82)))


# A state that does not fit is refused and changes nothing.


def nudge_weight(encoder: nn.Sequential, _: Tensor) -> None:
    """The next number that float32 can say."""
    weight = encoder[0].weight.data
    weight[0, 0] = torch.nextafter(weight[0, 0], torch.tensor(9.0))


def swap_classes(_: nn.Sequential, prototypes: Tensor) -> None:
    prototypes[:2] = prototypes[:2].flip(0).clone()


STRANGERS: dict[str, tuple[Callable[[], Method], str]] = {
    "one weight": (lambda: lmr.create("lmr", make_classifier(nudge_weight), streams=STREAMS), "other weights"),
    "class order": (lambda: lmr.create("lmr", make_classifier(swap_classes), streams=STREAMS), "other classes"),
    "lr": (
        lambda: lmr.create("lmr(lr=0.002)", make_classifier(), streams=STREAMS),
        r"belongs to lmr\(lr=0\.001, .*not to lmr\(lr=0\.002, ",
    ),
    "method": (lambda: lmr.create("zeroshot", make_classifier(), streams=STREAMS), r"belongs to lmr\(.*to zeroshot"),
    "fewer streams": (lambda: lmr.create("lmr", make_classifier(), streams=2), "holds 5 streams, expected 2"),
    "more streams": (lambda: lmr.create("lmr", make_classifier(), streams=9), "holds 5 streams, expected 9"),
}


@pytest.mark.parametrize("stranger", STRANGERS)
def test_state_of_another_method_is_refused(stranger: str, many: Method, tmp_path: Path) -> None:
    make, words = STRANGERS[stranger]
    many.save(tmp_path / "state")
    other = make()
    other.step(make_images(3, 0), streams=[0] * 3)
    before = copy_rows(other)
    with pytest.raises(lmr.LmrError, match=rf"(?s)Cannot use '.*state'.*{words}") as caught:
        other.load(tmp_path / "state")
    assert str(caught.value).endswith(".")
    with pytest.raises(lmr.LmrError, match=words):
        other.load_state_dict(many.state_dict())
    assert are_equal(other.state, before)


def change_tensors(state: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {**state, "tensors": {**state["tensors"], **changes}}


BROKEN: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "empty": (lambda state: {}, "as state_dict"),
    "only tensors": (lambda state: {"tensors": state["tensors"]}, "belongs to None"),
    "missing": (
        lambda state: {**state, "tensors": {k: v for k, v in state["tensors"].items() if k != "mass"}},
        "mass is missing",
    ),
    "odd": (lambda state: change_tensors(state, guest=torch.zeros(STREAMS)), "guest is missing or unexpected"),
    "narrow": (lambda state: change_tensors(state, norms=state["tensors"]["norms"][:, 1:]), "'norms'"),
    "float64": (lambda state: change_tensors(state, norms=state["tensors"]["norms"].double()), "'norms'"),
    "one row less": (lambda state: change_tensors(state, second=state["tensors"]["second"][1:]), "holds 4 streams"),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_state_that_is_broken_is_refused(broken: str, many: Method) -> None:
    spoil, words = BROKEN[broken]
    state = spoil(many.state_dict())
    flow(many, range(3, 4))
    before = copy_rows(many)
    with pytest.raises(lmr.LmrError, match=words):
        many.load_state_dict(state)
    assert are_equal(many.state, before)


BAD_STREAMS = [[0, 0], [5], [0.0, 1.0], [], ["a"], -1, None, [[0, 1]], [[0], [0, 1]], [2**70, 0]]


@pytest.mark.parametrize("bad", BAD_STREAMS, ids=repr)
def test_streams_that_cannot_be_named_change_nothing(bad: Any, many: Method, tmp_path: Path) -> None:
    kept = many.state_dict(streams=[0, 1])
    before = copy_rows(many)
    if bad is not None:
        with pytest.raises(lmr.LmrError, match=r"Expected every stream once|stream ids from 0 to 4"):
            many.reset(streams=bad)
        with pytest.raises(lmr.LmrError, match=r"Expected every stream once|stream ids from 0 to 4"):
            many.save(tmp_path / "state", streams=bad)
    with pytest.raises(lmr.LmrError):
        many.load_state_dict(kept, streams=bad)
    with pytest.raises(lmr.LmrError):
        many.step(make_images(2, 0), streams=bad if bad != [0, 0] else [0, 0, 0])
    assert are_equal(many.state, before)
    assert not list(tmp_path.iterdir())


def test_stream_begins_as_zero_shot(clip: lmr.ZeroShot) -> None:
    images, ids = make_images(8, 1), make_ids(8, 1)
    expected = lmr.create("zeroshot", clip).predict(images).logits
    torch.testing.assert_close(lmr.create("lmr", clip).predict(images).logits, expected, atol=1e-5, rtol=0)
    many = lmr.create("lmr", clip, streams=STREAMS)
    torch.testing.assert_close(many.predict(images, streams=ids).logits, expected, atol=1e-4, rtol=0)
    many.step(images, streams=ids)
    assert not torch.allclose(many.predict(images, streams=ids).logits, expected, atol=1e-2)


# Other classes.

OLD = ["cat", "dog", "ship", "car", "frog", "bird"]
NEW = ["bird", "horse", "cat", "boat", "ship", "lamp", "tree"]
PAIRS = [(5, 0), (0, 2), (2, 4)]  # old and new numbers of the names that stay


def rename(names: list[str], clip: lmr.ZeroShot) -> lmr.ZeroShot:
    """A classifier with the same encoder; a name has the same prototype wherever it occurs."""
    rows = [torch.randn(WIDTH, generator=torch.Generator().manual_seed(sum(name.encode()))) for name in names]
    return lmr.ZeroShot(clip.encoder, torch.stack(rows), logit_scale=20.0, names=names, input_shape=(12,))


WORDS = ["red ring", "blue star", "green heart", "plain cross", "orange circle", "purple square"]
OTHERS = ["purple square", "blue ring", "red ring", "striped red star", "green heart", "red cross", "green star"]


@pytest.mark.parametrize("name", lmr.list_methods())
def test_the_state_of_every_method_follows_the_names_of_classes_or_it_says_why_not(name: str) -> None:
    kind, model = lmr.find_method(name), load_tiny()
    streams = 1 if kind.single_stream_reason else 2
    method = create(name, model.classifier(WORDS), streams=streams)
    first, second = draw_batches([8, 4])
    method.step(first, [k % streams for k in range(8)])
    before = copy_rows(method)
    if kind.classes_reason:
        with pytest.raises(lmr.LmrError, match=kind.classes_reason):
            method.with_classes(model.classifier(OTHERS))
        with pytest.raises(lmr.LmrError, match=kind.classes_reason):
            method.adopt({**method.state_dict(), "classes": "other"})
        return
    wider = model.classifier(OTHERS)
    new, adopted = method.with_classes(wider), create(name, wider, streams=streams)
    start = copy_rows(adopted)
    for key, value in new.state.items():
        old = before[key]
        axes = [k for k in range(1, value.ndim) if value.shape[k] != old.shape[k]]
        if not axes:
            assert torch.equal(value, old), key
            continue
        for was, now in PAIRS:
            assert torch.equal(value.select(axes[0], now), old.select(axes[0], was)) or len(axes) > 1, key
        fresh = value.select(axes[0], 1)
        if key in kind.class_sums:
            torch.testing.assert_close(fresh, old.mean(1))
        else:
            assert torch.equal(fresh, start[key].select(axes[0], 1)), key
    assert are_equal(copy_rows(method), before)
    adopted.load_state_dict(adopted.adopt(method.state_dict()))
    assert are_equal(dict(adopted.state), dict(new.state))
    assert are_equal(dict(method.with_classes(model.classifier(WORDS)).state), before)
    new.step(second, [k % streams for k in range(4)])


def test_a_tensor_with_two_axes_of_classes_follows_along_both() -> None:
    clip = rename(OLD, make_classifier())
    method = lmr.create("tda(entropy=(0, 9))", clip)
    method.step(make_images(40, 1))
    old = method.state["neg_mask"]
    new = method.with_classes(rename(NEW, clip)).state["neg_mask"]
    assert old.shape == (1, 6, 2, 6)
    assert new.shape == (1, 7, 2, 7)
    assert old.sum() > 0
    for was, now in PAIRS:
        for other, later in PAIRS:
            assert torch.equal(new[:, now, :, later], old[:, was, :, other])
    assert not new[:, 1].any()
    assert not new[..., 1].any()


@pytest.mark.parametrize("name", ["lmr", "steady(prior='uniform')", "tent", "tda"])
def test_mixed_streams_with_new_classes_go_on_as_each_would_alone(name: str) -> None:
    clip = rename(OLD, make_classifier())
    method = lmr.create(name, clip, streams=STREAMS)
    flow(method, range(3))
    alone = [lmr.create(name, clip) for _ in range(STREAMS)]
    for stream, one in enumerate(alone):
        one.load_state_dict(method.state_dict(stream))
    wider = rename(NEW, clip)
    method, alone = method.with_classes(wider), [one.with_classes(wider) for one in alone]
    images, ids = make_images(20, 9), make_ids(20, 9)
    mixed = method.step(images, ids).logits
    for stream, one in enumerate(alone):
        if bool((ids == stream).any()):
            torch.testing.assert_close(mixed[ids == stream], one.step(images[ids == stream]).logits)


def test_a_saved_state_says_its_classes_and_is_adopted_only_if_asked(tmp_path: Path) -> None:
    clip = rename(OLD, make_classifier())
    method = lmr.create("lmr", clip, streams=STREAMS)
    flow(method, range(2))
    method.save(tmp_path / "old.state", [3])
    wider = lmr.create("lmr", rename(NEW, clip), streams=2)
    flow_one(wider, 0, range(1))
    before = copy_rows(wider)
    with pytest.raises(lmr.LmrError, match="adopt"):
        wider.load(tmp_path / "old.state", [1])
    assert are_equal(copy_rows(wider), before)
    wider.load(tmp_path / "old.state", [1], adopt=True)
    assert are_equal(copy_rows(wider, [0]), {key: value[[0]] for key, value in before.items()})
    assert torch.equal(wider.state["norms"][1], method.state["norms"][3])
    assert wider.state["bias"][1, 2] == method.state["bias"][3, 0]


def test_equal_names_are_told_apart_by_their_order() -> None:
    clip = make_classifier()
    method = lmr.create("lmr", rename(["crane", "dog", "crane"], clip))
    method.state["bias"] = torch.tensor([[1.0, 2.0, 3.0]])
    new = method.with_classes(rename(["crane", "crane", "crane", "dog"], clip))
    assert new.state["bias"].tolist() == [[1.0, 3.0, 0.0, 2.0]]


@pytest.mark.parametrize(
    ("names", "reason"),
    [(None, "class names"), ("[1, 2]", "class names"), ("[" * 9999, "class names"), ('["a", "b"]', "shape or type")],
)
def test_a_forged_vocabulary_is_refused_and_changes_nothing(names: str | None, reason: str) -> None:
    clip = rename(OLD, make_classifier())
    state = lmr.create("lmr", clip).state_dict()
    method = lmr.create("lmr", rename(NEW, clip))
    before = copy_rows(method)
    del state["names"]
    forged = state if names is None else state | {"names": names}
    with pytest.raises(lmr.LmrError, match=reason):
        method.load_state_dict(method.adopt(forged))
    assert are_equal(copy_rows(method), before)


def test_other_weights_given_shares_and_nonsense_are_refused() -> None:
    clip = rename(OLD, make_classifier())
    method = lmr.create("lmr", clip)
    other = make_classifier(lambda encoder, _: encoder[0].weight.data.add_(1))  # type: ignore[operator, union-attr]
    with pytest.raises(lmr.LmrError, match="other weights"):
        method.with_classes(rename(NEW, other))
    with pytest.raises(lmr.LmrError, match="got list"):
        method.with_classes(NEW)  # type: ignore[arg-type]
    with pytest.raises(lmr.LmrError, match="'prior' has a number for each"):
        lmr.create("lmr_variants", clip, prior={"cat": 0.5}).with_classes(rename(OLD[::-1], clip))
