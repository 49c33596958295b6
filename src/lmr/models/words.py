"""Everyday words and the class names of the embedded model that they mean."""

from __future__ import annotations

PEOPLE = ("man", "woman", "boy", "girl", "baby")
# Words that are read as these names; the features of several names are averaged.
ALIASES: dict[str, tuple[str, ...]] = {
    "car": ("automobile",),
    "auto": ("automobile",),
    "lorry": ("truck",),
    "pickup": ("pickup truck",),
    "tram": ("streetcar",),
    "plane": ("airplane",),
    "aeroplane": ("airplane",),
    "boat": ("ship",),
    "bike": ("bicycle",),
    "motorbike": ("motorcycle",),
    "phone": ("telephone",),
    "tv": ("television",),
    "sofa": ("couch",),
    "cow": ("cattle",),
    "bunny": ("rabbit",),
    "person": PEOPLE,
    "people": PEOPLE,
    "human": PEOPLE,
    "pedestrian": PEOPLE,
    "child": ("boy", "girl", "baby"),
    "kid": ("boy", "girl", "baby"),
    "infant": ("baby",),
    "lady": ("woman",),
    "guy": ("man",),
}
