"""The former name of ``lmr.images.image_files``, kept for existing imports."""

from __future__ import annotations

from lmr.images.image_files import UnreadableImage, list_images, open_image

__all__ = ["UnreadableImage", "list_images", "open_image"]
