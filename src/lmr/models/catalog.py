"""The models that have names: what ``lmr list`` shows, OpenAI's short names, and published zero-shot accuracies.

The accuracies are copied from one table: ``docs/openclip_results.csv`` of the open_clip repository (commit f862f86),
which evaluates all models the same way, after Gadre et al. 2023 (DataComp), with the prompts of CLIP_benchmark. The
SigLIP rows are open_clip's conversion of the weights that the ``google/`` ids hold for transformers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

# Advice in the message of a model that cannot be loaded.
OTHER_MODELS = "For other models use lmr.ZeroShot(encoder, prototypes) with your own encoder."

DEFAULT_MODEL = "photo"  # of lmr.load and of the commands
EMBEDDED_MODELS = ("photo", "pocket")  # these come with the package

# Names worth knowing; any other hub id of a CLIP or SigLIP model, and any path, loads too.
KNOWN_MODELS = {
    "photo": "comes with lmr: photographs at 32x32, the 110 class names of CIFAR; no download",
    "pocket": "comes with lmr: 32x32 drawings of coloured shapes, for tests and teaching; no download",
    "ViT-B-32": "OpenAI CLIP ViT-B/32, the same as openai/clip-vit-base-patch32",
    "ViT-B-16": "OpenAI CLIP ViT-B/16, the same as openai/clip-vit-base-patch16",
    "ViT-L-14": "OpenAI CLIP ViT-L/14, the same as openai/clip-vit-large-patch14",
    "ViT-L-14-336": "OpenAI CLIP ViT-L/14 at 336 pixels, the same as openai/clip-vit-large-patch14-336",
    "laion/CLIP-ViT-B-32-laion2B-s34B-b79K": "ViT-B/32 trained on LAION-2B",
    "laion/CLIP-ViT-B-16-laion2B-s34B-b88K": "ViT-B/16 trained on LAION-2B",
    "laion/CLIP-ViT-L-14-laion2B-s32B-b82K": "ViT-L/14 trained on LAION-2B",
    "laion/CLIP-ViT-H-14-laion2B-s32B-b79K": "ViT-H/14 trained on LAION-2B",
    "laion/CLIP-ViT-bigG-14-laion2B-39B-b160k": "ViT-bigG/14 trained on LAION-2B",
    "laion/CLIP-ViT-B-32-DataComp.XL-s13B-b90K": "ViT-B/32 trained on DataComp-1B",
    "laion/CLIP-ViT-B-16-DataComp.XL-s13B-b90K": "ViT-B/16 trained on DataComp-1B",
    "laion/CLIP-ViT-L-14-DataComp.XL-s13B-b90K": "ViT-L/14 trained on DataComp-1B",
    "google/siglip-base-patch16-224": "SigLIP ViT-B/16, through transformers",
    "google/siglip-so400m-patch14-384": "SigLIP So400m/14 at 384 pixels, through transformers",
    "google/siglip2-base-patch16-224": "SigLIP 2 ViT-B/16, through transformers",
}

# OpenAI's models: open_clip's name for each, and its hub id.
OPENAI_MODELS = {
    "ViT-B-32": "openai/clip-vit-base-patch32",
    "ViT-B-16": "openai/clip-vit-base-patch16",
    "ViT-L-14": "openai/clip-vit-large-patch14",
    "ViT-L-14-336": "openai/clip-vit-large-patch14-336",
}

# Other spellings of these names, OpenAI's own among them.
OPENAI_SPELLINGS = {
    "ViT-B/32": "ViT-B-32",
    "ViT-B/16": "ViT-B-16",
    "ViT-L/14": "ViT-L-14",
    "ViT-L/14@336px": "ViT-L-14-336",
    "ViT-L-14-336px": "ViT-L-14-336",
}


SOURCE = "open_clip, docs/openclip_results.csv"
_IMAGENET = "CLIP's 80 ImageNet prompts and its 1000 class names"
_CIFAR = "CLIP's 18 CIFAR prompts"

DATASETS: dict[str, str] = {  # the name of a dataset, and the prompts its published values were measured with
    "imagenet": _IMAGENET,
    "cifar10": _CIFAR,
    "cifar100": _CIFAR,
    "imagenet-sketch": _IMAGENET,
    "imagenet-v2": _IMAGENET,
    "imagenet-a": "CLIP's 80 ImageNet prompts and the names of its 200 classes",
    "imagenet-r": "CLIP's 80 ImageNet prompts and the names of its 200 classes",
}

_OTHER_NAMES = {"imagenet1k": "imagenet", "imagenet-1k": "imagenet", "cifar-10": "cifar10", "cifar-100": "cifar100"}

# Top-1 accuracy in %, in the order of DATASETS.
_ACCURACIES: dict[str, tuple[float, ...]] = {
    "openai/clip-vit-base-patch32": (63.32, 89.83, 64.23, 42.29, 55.92, 31.55, 69.33),
    "openai/clip-vit-base-patch16": (68.34, 90.77, 66.95, 48.24, 61.88, 49.95, 77.70),
    "openai/clip-vit-large-patch14": (75.54, 95.59, 75.82, 59.59, 69.83, 70.75, 87.84),
    "openai/clip-vit-large-patch14-336": (76.56, 94.93, 74.36, 61.00, 70.89, 77.48, 89.05),
    "laion/CLIP-ViT-B-32-laion2B-s34B-b79K": (66.56, 93.58, 75.55, 53.66, 58.14, 26.27, 76.43),
    "laion/CLIP-ViT-B-16-laion2B-s34B-b88K": (70.23, 94.94, 76.84, 56.08, 62.28, 38.23, 80.61),
    "laion/CLIP-ViT-L-14-laion2B-s32B-b82K": (75.25, 96.62, 83.32, 63.28, 67.80, 53.85, 87.42),
    "laion/CLIP-ViT-H-14-laion2B-s32B-b79K": (77.96, 97.45, 84.73, 66.57, 70.90, 59.35, 89.34),
    "laion/CLIP-ViT-B-32-DataComp.XL-s13B-b90K": (69.17, 95.61, 80.31, 56.76, 60.75, 30.35, 78.18),
    "laion/CLIP-ViT-B-32-256x256-DataComp-s34B-b86K": (72.81, 96.53, 82.87, 60.65, 64.81, 37.57, 83.44),
    "laion/CLIP-ViT-B-16-DataComp.XL-s13B-b90K": (73.49, 96.24, 82.12, 60.44, 65.98, 48.40, 83.62),
    "laion/CLIP-ViT-L-14-DataComp.XL-s13B-b90K": (79.21, 98.24, 87.36, 67.95, 72.05, 69.59, 90.83),
    "google/siglip-base-patch16-224": (76.04, 92.34, 72.23, 67.92, 68.93, 45.41, 90.30),
    "google/siglip-base-patch16-256": (76.53, 93.34, 73.27, 68.10, 69.20, 48.77, 90.76),
    "google/siglip-base-patch16-384": (78.49, 92.76, 71.47, 69.55, 72.11, 62.33, 92.14),
    "google/siglip-base-patch16-512": (79.14, 92.65, 71.46, 69.90, 72.83, 67.69, 92.64),
    "google/siglip-large-patch16-256": (80.45, 96.19, 81.91, 72.09, 73.76, 62.13, 93.96),
    "google/siglip-large-patch16-384": (82.07, 96.05, 81.88, 73.60, 75.93, 76.63, 95.07),
    "google/siglip-so400m-patch14-384": (83.08, 96.72, 83.57, 74.54, 77.17, 82.47, 95.75),
}


@dataclass(frozen=True)
class PublishedAccuracy:
    """A published zero-shot accuracy in %, and the prompts and source of its measurement."""

    model: str
    dataset: str
    accuracy: float
    prompts: str
    source: str = SOURCE


def find_published_accuracy(model: str, dataset: str) -> PublishedAccuracy | None:
    """Return the published accuracy of a model, or None where none is known.

    ``model`` is a hub name in any case, OpenAI's short name (ViT-B-16, ViT-B/16) or file (ViT-B-16.pt), or a path that
    ends in a hub name (``models/openai/clip-vit-base-patch16``) or lies in the hub's cache
    (``models--openai--clip-vit-base-patch16``). A folder that only shares the last part of a hub name
    does not count, as it may hold anything, such as a fine-tuned model.
    """
    wanted = re.sub(r"[ _]", "-", dataset.strip().lower())
    wanted = _OTHER_NAMES.get(wanted, wanted)
    name = find_hub_name(model)
    if name is None or wanted not in DATASETS:
        return None
    accuracies = dict(zip(DATASETS, _ACCURACIES[name], strict=True))
    return PublishedAccuracy(name, wanted, accuracies[wanted], DATASETS[wanted])


def find_hub_name(model: str) -> str | None:
    """Return the hub name of a model of the table, from the name or path it was loaded by."""
    place = model.replace("\\", "/").strip("/")
    file = place.rpartition("/")[2]
    short = file.removesuffix(".pt") if file.endswith(".pt") else place
    if OPENAI_SPELLINGS.get(short, short) in OPENAI_MODELS:
        return OPENAI_MODELS[OPENAI_SPELLINGS.get(short, short)]
    place = f"/{place.removeprefix('hf-hub:').lower()}/"
    for name in _ACCURACIES:
        known = name.lower()
        if place.endswith(f"/{known}/") or f"/models--{known.replace('/', '--')}/" in place:
            return name
    return None
