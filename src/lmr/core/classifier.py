"""ZeroShot: a classifier without training, made of an image encoder and text prototypes."""

from __future__ import annotations

import copy
import hashlib
import math
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Self, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lmr.core.errors import LmrError, WrongType
from lmr.core.pixel_scale import PixelScale
from lmr.core.placement import (
    Device,
    count_moves,
    digest_tensors,
    digest_weights,
    find_placement,
    find_whole,
    place_tower,
    read_target,
    widen,
)
from lmr.core.text import TextReader, TextSide

_BRIGHT = 20.0  # a mean that no preprocessed images have


class ZeroShot:
    """Images to unit features, cosines with unit text prototypes, and logits ``logit_scale * cosine + logit_bias``.

    ``encoder`` is any module that maps images [B, ...] to features [B, D]; it is set to evaluation mode and frozen.
    ``prototypes`` [C, D] are normalised here and never below float32. ``names`` (C of them) and ``input_shape`` (of one
    image) are optional; they give answers their names and a wrong image a clearer error message. ``text`` is needed
    only by methods that adapt the text tower too. ``identity`` says what the prototypes were made from (model, prompts)
    where that is known: a saved state is then recognised by it, and not by values whose last digits depend on the
    machine that computed them. ``prompts`` are the texts of each class, where they are known. ``reader`` encodes other
    texts, for methods that write some. ``pixels`` says how images were scaled, for methods whose augmentations work on
    pixel values.

    Examples:
        >>> import lmr, torch
        >>> from torch import nn
        >>> encoder = nn.Sequential(nn.Flatten(), nn.LayerNorm(12), nn.Linear(12, 8))
        >>> clip = lmr.ZeroShot(encoder, torch.randn(3, 8), logit_scale=100.0, names=["cat", "dog", "ship"])
        >>> images = torch.randn(5, 3, 2, 2)
        >>> lmr.create("lmr", clip).step(images).logits.shape
        torch.Size([5, 3])
    """

    def __init__(
        self,
        encoder: nn.Module,
        prototypes: Tensor,
        logit_scale: float | Tensor = 100.0,
        *,
        logit_bias: float | Tensor = 0.0,
        names: Sequence[str] | None = None,
        input_shape: Sequence[int] | None = None,
        text: TextSide | None = None,
        identity: str | None = None,
        prompts: Sequence[Sequence[str]] | None = None,
        reader: TextReader | None = None,
        pixels: PixelScale | None = None,
    ) -> None:
        if not isinstance(encoder, nn.Module):
            raise WrongType(f"Expected an nn.Module that maps images to features, got {type(encoder).__name__}.")
        _check_prototypes(prototypes)
        scale, bias = read_number(logit_scale), read_number(logit_bias)
        if not (0 < scale < float("inf") and abs(bias) < float("inf")):
            raise LmrError(
                f"Expected a positive logit scale and a finite bias (100 and 0 for CLIP), got {logit_scale!r} and "
                f"{logit_bias!r}."
            )
        if isinstance(names, str):
            raise LmrError(f"Expected a list of class names, got the single string {names!r}; put it in a list.")
        if names is not None and len(names) != len(prototypes):
            raise LmrError(f"Expected one name for each of the {len(prototypes)} prototypes, got {len(names)} names.")
        _check_encoder(prototypes)
        self.encoder = encoder.eval().requires_grad_(False)
        with leave_inference_mode():
            self._prototypes = F.normalize(prototypes.detach().clone().to(widen(prototypes.dtype)), dim=-1)
        self._placement = find_placement(encoder)  # when the prototypes were last placed
        self._embedded: tuple[Tensor, Tensor] | None = None  # the last images and their tokens
        self._fingerprint: tuple[int, dict[str, str]] | None = None  # with the number of moves before it
        self.logit_scale, self.logit_bias = scale, bias
        self.names = tuple(names) if names is not None else tuple(str(c) for c in range(len(prototypes)))
        self.input_shape = tuple(input_shape) if input_shape is not None else None
        self.text, self.identity, self.prompts, self.reader, self.pixels = text, identity, prompts, reader, pixels

    def __repr__(self) -> str:
        shown = ", ".join(map(repr, self.names[:3])) + (", ..." if self.classes > 3 else "")
        encoder = type(self.encoder).__name__
        return f"ZeroShot({encoder}, {self.classes} classes ({shown}), {self.device}, {self.dtype})".replace(
            "torch.", ""
        )

    @property
    def prototypes(self) -> Tensor:
        """Unit text features [C, D], never below float32. Where the encoder was moved, they follow it."""
        placement = find_placement(self.encoder)
        if placement is not None and placement != self._placement:
            before = self._placement[1] if self._placement else None
            self._place(placement[0], None if placement[1] == before else placement[1])
            self._placement = placement
        return self._prototypes

    def to(self, device: Device | torch.dtype | None = None, dtype: torch.dtype | str | None = None) -> Self:
        """Move encoder, text tower and prototypes, in place: ``to("cuda")``, ``to(torch.bfloat16)``, or both.

        ``dtype`` is that of the frozen weights and of the images; prototypes, the state of methods and the norms of
        lmr's own towers are never below float32. All that share the towers (the backbone, other classifiers, methods)
        follow. States fit a model in full and in half precision alike. As with ``nn.Module.to``, digits that a type
        cannot hold are lost: a model that is widened again is another one, which refuses states saved before. Load it
        again instead. No other thread may use the model meanwhile.
        """
        place, kind = read_target(device, dtype)
        towers = dict.fromkeys([find_whole(self.encoder), *([] if self.text is None else [self.text.tower])])
        with leave_inference_mode():
            for tower in towers:
                place_tower(tower, place, kind)
            self._place(place, kind)
            self._placement = find_placement(self.encoder)
        return self

    def _place(self, device: torch.device | None, dtype: torch.dtype | None) -> None:
        with leave_inference_mode():
            self._prototypes = self._prototypes.to(device, None if dtype is None else widen(dtype))
        self._fingerprint = None

    @property
    def classes(self) -> int:
        """C, the number of classes."""
        return len(self._prototypes)

    @property
    def device(self) -> torch.device:
        """The device images are expected on."""
        return self.prototypes.device

    @property
    def placement(self) -> tuple[torch.device, torch.dtype]:
        """Where the classifier is, and in which type: what is kept for it follows when this changes."""
        return self.device, self.prototypes.dtype

    @property
    def dtype(self) -> torch.dtype:
        """The type images are expected in: the floating type of the encoder."""
        placement = find_placement(self.encoder)
        return self._prototypes.dtype if placement is None else placement[1]

    @property
    def fingerprint(self) -> dict[str, str]:
        """Digests of the frozen encoder and of the classes: a saved state fits only where both are equal."""
        prototypes = self.prototypes  # first, as a move of the encoder makes an earlier fingerprint invalid
        moves = count_moves(self.encoder)  # after a round trip the type is the same, but digits may be lost
        if self._fingerprint is None or self._fingerprint[0] != moves:
            self._fingerprint = moves, self._digest(prototypes)
        return self._fingerprint[1]

    def _digest(self, prototypes: Tensor) -> dict[str, str]:
        encoder = digest_weights(self.encoder)
        if self.identity is not None:
            facts = f"{self.identity} {self.logit_scale:.6g} {self.logit_bias:.6g}"
            return {"backbone": encoder, "classes": hashlib.sha256(facts.encode()).hexdigest()}
        scale = torch.tensor([self.logit_scale, self.logit_bias], dtype=torch.float64)
        return {"backbone": encoder, "classes": digest_tensors({"prototypes": prototypes, "scale": scale})}

    def stand_in(self, names: Sequence[str], digest: str) -> Self:
        """Return a copy of this classifier for states of other classes, of which only the names and digest are known.

        Its prototypes mean nothing.
        """
        other = copy.copy(self)
        other._prototypes, other.names = self.prototypes[:1].repeat(len(names), 1), tuple(names)
        other._fingerprint = count_moves(self.encoder), self.fingerprint | {"classes": digest}
        return other

    def __call__(self, images: Tensor) -> Tensor:
        """Return the logits [B, C] of the frozen classifier."""
        return self.logits(self.cosines(self.features(images)))

    def features(self, images: Tensor) -> Tensor:
        """Return unit features [B, D] in the prototypes' precision."""
        return F.normalize(self.encode(images), dim=-1)

    def encode(self, images: Tensor) -> Tensor:
        """Return features [B, D] as the encoder gives them, in the prototypes' precision."""
        return torch.cat([self.encode_part(images[part]) for part in self.split(len(images))])

    @torch.no_grad()
    def embed(self, images: Tensor) -> Tensor:
        """Return the tokens of images by the encoder's ``embed``, computed once for all passes of a step."""
        found = self._embedded
        if found is None or found[0] is not images:
            found = self._embedded = images, cast(Any, self.encoder).embed(images)
        return found[1]

    def encode_part(self, images: Tensor, tokens: Tensor | None = None) -> Tensor:
        """Encode images at once, or go on from their ``tokens``, which the encoder's ``embed`` gave."""
        try:
            raw = self.encoder(images) if tokens is None else cast(Any, self.encoder).encode_tokens(tokens)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, ValueError, AssertionError, IndexError) as error:
            raise LmrError(f"The encoder cannot take images of shape {list(images.shape)}: {error}") from error
        if not isinstance(raw, Tensor) or raw.shape != (len(images), self.prototypes.shape[1]):
            found = list(raw.shape) if isinstance(raw, Tensor) else type(raw).__name__
            raise LmrError(
                f"Expected the encoder to give features {[len(images), self.prototypes.shape[1]]} to match the "
                f"prototypes, got {found}. Wrap the module so that it returns the projected image features."
            )
        return raw.to(self.prototypes.dtype)

    def split(self, count: int) -> list[slice]:
        """Return the parts of a batch that are best encoded one after the other, by the encoder's ``split_batch``."""
        split = getattr(self.encoder, "split_batch", None)
        return list(split(count)) if callable(split) else [slice(0, count)]

    def read_texts(self, texts: Sequence[str]) -> Tensor:
        """Return unit features [N, D] of texts, without gradient, in the prototypes' precision."""
        if self.reader is None:
            raise LmrError(
                "This classifier has prototypes and no text encoder; give ZeroShot a reader=TextReader(...)."
            )
        with torch.no_grad(), leave_inference_mode(), leave_autocast(self.device):
            features = self.reader.encode(texts)
        return F.normalize(features.to(self.prototypes.device, self.prototypes.dtype), dim=-1)

    def cosines(self, features: Tensor, prototypes: Tensor | None = None) -> Tensor:
        """Return the cosine of every unit feature with every prototype, its own or others [C, D]: [B, C]."""
        return features @ (self.prototypes if prototypes is None else prototypes).T

    def logits(self, cosines: Tensor) -> Tensor:
        """Return cosines [B, C] on the model's scale."""
        return self.logit_scale * cosines + self.logit_bias

    def require_shape(self, method: str) -> tuple[int, ...]:
        """Return the shape of an image, for a method that keeps images; raise an LmrError if it is not known."""
        if self.input_shape is None:
            raise LmrError(
                f"{method} keeps images, and this classifier does not know their shape; give ZeroShot an "
                "input_shape=(3, 224, 224), or set clip.input_shape."
            )
        return self.input_shape

    def check(self, images: Tensor) -> None:
        """Raise an LmrError for anything but a batch of finite preprocessed images."""
        first = images[0] if isinstance(images, list | tuple) and images else images
        if isinstance(first, str | bytes | os.PathLike):
            raise WrongType("Expected images as a tensor, got paths; read them first: backbone.preprocess(paths).")
        if not isinstance(images, Tensor):
            raise WrongType(f"Expected images as a tensor, got {type(images).__name__}; preprocess and stack them.")
        if images.ndim < 2 or len(images) == 0:
            raise LmrError(f"Expected a non-empty batch of images [B, ...], got shape {list(images.shape)}.")
        if images.dtype != self.dtype:
            raise LmrError(
                f"Expected {self.dtype} images, got {images.dtype}; preprocess them (scale, normalise) and convert "
                f"with images.to({self.dtype})."
            )
        if images.device != self.device:
            raise LmrError(f"Expected images on {self.device}, got {images.device}; move them with images.to(...).")
        if self.input_shape is not None and tuple(images.shape[1:]) != self.input_shape:
            raise LmrError(f"Expected images of shape {['B', *self.input_shape]}, got {list(images.shape)}.")
        total = images.detach().sum().item()
        if self.pixels is not None and total > _BRIGHT * images.numel() and math.isfinite(total):
            raise LmrError(
                f"Expected preprocessed images, with values around 0, got a mean of {total / images.numel():.0f} as of "
                "pixels from 0 to 255; scale and normalise them with backbone.preprocess(images)."
            )
        if math.isfinite(total):  # then every term is; a sum of large ones may not be
            return
        finite = images.isfinite().flatten(1).all(1)
        if not finite.all():
            bad = (~finite).nonzero().flatten().tolist()
            raise LmrError(f"Images {bad[:8]} of this batch hold NaN or infinite values; remove them.")

    def holds_views(self, images: object) -> bool:
        """Check whether a tensor holds views [B, V, ...] of images, and not images [B, ...].

        Where the shape of an image is not known, images are taken to be [3, H, W] at most.
        """
        most = 3 if self.input_shape is None else len(self.input_shape)
        return isinstance(images, Tensor) and images.ndim == most + 2

    def check_views(self, images: Tensor) -> None:
        """Raise an LmrError for anything but views [B, V, ...] of finite preprocessed images."""
        if self.input_shape is not None and tuple(images.shape[2:]) != self.input_shape:
            raise LmrError(f"Expected views of shape {['B', 'V', *self.input_shape]}, got {list(images.shape)}.")
        if 0 in images.shape[:2]:
            raise LmrError(f"Expected at least one view of each image [B, V, ...], got shape {list(images.shape)}.")
        self.check(images.flatten(0, 1))


