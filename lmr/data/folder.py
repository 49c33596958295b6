"""The former place of :mod:`lmr.data.image_files`; its public name is still found here."""

from __future__ import annotations

from lmr.data.image_files import UnreadableImage, list_images, open_image

__all__ = ["UnreadableImage", "list_images", "open_image"]
