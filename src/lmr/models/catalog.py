"""The models that have names: what ``lmr list`` shows, and OpenAI's short names."""

from __future__ import annotations

DEFAULT_MODEL = "photo"  # of lmr.load and of the commands; it comes with the package

# Names worth knowing; any other hub id of a CLIP or SigLIP model, and any folder, loads too.
KNOWN_MODELS = {
    "photo": "comes with lmr: photographs at 32x32, the 110 class names of CIFAR; no download",
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
    "google/siglip-base-patch16-224": "SigLIP ViT-B/16",
    "google/siglip-so400m-patch14-384": "SigLIP So400m/14 at 384 pixels",
    "google/siglip2-base-patch16-224": "SigLIP 2 ViT-B/16",
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
