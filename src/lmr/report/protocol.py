"""The protocol of a run beside that of published numbers: which table it is compared with, and where they differ."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lmr.bench.running.row import Row
from lmr.core.errors import LmrError
from lmr.core.registry import shorten_address
from lmr.data.provenance import MADE, OTHER
from lmr.models.catalog import OPENAI_MODELS
from lmr.report.published import AVERAGE, PublishedRow, PublishedTable, read_paper, read_tables
from lmr.report.traits import expand_spec

SINGLE_PROMPT = "a photo of a {}."
PRESETS = {  # the preset that methods use on a dataset
    "cifar10-c": "cifar10-c",
    "photo-c": "cifar10-c",  # some of the same images
    "cifar100-c": "cifar100-c",
    "imagenet-c-5000": "imagenet",
    "imagenet-c": "imagenet",
}
RELATED = {"imagenet-c": "imagenet-c-5000"}  # data that are compared with published numbers on other data


def match_corruption_table(dataset: str, backbone: str, prompts: str) -> PublishedTable | None:
    """Return the published table of 15 corruptions to compare runs on a dataset with.

    Of several tables the one with the same backbone and prompts is taken, else the main one.
    """
    wanted = RELATED.get(dataset, dataset)
    tables = [t for t in read_tables().values() if t.protocol["dataset"] == wanted and AVERAGE in t.columns]
    ours = name_backbone(backbone), name_prompts(prompts)

    def count(table: PublishedTable) -> int:
        return sum(a == b for a, b in zip(ours, (table.protocol["backbone"], table.protocol["prompts"]), strict=True))

    return max(tables, key=count, default=None)


def find_differences(row: Row, table: PublishedTable, published: PublishedRow) -> list[str]:
    """Return a phrase for every difference between the protocols of a run and of the numbers of a published row."""
    implied = read_paper()["paper"]["implied"]
    ours: dict[str, Any] = {
        "dataset": row.dataset,
        "backbone": name_backbone(row.backbone.get("name", "")),
        "images": row.images,
        "severity": row.severity,
        "batch_size": row.batch_size,
        "prompts": name_prompts(str(row.prompts.get("name", ""))),
        "order": row.order.get("kind"),
        "reset": row.reset,
    }
    theirs = {**table.describe(shorten_address(row.dataset)), "batch_size": published.batch_size}
    found = []
    for key, value in ours.items():
        if theirs.get(key) is not None and value != theirs[key]:
            note = ", implied" if key in implied else ""
            found.append(f"{key.replace('_', ' ')} {value} (paper: {theirs[key]}{note})")
    return found + _compare_data(row.protocol) + _compare_arguments(row.spec, published.spec, str(theirs["dataset"]))


def _compare_data(protocol: Mapping[str, str]) -> list[str]:
    """Return phrases for images that are known to differ; unchecked data do not count as different."""
    images, corruptions = protocol.get("images", ""), protocol.get("corruptions", "")
    found = ["data made by lmr (paper: official files)"] if corruptions.startswith(MADE) else []
    found += ["not the official files"] if corruptions.startswith(OTHER) else []
    return found + (["not the official test set"] if images.startswith(OTHER) else [])


def _compare_arguments(spec: str, published: str, dataset: str) -> list[str]:
    try:
        ours, theirs = expand_spec(spec), expand_spec(published, PRESETS.get(dataset))
    except LmrError:  # a method that is not loaded
        return []
    # An argument that the method no longer has is a difference too, unless it is None.
    return [f"{key} {ours[key]} (paper: {theirs.get(key)})" for key in ours if ours[key] != theirs.get(key)]


def name_backbone(name: str) -> str:
    """Return one name for each of OpenAI's models, also for a folder that is called as its hub id; others keep theirs.

    Such a folder is .../clip-vit-base-patch16, or one that the hub's cache made of it.
    """
    short = name.replace("/", "-") if name.startswith("ViT") else name
    ids = {text: hub_id for hub_id in OPENAI_MODELS.values() for text in _spell(hub_id)}
    folders = Path(name).parts if Path(name).is_absolute() or name.startswith(("./", "../", "~")) else ()
    named = [ids[folder] for folder in folders if folder in ids]
    return named[-1] if named else OPENAI_MODELS.get(short, shorten_address(name))


def _spell(hub_id: str) -> tuple[str, str]:
    """Return what a folder with a model of the hub is usually called."""
    return hub_id.partition("/")[2], "models--" + hub_id.replace("/", "--")


def name_prompts(name: str) -> str:
    """Return one name for each prompt set of the paper; others keep theirs."""
    return "cupl" if Path(name).stem.lower().startswith("cupl") else name
