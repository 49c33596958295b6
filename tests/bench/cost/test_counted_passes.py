"""What every method says about its passes, against those that a step makes on a small model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from torch import Tensor, nn

import lmr
from few_views import FEW
from lmr.bench.cost.entries import Entry, Kind
from lmr.bench.cost.model import ModelSource, find_measured_model
from lmr.bench.cost.steps import StepFactory
from lmr.bench.cost.timing import warm_up
from lmr.bench.flops import count_passes_of_image
from lmr.core.card import Tower
from lmr.core.method import list_arguments
from lmr.core.passes import Passes
from lmr.core.progress import ProgressBar
from lmr.core.spec import format_spec
from lmr.models.towers.text import TextTower

BATCH, CLASSES = 8, 16
SELECTIVE = ("bitta", "dynaprompt", "sar")  # what they learn from depends on the images


class PromptWatch:
    """Counts the prompts that come out of a text tower, and those to which a gradient comes."""

    def __init__(self, tower: TextTower) -> None:
        self.tower, self.forwards, self.backwards = tower, 0, 0

    @contextmanager
    def observe(self) -> Iterator[PromptWatch]:
        handle = self.tower.ln_final.register_forward_hook(self._watch)
        yield self
        handle.remove()

    def _watch(self, norm: nn.Module, given: tuple[Tensor, ...], found: Tensor) -> None:
        self.forwards += len(found)
        if found.requires_grad:
            found.register_hook(self._count)  # type: ignore[no-untyped-call]

    def _count(self, gradient: Tensor) -> None:
        self.backwards += len(gradient)


@pytest.mark.parametrize("name", lmr.list_methods())
def test_counted_passes_are_those_that_a_step_makes(name: str) -> None:
    """Otherwise a step could be faster than its own arithmetic, and the whole table would be refused."""
    method = lmr.find_method(name)
    spec = format_spec(name, {key: value for key, value in FEW.items() if key in list_arguments(method)})
    factory = StepFactory(find_measured_model(ModelSource(random="small")), BATCH, CLASSES)
    entry = factory.build(Entry("method", spec))
    (result,) = warm_up([entry], ProgressBar()).values()
    passes, text, tower = entry.count_passes(1.0), factory.model.text, factory.model.tower
    assert passes is not None
    assert text is not None
    assert tower is not None
    made = Passes(result.forwards, result.backwards)
    if not method.keeps_images:  # how many images a memory adds depends on what the stream showed
        assert made.forwards == passes.forwards
        assert made.backwards == passes.backwards or (name in SELECTIVE and 0 < made.backwards < passes.backwards)
    with PromptWatch(text).observe() as texts:
        entry.reset()
        entry.run()
    if Tower.TEXT not in method.towers:  # texts of its own may be encoded, and are not counted
        most = entry.images * count_passes_of_image(tower, made, CLASSES, needs_images=method.needs_images)
        assert factory.count_flops(entry, result) <= most
        return
    forwards, backwards = passes.count_texts(entry.images)
    more = texts.backwards / CLASSES - backwards  # prompts beyond the one that is promised
    assert more == 0 or (name in SELECTIVE and more > 0)
    # What all images of a batch share is not counted. A prompt that was selected twice is answered once.
    assert 0 <= texts.forwards / CLASSES - forwards - more <= 1 + more


@pytest.mark.parametrize("batch_size", [4, 6, 16])
def test_a_method_with_a_memory_is_measured_over_a_whole_cycle_with_a_full_memory(batch_size: int) -> None:
    factory = StepFactory(find_measured_model(ModelSource(random="small")), batch_size, CLASSES)
    entry = factory.build(Entry("method", "rotta(memory=8, every=12)"))
    (result,) = warm_up([entry], ProgressBar()).values()
    assert entry.images == {4: 12, 6: 12, 16: 16}[batch_size]
    assert result.backwards == pytest.approx(8 / entry.images)
    assert result.forwards == pytest.approx(1 + 2 * 8 / entry.images)


@pytest.mark.parametrize(("kind", "size"), [("method", 2), ("method", 8), ("streams", 8)])
def test_a_share_is_of_the_images_of_a_stream(kind: Kind, size: int) -> None:
    """In batches of two, and of one image a stream, more learn than a quarter of them."""
    factory = StepFactory(find_measured_model(ModelSource(random="small")), size, CLASSES)
    entry = factory.build(Entry(kind, "lmr(share=0.25)", streams=4))
    (result,) = warm_up([entry], ProgressBar()).values()
    passes = entry.count_passes(1.0)
    assert passes is not None
    assert (passes.forwards, passes.backwards) == (result.forwards, result.backwards)