def is_dense(value: object) -> bool:
    """Check that ``value`` is an ordinary tensor: not sparse, nested, quantised or on "meta"."""
    if not isinstance(value, Tensor):
        return False
    return value.layout == torch.strided and not (value.is_nested or value.is_meta or value.is_quantized)


def leave_inference_mode() -> AbstractContextManager[None]:
    """Return a context in which tensors can take part in gradients, also inside a caller's torch.inference_mode()."""
    return torch.inference_mode(False)


def leave_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Return a context without a caller's torch.autocast: margins need the full precision."""
    on = torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type)
    return torch.autocast(device.type, enabled=False) if on else nullcontext()


def read_number(value: Any) -> float:
    """Return a number, also from NumPy or a tensor of one (``model.logit_scale.exp()``)."""
    return float(value.detach() if isinstance(value, Tensor) else value)


def _check_encoder(prototypes: Tensor) -> None:
    """Refuse an encoder that returns logits."""
    unit = F.normalize(prototypes.detach().double(), dim=-1)
    if unit.shape[0] == unit.shape[1] and torch.allclose(
        unit, torch.eye(len(unit), dtype=unit.dtype, device=unit.device)
    ):
        raise LmrError(
            "These prototypes are an identity matrix, as for a model that returns logits. ZeroShot needs an encoder "
            "that returns image features [B, D], and the text features [C, D] of the classes as prototypes: pass the "
            "image tower without its classification head, such as CLIP's visual tower with its projection."
        )


def _check_prototypes(prototypes: Tensor) -> None:
    if not isinstance(prototypes, Tensor) or prototypes.ndim != 2 or not prototypes.is_floating_point():
        came = list(prototypes.shape) if isinstance(prototypes, Tensor) else type(prototypes).__name__
        raise LmrError(f"Expected text prototypes as a float tensor [classes, features], got {came}.")
    if len(prototypes) < 2:
        raise LmrError(f"A classifier needs at least two classes, got {len(prototypes)}.")
    norms = prototypes.norm(dim=-1)
    if not (norms.isfinite() & (norms > 1e-12)).all():  # below that, normalising would not give unit vectors
        raise LmrError("Every text prototype must be finite and not zero; check the text encoder's output.")
