"""How the paper abbreviates columns."""

from __future__ import annotations

from lmr.report.paper.paper_tables import AVERAGE

HEADS = {
    "gaussian_noise": "Gauss.", "shot_noise": "Shot", "impulse_noise": "Impu.", "defocus_blur": "Defo.",
    "glass_blur": "Glas.", "motion_blur": "Moti.", "zoom_blur": "Zoom", "snow": "Snow", "frost": "Fros.", "fog": "Fog",
    "brightness": "Brit.", "contrast": "Cont.", "elastic_transform": "Elas.", "pixelate": "Pixl.",
    "jpeg_compression": "Jpeg", "speckle_noise": "Spec.", "gaussian_blur": "GBlur", "spatter": "Spat.",
    "saturate": "Satu.", AVERAGE: "AVG", "imagenet-a": "IN-A", "imagenet-r": "IN-R", "imagenet-sketch": "IN-S",
    "imagenet-v2": "IN-V2", "cifar10-c": "C10-C", "cifar100-c": "C100-C", "imagenet-c-5000": "IN-C",
}  # fmt: skip
VARIANTS = ("imagenet-a", "imagenet-r", "imagenet-sketch", "imagenet-v2")
