from __future__ import annotations

import numpy as np
import pytest

from lmr.bench.metrics import running_accuracy, running_top_share


@pytest.mark.parametrize("seed", range(5))
def test_running_measures_equal_counting_from_the_start(seed: int) -> None:
    random = np.random.default_rng(seed)
    predicted, true = random.integers(0, 4, 60), random.integers(0, 4, 60)
    accuracy, share = running_accuracy(predicted, true), running_top_share(predicted, 4)
    for n in range(1, 61):
        right = sum(int(p == t) for p, t in zip(predicted[:n], true[:n], strict=True))
        most = max(list(predicted[:n]).count(label) for label in range(4))
        assert accuracy[n - 1] == pytest.approx(right / n)
        assert share[n - 1] == pytest.approx(most / n)
