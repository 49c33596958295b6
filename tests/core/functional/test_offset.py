import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.special import softmax

from lmr.core.functional import offset
from lmr.core.functional.offset import Estimate, estimate_accuracy, learn_offset, match_shares
from offset_reference import choose_start, fit_by_scipy

SIZES = [(20, 10, 3.0), (1, 2, 1.0), (5, 3, 30.0), (100, 10, 10.0), (20, 300, 8.0)]


def draw(count: int, classes: int, scale: float) -> tuple[NDArray, NDArray]:
    rng = np.random.default_rng(count + classes)
    labels = rng.integers(0, classes, count)
    z = scale * rng.normal(size=(count, classes))
    z[np.arange(count), labels] += scale
    return z, labels


@pytest.mark.parametrize(("count", "classes", "scale"), SIZES)
def test_offset_equals_that_of_another_optimiser(count: int, classes: int, scale: float) -> None:
    z, labels = draw(count, classes, scale)
    found = learn_offset(torch.tensor(z), torch.tensor(labels))
    assert found.dtype == torch.float64
    np.testing.assert_allclose(found, fit_by_scipy(z, labels, np.zeros(classes)), atol=2e-6)


@pytest.mark.parametrize(("count", "classes", "scale"), SIZES)
def test_mean_answer_has_the_given_shares(count: int, classes: int, scale: float) -> None:
    z, _ = draw(count, classes, scale / 4)
    shares = np.random.default_rng(0).dirichlet(np.ones(classes)) + 1e-3
    offset = match_shares(torch.tensor(z), torch.tensor(shares).unsqueeze(0))[0]
    assert abs(float(offset.mean())) < 1e-12
    mean = softmax(z + offset.numpy(), axis=1).mean(0)
    np.testing.assert_allclose(mean, shares / shares.sum(), atol=2e-3)


@pytest.mark.parametrize("kinds", [4, 1])
def test_offset_starts_between_equal_and_counted_shares(kinds: int) -> None:
    z, labels = draw(40, 4, 2.0)
    labels = labels[:12] % kinds
    elsewhere = np.array([0, 9, 0, 3])
    start = choose_start(z, z, labels, np.arange(12), elsewhere)
    found = learn_offset(torch.tensor(z[:12]), torch.tensor(labels), torch.tensor(z), torch.tensor(elsewhere))
    np.testing.assert_allclose(found, fit_by_scipy(z[:12], labels, start), atol=1e-3)


@pytest.mark.parametrize("biased", [False, True])
def test_estimate_learns_without_each_label(biased: bool) -> None:
    z, labels = draw(10, 4, 1.5)
    right = 0
    for k in range(10):
        others = np.arange(10) != k
        start = np.zeros(4) if biased else choose_start(z, z, labels, np.flatnonzero(others))
        d = fit_by_scipy(z[others], labels[others], start)
        right += (z[k] + d).argmax() == labels[k]
    found = estimate_accuracy(torch.tensor(z), torch.tensor(labels), None if biased else torch.tensor(z))
    assert (found.right, found.labels) == (right, 10)


def test_estimate_of_many_classes_uses_five_folds() -> None:
    z, labels = draw(256, 400, 3.0)
    right = 0
    for fold in range(5):
        out = np.arange(256) % 5 == fold
        d = fit_by_scipy(z[~out], labels[~out], np.zeros(400))
        right += ((z[out] + d).argmax(1) == labels[out]).sum()
    assert estimate_accuracy(torch.tensor(z), torch.tensor(labels)).right == right


@pytest.mark.parametrize(
    ("right", "count", "low", "high"), [(0, 5, 0.0, 0.4345), (10, 20, 0.2993, 0.7007), (50, 50, 0.9287, 1.0)]
)
def test_interval_is_wilsons(right: int, count: int, low: float, high: float) -> None:
    # low and high from scipy.stats.binomtest(right, count).proportion_ci(method="wilson")
    assert Estimate(right, count).interval == pytest.approx((low, high), abs=1e-4)


def test_of_very_many_labels_some_are_fitted_and_all_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offset, "MOST_FITTED", 30)
    generator = torch.Generator().manual_seed(4)
    z, y = torch.randn(19, 3, generator=generator), torch.randint(0, 3, (19,), generator=generator)
    chosen = torch.arange(0, 19, 2)
    learnt = learn_offset(z, y)
    torch.testing.assert_close(learnt, learn_offset(z[chosen], y[chosen]), rtol=0, atol=0)
    others = int(((z + learnt).argmax(1) == y)[1::2].sum())
    assert estimate_accuracy(z, y) == Estimate(estimate_accuracy(z[chosen], y[chosen]).right + others, 19)


@pytest.mark.parametrize("count", [3, 23])
def test_offset_without_a_label_does_not_depend_on_it(count: int) -> None:
    z, labels = (torch.tensor(drawn) for drawn in draw(count, 4, 1.5))
    weights = 1 - torch.eye(count, dtype=torch.float64)
    before = offset._learn(z, labels, weights, z, None)
    for k in range(count):
        other = labels.clone()
        other[k] = (labels[k] + 1) % 4
        torch.testing.assert_close(offset._learn(z, other, weights, z, None)[k], before[k], rtol=0, atol=1e-7)
