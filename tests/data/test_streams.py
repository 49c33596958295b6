"""Orders against Python's own shuffle and against what they promise, and streams that can be entered anywhere."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

import set_maker as maker
from lmr.data.streams import (
    Batch,
    Order,
    make_stream,
    order_by_bursts,
    order_by_classes,
    order_by_shift,
    order_by_skew,
    read_dominant,
    shuffle_places,
)

PERMUTATIONS = ("shuffle", "file", "dirichlet", "classes")
HASHES = ["2f6998e1f4853858", "0326c9c646204ce8", "dda9664d85779417", "7ea533e34f6fcd75"]  # of these orders, in 0.2.0

# How random.seed(1) and random.shuffle begin on 10,000 and on 5,000: the orders behind CIFAR-C and ImageNet-C numbers.
FINGERPRINTS = {
    10_000: [8709, 8573, 3061, 7879, 5676, 6834, 9043, 8801, 8390, 2025],
    5_000: [1154, 2818, 409, 1116, 1872, 4822, 2572, 1287, 4952, 1439],
}


def make_set(count: int = 100, classes: int = 7, domains: tuple[str, ...] = ("fog", "snow", "frost")) -> maker.FakeSet:
    return maker.FakeSet(np.random.default_rng(0).permutation(np.arange(count) % classes), domains)


def unroll(batches: list[Batch]) -> list[tuple[str, int, int]]:
    """Domain, index and label of every image, after a check that the image is the one it is said to be."""
    rows = []
    for batch in batches:
        assert len(batch.images) == len(batch.labels) == len(batch.domains) == len(batch.index)
        assert batch.labels.dtype == batch.index.dtype == np.int64
        for image, domain, index in zip(batch.images, batch.domains, batch.index, strict=True):
            place, high, low = image[0, 0].tolist()
            assert ("fog", "snow", "frost")[place] == domain
            assert 256 * high + low == index
        rows += list(zip(batch.domains, batch.index.tolist(), batch.labels.tolist(), strict=True))
    return rows


@pytest.mark.parametrize("count", FINGERPRINTS)
def test_shuffle_has_the_fingerprint_of_published_numbers(count: int) -> None:
    places = shuffle_places(count)
    assert places[:10].tolist() == FINGERPRINTS[count]
    assert sorted(places.tolist()) == list(range(count))
    assert make_stream(maker.FakeSet(np.zeros(count), ("fog",))).index[:10].tolist() == FINGERPRINTS[count]


@pytest.mark.parametrize("seed", [0, 1, 12345])
def test_shuffle_is_pythons_and_leaves_python_alone(seed: int) -> None:
    random.seed(seed)
    expected = list(range(50))
    random.shuffle(expected)
    state = random.getstate()
    assert shuffle_places(50, seed).tolist() == expected
    assert random.getstate() == state


def test_domains_one_after_the_other() -> None:
    data = make_set(count=50)
    stream = make_stream(data, batch_size=16, severity=3)
    batches = list(stream)
    assert [len(batch.index) for batch in batches] == [16, 16, 16, 2] * 3
    assert all(len(set(batch.domains)) == 1 for batch in batches)
    rows = unroll(batches)
    assert [row[0] for row in rows] == ["fog"] * 50 + ["snow"] * 50 + ["frost"] * 50
    orders = [[row[1] for row in rows[k : k + 50]] for k in (0, 50, 100)]
    assert orders[0] == orders[1] == orders[2] == shuffle_places(50).tolist()  # the same permutation for every domain
    assert all(label == data.truth[index] for _, index, label in rows)
    assert {severity for _, severity, _ in data.reads} == {3}


@pytest.mark.parametrize("mix", [False, True])
@pytest.mark.parametrize("order", PERMUTATIONS)
def test_entering_at_any_batch(order: str, mix: bool) -> None:
    data = make_set(count=30)
    stream = make_stream(data, order=order, mix=mix, batch_size=7)
    whole = list(stream)
    assert len(whole) == len(stream)
    for start in range(len(stream) + 1):
        data.reads.clear()
        rest = list(stream.batches(start))
        assert unroll(rest) == unroll(whole[start:])
        assert sum(len(indices) for _, _, indices in data.reads) == sum(len(batch.index) for batch in whole[start:])
    for bad in (-1, len(stream) + 1):
        with pytest.raises(ValueError, match="Expected a batch number"):
            next(stream.batches(bad))


def test_mixed_domains_are_one_shuffle_of_all() -> None:
    data = make_set(count=20)
    rows = unroll(list(make_stream(data, mix=True, batch_size=8, seed=5)))
    expected = [(domain, index) for domain in data.domains for index in range(20)]
    random.seed(5)
    random.shuffle(expected)
    assert [row[:2] for row in rows] == expected
    stream = make_stream(data, mix=True, batch_size=8)
    assert [len(batch.index) for batch in stream] == [8] * 7 + [4]
    assert any(len(set(batch.domains)) > 1 for batch in stream)


@pytest.mark.parametrize("order", PERMUTATIONS)
def test_limit_keeps_the_same_images_for_every_seed(order: str) -> None:
    data = make_set(count=40)
    whole = make_stream(data, "fog", order=order)
    parts = [make_stream(data, "fog", order=order, seed=seed, limit=15) for seed in (1, 2, 3)]
    first = range(40) if order == "file" else random_places(40)
    assert {tuple(sorted(part.index)) for part in parts} == {tuple(sorted(first[:15]))}
    assert len({part.hash for part in parts}) == (1 if order == "file" else 3)
    each = make_stream(data, order=order, limit=15)
    assert Counter(row[0] for row in unroll(list(each))) == {"fog": 15, "snow": 15, "frost": 15}
    mixed = [unroll(list(make_stream(data, order=order, seed=seed, limit=15, mix=True))) for seed in (1, 2)]
    assert sorted(mixed[0]) == sorted(mixed[1])
    assert len(mixed[0]) == 45
    assert make_stream(data, "fog", order=order, limit=1000).hash == whole.hash


def random_places(count: int) -> list[int]:
    """Shuffle as the code behind the published results does."""
    places = list(range(count))
    random.Random(1).shuffle(places)
    return places


@given(
    some.lists(some.integers(0, 5), max_size=60),
    some.sampled_from(PERMUTATIONS),
    some.integers(0, 3),
    some.sampled_from([0.01, 0.1, 10.0]),
)
def test_every_order_is_a_permutation(labels: list[int], kind: str, seed: int, concentration: float) -> None:
    truth = np.array(labels, np.int64)
    order = Order(kind, seed, concentration)
    first = order.arrange(truth)
    assert first.dtype == np.int64
    assert sorted(first.tolist()) == list(range(len(labels)))
    np.testing.assert_array_equal(first, order.arrange(truth))


def count_runs(labels: np.ndarray) -> list[int]:
    return [len(list(group)) for _, group in itertools.groupby(labels.tolist())]


def test_classes_come_one_after_the_other() -> None:
    truth = np.random.default_rng(3).permutation(np.arange(70) % 7)
    assert count_runs(truth[order_by_classes(truth)]) == [10] * 7
    orders = [truth[order_by_classes(truth, seed)][::10].tolist() for seed in range(4)]
    assert len({tuple(order) for order in orders}) == 4  # the classes' own order is random


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"domains": ()}, "one or several domains"),
        ({"domains": ("fog", "fog")}, "each once"),
        ({"domains": "rain"}, "no domain 'rain'"),
        ({"severity": 0}, "severity from 1"),
        ({"order": "random"}, "no order 'random'; choose one of: shuffle"),
    ],
)
def test_wrong_arguments_are_sentences(wrong: dict, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        make_stream(make_set(), **wrong)


@pytest.mark.parametrize("order", ["bursts", "shift", "skew"])
@pytest.mark.parametrize("mix", [False, True])
def test_streams_in_which_images_repeat(order: str, mix: bool) -> None:
    """A shorter stream is the beginning of a longer one, also of one with more frames than the set has images."""
    data = make_set(count=40)
    whole = make_stream(data, order=order, mix=mix, limit=100, batch_size=7)
    part = make_stream(data, order=order, mix=mix, limit=15, batch_size=7)
    assert (whole.count, part.count) == (300, 45)
    if mix:
        np.testing.assert_array_equal(part.index, whole.index[:45])
        np.testing.assert_array_equal(part.domain, whole.domain[:45])
    else:
        np.testing.assert_array_equal(part.index[:15], whole.index[:15])
    np.testing.assert_array_equal(whole.labels, data.truth[whole.index])
    assert make_stream(data, order=order, mix=mix).count == 120
    assert make_stream(data, order=order, seed=2).hash != make_stream(data, order=order).hash


def test_bursts_against_plain_python() -> None:
    """Images in the order of a permutation, each as often as was drawn, whatever its class."""
    seed, count = 3, 200
    scenes = np.random.default_rng([seed, 0]).permutation(500).tolist()
    lengths = np.random.default_rng([seed, 1]).integers(1, 51, count).tolist()
    expected: list[int] = []
    for scene, length in zip(scenes, lengths, strict=False):
        expected += [scene] * length
    assert order_by_bursts(np.zeros(500, np.int64), seed, count).tolist() == expected[:count]
    runs = count_runs(order_by_bursts(np.zeros(5000, np.int64), seed))
    assert (min(runs), max(runs[:-1])) == (1, 50)
    assert 20 < np.mean(runs) < 31
    assert order_by_bursts(np.empty(0, np.int64)).tolist() == []


def test_one_class_is_half_of_a_shifted_stream() -> None:
    truth = np.random.default_rng(0).permutation(np.arange(2000) % 10)
    seen = set()
    for seed in range(4):
        order = order_by_shift(truth, seed)
        counts = Counter(truth[order].tolist())
        (frequent, most), (_, next_) = counts.most_common(2)
        assert 900 < most < 1100
        assert next_ < 200
        seen.add(frequent)
        mine = order[truth[order] == frequent]
        assert len(set(mine[:200].tolist())) == 200  # every image of the class before one comes back
        rest = order[truth[order] != frequent]
        assert len(set(rest.tolist())) == len(rest)
        windows = (truth[order].reshape(-1, 100) == frequent).mean(1)
        assert windows.min() > 0.3  # from the first image on
    assert len(seen) > 1
    with pytest.raises(ValueError, match="at least two classes"):
        order_by_shift(np.zeros(5, np.int64))


BALANCED = np.random.default_rng(0).permutation(np.arange(4000) % 10)


def order_plainly(
    seed: int, count: int, lists: list[list[int]], shares: list[float], start: int
) -> tuple[list[int], list[int]]:
    """The classes and the images of a skewed stream, one by one; the second list of classes holds from ``start`` on."""
    decks = {
        name: np.random.default_rng([seed, 2, name]).permutation(np.flatnonzero(name == BALANCED)).tolist()
        for name in range(10)
    }
    names, images = [], []
    for place, chance in enumerate(np.random.default_rng([seed, 1]).random(count).tolist()):
        classes, sum_ = lists[place >= start], 0.0
        for name, share in zip(classes, shares, strict=True):
            sum_ += share
            if chance < sum_ or name == classes[-1]:
                break
        names.append(name)
        images.append(decks[name].pop(0))
    return names, images


@pytest.mark.parametrize(
    ("dominant", "given", "shares"),
    [
        ("3", {"majority": 0.6}, [0.6] + [0.4 / 9] * 9),
        ("3+7", {"majority": 0.8}, [0.4] * 2 + [0.2 / 8] * 8),
        ("7", {"tail": 0.6}, [0.4 * 0.6**k / (1 - 0.6**10) for k in range(10)]),
        ("", {}, [0.8] + [0.2 / 9] * 9),
        ("3>7", {"majority": 0.5}, [0.5] + [0.5 / 9] * 9),
    ],
)
def test_skewed_streams_against_plain_python(dominant: str, given: dict, shares: list[float]) -> None:
    drawn = np.random.default_rng([2, 0]).permutation(10).tolist()
    heads = [[int(name) for name in part.split("+") if name] for part in dominant.split(">")]
    lists = [head + [name for name in drawn if name not in head] for head in heads]
    names, images = order_plainly(2, 300, [*lists, lists[-1]][:2], shares, 150)
    found = order_by_skew(BALANCED, 2, 300, dominant=read_dominant(dominant), **given)
    assert found.tolist() == images
    assert BALANCED[found].tolist() == names
    assert len(set(images)) == 300  # no image comes twice while there are others of its class


def test_dominant_classes_are_read() -> None:
    assert read_dominant("") == ((),)
    assert read_dominant("12") == ((12,),)
    assert read_dominant("1+3>12") == ((1, 3), (12,))
    for bad in ("a", "1>", ">1", "1+", "1>2>3", "-1", "1, 2"):
        with pytest.raises(ValueError, match="Cannot read the dominant classes"):
            read_dominant(bad)


@pytest.mark.parametrize("order", ["shuffle", "skew"])
def test_an_onset_changes_the_domain_of_the_same_images(order: str) -> None:
    data = make_set(count=60, domains=("fog", "snow", "clean"))
    plain, weather = (make_stream(data, "fog", order=order, batch_size=8, onset=onset) for onset in (0, 20))
    np.testing.assert_array_equal(plain.index, weather.index)
    np.testing.assert_array_equal(plain.labels, weather.labels)
    assert (plain.ends, plain.domains, weather.domains) == (weather.ends, ("fog",), ("fog", "clean"))
    batches = list(weather)
    assert [domain for batch in batches for domain in batch.domains] == ["clean"] * 20 + ["fog"] * 40
    assert [int(image[0, 0, 0]) for image in batches[2].images] == [2] * 4 + [0] * 4  # the places of the domains
    assert len({stream.hash for stream in (plain, weather, make_stream(data, "fog", order=order, onset=21))}) == 3
    short = make_stream(data, "fog", order=order, onset=20, limit=30)
    np.testing.assert_array_equal(short.domain, weather.domain[:30])
    np.testing.assert_array_equal(short.index, weather.index[:30])


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"onset": 100}, "leaves none of the 100 images"),
        ({"domains": ("fog", "snow")}, "from clean images to one corruption"),
        ({"domains": "clean"}, "from clean images to one corruption"),
        ({"dataset": make_set()}, "no domain 'clean'"),
    ],
)
def test_wrong_onsets_are_sentences(wrong: dict, sentence: str) -> None:
    data = make_set(domains=("fog", "snow", "clean"))
    with pytest.raises(ValueError, match=sentence):
        make_stream(**({"dataset": data, "domains": "fog", "onset": 5} | wrong))


def test_rounds_are_the_same_stream_again() -> None:
    data = make_set(count=20)
    once, thrice = (make_stream(data, limit=10, batch_size=4, rounds=rounds) for rounds in (1, 3))
    assert unroll(list(thrice)) == 3 * unroll(list(once))
    assert len(thrice) == 3 * len(once)
    assert thrice.hash != once.hash


def test_the_long_haul_takes_clean_images_in_rounds() -> None:
    data = maker.FakeSet(np.arange(20) % 3, ("clean",))
    stream = make_stream(data, order="haul", limit=50)
    assert [sorted(stream.index[k : k + 20].tolist()) for k in (0, 20)] == 2 * [list(range(20))]
    assert stream.index[:20].tolist() != stream.index[20:40].tolist()
    generator = np.random.default_rng(1)
    expected = np.concatenate([generator.permutation(20) for _ in range(3)])[:50]
    np.testing.assert_array_equal(stream.index, expected)
    assert len({make_stream(data, order="haul", limit=50, severity=severity).hash for severity in (3, 5)}) == 2
    with pytest.raises(ValueError, match="corrupts clean images itself"):
        make_stream(make_set(), "fog", order="haul")


def test_hashes_of_streams_stay() -> None:
    """Rows of earlier versions have them."""
    data = make_set()
    found = [make_stream(data, order=order).hash for order in PERMUTATIONS]
    assert found == HASHES
