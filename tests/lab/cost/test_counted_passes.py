"""Passes that are counted on the stand-in model are those of a step on a real one."""

from __future__ import annotations

import pytest

import lmr
from few_views import list_few
from lab.cost.entries import Entry, Kind
from lab.cost.steps import CostStep, StepFactory
from lab.cost.timing import warm_up
from lmr.bench.cost.model import ModelSource, find_measured_model
from lmr.core.card import Tower
from lmr.core.passes import Passes, count_passes
from lmr.core.progress import ProgressBar
from lmr.core.spec import format_spec

BATCH, CLASSES = 8, 16
TWICE = ("cmf", "roid")  # images are encoded twice if they are unlike the others of the batch
SELECTIVE = ("bitta", "deyo", "dynaprompt", "sar")  # the samples in their loss depend on the images


def measure(entry: Entry, batch_size: int = BATCH) -> tuple[StepFactory, CostStep, Passes]:
    """The passes of a step on a small random model."""
    factory = StepFactory(find_measured_model(ModelSource(random="small")), batch_size, CLASSES)
    step = factory.build(entry)
    passes = warm_up([step], CLASSES, ProgressBar())[entry.name].passes
    assert passes is not None
    return factory, step, passes


@pytest.mark.parametrize("name", lmr.list_methods())
def test_the_stand_in_counts_the_passes_of_a_real_step(name: str) -> None:
    method = lmr.find_method(name)
    spec = format_spec(name, list_few(name))
    factory, _, made = measure(Entry("method", spec))
    counted = count_passes(lmr.create(spec, factory.classifier(Entry("method", spec), BATCH)), BATCH)
    assert counted is not None
    if name in TWICE:
        assert 1 < made.forwards == 1 + made.backwards / 2 < 2
        assert 1 < counted.forwards == 1 + counted.backwards / 2 < 2
        return
    assert made.forwards == pytest.approx(counted.forwards)
    if name in SELECTIVE:
        assert made.backwards <= counted.backwards
        return
    assert made.backwards == pytest.approx(counted.backwards)
    if Tower.TEXT in method.towers:  # others may encode texts of their own, once
        assert made.text_forwards == pytest.approx(counted.text_forwards)
        assert made.text_backwards == pytest.approx(counted.text_backwards)


@pytest.mark.parametrize("batch_size", [4, 6, 16])
def test_a_method_with_a_memory_is_measured_over_a_whole_cycle_with_a_full_memory(batch_size: int) -> None:
    _, step, passes = measure(Entry("method", "rotta(memory=8, every=12)"), batch_size)
    assert step.images == {4: 12, 6: 12, 16: 16}[batch_size]
    assert passes.backwards == pytest.approx(8 / step.images)
    assert passes.forwards == pytest.approx(1 + 2 * 8 / step.images)


@pytest.mark.parametrize(("kind", "size"), [("method", 2), ("method", 8), ("streams", 8)])
def test_a_share_is_of_the_images_of_a_stream(kind: Kind, size: int) -> None:
    """In batches of two, and of one image a stream, more learn than a quarter of them."""
    _, step, made = measure(Entry(kind, "lmr(share=0.25)", streams=4), size)
    assert step.passes is not None
    assert (step.passes.forwards, step.passes.backwards) == (made.forwards, made.backwards)
