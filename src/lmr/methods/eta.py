"""ETA (Niu et al. 2022; EATA without its Fisher term): learn only from answers that are certain and diverse."""

from __future__ import annotations

from lmr.core.bases.selective import SelectiveMethod
from lmr.core.card import Card, Preset
from lmr.core.registry import register

_SOURCE = "LMR paper, appendix, Baseline implementation details"

_CARD = Card(
    source="Niu et al. 2022",
    year=2022,
    in_paper=True,
    presets={
        "default": Preset({}, _SOURCE + ": CIFAR", batch_size=200),
        "cifar10-c": Preset({"optimizer": "adam", "lr": 2.5e-4}, _SOURCE, batch_size=200),
        "cifar100-c": Preset({"optimizer": "adam", "lr": 2.5e-4}, _SOURCE, batch_size=200),
        "imagenet": Preset({"optimizer": "sgd", "lr": 2.5e-4}, _SOURCE, batch_size=64),
    },
)


@register("eta", _CARD)
class ETA(SelectiveMethod):
    """Entropy minimisation on the samples that are certain and unlike the average of those accepted before.

    The step is that of ``SelectiveMethod``. The average starts again with every stream, which the authors' reset omits.

    With balanced predictions the cosine of a confident sample is about 1 / sqrt(C). So at 0.05, a value made for 1000
    classes that the LMR paper uses everywhere, with ten classes almost nothing is diverse after the first batch; ports
    of ETA take 0.4 on CIFAR-10-C and 0.1 on CIFAR-100-C. ``certain`` and ``diverse`` in the info count the samples.
    """
