"""ECALP (Li et al. 2025): label propagation from class prompts to images over a graph that grows with the stream."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from lmr.core.card import Card, Preset, Scores
from lmr.core.method import UNIT, Method, Ranges
from lmr.core.prediction import State, Step
from lmr.core.registry import register
from lmr.core.streams import Streams

_SOURCE = "LMR paper, appendix, Baseline implementation details (all benchmarks)"
_NOBODY, _FAR = -1, -2.0  # a free place in a neighbour list, and its similarity: below every cosine

_CARD = Card(
    source="Li et al. 2025",
    year=2025,
    in_paper=True,
    presets={name: Preset({}, _SOURCE, batch_size=1) for name in ("default", "cifar10-c", "cifar100-c", "imagenet")},
)


@register("ecalp", _CARD)
class ECALP(Method):
    """Label propagation over class prompts and all images seen so far; every image is answered from the whole graph.

    Images are served in order, one at a time; a batch only encodes them together. The logits are
    ``log(row + tiny)`` of the image's propagated row, so the probabilities are that row divided by its sum.

    Kept from the authors' code: the older of two images is re-weighted by the spread of the prompts, the newer is not;
    an image enters twice, and its transient copy is read out and then dropped; mutual neighbours count
    twice; a row's labels are cut to its largest entry, divided by 5, before the next image. Decided here: neighbour
    lists are exact from the first image on; among equal similarities the newest node wins, so the copy wins against
    its original; similarities are raised as ``|s| ** gamma``, which is the same for the even powers.

    The state grows by D + 2 k_image + 2 k_text + 2 values with every image (its re-weighted feature, its nearest
    images and classes with their similarities, its label as class and value). Neighbour lists are kept, not rebuilt:
    an image costs n * D for its similarities and 2 (iterations - 1) * n * k_image * C for the propagation itself.
    """

    emission = "after"
    scores = Scores.LABELS
    export_reason = "its answer depends on a graph of images, not on norms, prototypes and a bias alone"
    single_stream_reason = "the graph of a stream grows with it, so the tensors of two streams would differ in length"
    classes_reason = "its graph links images to classes"
    grows: ClassVar[tuple[str, ...]] = ("features", "images", "similarity", "classes", "cosines", "label", "value")

    k_text: int = 3  # classes an image is linked to
    k_image: int = 8  # images it is linked to, itself among the candidates
    gamma: float = 10.0  # power of every similarity
    alpha: float = 1.0  # share of the propagated labels; the rest stays as it was
    iterations: int = 3  # rounds of propagation

    def prepare(self) -> None:
        self._require_count("k_text", "k_image", "iterations", most=10**6)
        self._require_not_negative("gamma")
        self._require_between(1e-9, 1, "alpha")
        self.spread = F.normalize(self.classifier.prototypes.var(0), dim=0)

    def logit_floor(self) -> float:
        return math.log(torch.finfo(self.classifier.prototypes.dtype).tiny)

    def begin(self) -> Mapping[str, Tensor | int]:
        prototypes, few = self.classifier.prototypes, min(self.k_text, self.classifier.classes)
        number = torch.zeros(0, 1, dtype=torch.int64, device=prototypes.device)
        real = prototypes.new_zeros(0, 1)
        return {
            "features": real.expand(-1, prototypes.shape[1]),
            "images": number.expand(-1, self.k_image),
            "similarity": real.expand(-1, self.k_image),
            "classes": number.expand(-1, few),
            "cosines": real.expand(-1, few),
            "label": number[..., 0],
            "value": real[..., 0],
        }

    def ranges(self, state: Mapping[str, Tensor]) -> Ranges:
        """Return the ranges: nodes and classes that exist, cosines, labels that are not negative."""
        last = self.classifier.classes - 1
        own: Ranges = {"features": UNIT, "cosines": UNIT, "classes": (0, last), "label": (0, last), "value": (0, None)}
        own |= {"images": (_NOBODY, state["label"].shape[1] - 1), "similarity": (_FAR, UNIT[1])}
        return super().ranges(state) | own

    def adapt(self, images: Tensor, state: State, streams: Streams) -> Step:
        graph = {key: state[key][0] for key in self.grows}
        answers = []
        with torch.no_grad():
            for feature in self.classifier.features(images):
                logits, new = self._arrive(feature, graph)
                answers.append(logits)
                graph = add_row(graph, features=self._reweight(feature)) | new
        edges = int((graph["images"] != _NOBODY).sum()) + graph["classes"].numel()
        info = {"nodes": torch.tensor([len(graph["label"])]), "edges": torch.tensor([edges])}
        new = {key: value.unsqueeze(0) for key, value in graph.items()}
        return Step(torch.stack(answers), new, info | {"stepped": streams.sizes > 0})

    def answer(self, images: Tensor, state: State, streams: Streams) -> Tensor:
        """Return logits as if each image arrived now, alone."""
        graph = {key: state[key][0] for key in self.grows}
        return torch.stack([self._arrive(feature, graph)[0] for feature in self.classifier.features(images)])

    def _reweight(self, feature: Tensor) -> Tensor:
        """Return the vector [D] that all later images are compared with."""
        return F.normalize(self.spread * feature, dim=0)

    def _arrive(self, feature: Tensor, graph: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the logits [C] of a unit feature [D], and the graph (without features) with it as the last node."""
        prototypes, n, k = self.classifier.prototypes, len(graph["features"]), self.k_image
        least = graph["similarity"][:, -1]
        nodes, similarity = compare(graph["features"], feature, least, k)
        reached = similarity >= least[nodes]
        place = torch.cat([nodes[reached], nodes.new_tensor([n])])  # the lists that change, the image's own last
        reach = torch.cat([similarity[reached], (self._reweight(feature) * feature).sum(0, keepdim=True)])
        first, near = rank(F.pad(nodes, (0, k), value=_NOBODY), F.pad(similarity, (0, k), value=_FAR), k)
        old = add_row(graph, images=first, similarity=near)

        def link(*new: int) -> dict[str, Tensor]:
            """Return all neighbour lists after adding new nodes with equal features, which go before their equals."""
            numbers = torch.cat([place.new_tensor(new).expand(len(place), -1), old["images"][place]], 1)
            values = torch.cat([reach.unsqueeze(1).expand(-1, len(new)), old["similarity"][place]], 1)
            changed = dict(zip(("images", "similarity"), rank(numbers, values, k), strict=True))
            return {key: table.index_copy(0, place, changed[key]) for key, table in old.items()}

        every = torch.arange(len(prototypes), device=feature.device)
        classes, cosines = rank(every, (prototypes * feature).sum(1), self.k_text)
        text = add_row(graph, classes=classes, cosines=cosines)
        twice = {key: torch.cat([table, table[-1:]]) for key, table in (link(n + 1, n) | text).items()}
        twice |= {key: F.pad(graph[key], (0, 2)) for key in ("label", "value")}
        rows = propagate(twice, len(prototypes), self.gamma, self.alpha, self.iterations)
        value, label = rows[:-1].max(1)
        return (rows[-1] + torch.finfo(rows.dtype).tiny).log(), link(n) | text | {"label": label, "value": value / 5}


def propagate(graph: dict[str, Tensor], count: int, gamma: float, alpha: float, iterations: int) -> Tensor:
    """Return labels [N, count] of N image nodes after some rounds over the symmetric, degree-normalised graph.

    Node i points to ``images[i]`` [k] and to ``classes[i]`` [m]. A class always votes for itself; image i starts with
    ``value[i]`` for class ``label[i]`` and nothing else, which makes the first round a scatter.
    """
    images, classes, label, value = (graph[key] for key in ("images", "classes", "label", "value"))
    size, k = images.shape
    links = torch.where(images == _NOBODY, 0, graph["similarity"].abs().pow(gamma))
    text = graph["cosines"].abs().pow(gamma)
    images = images.clamp(min=0)
    target, order = images.flatten(), images.flatten().int().sort(stable=True).indices  # order: links by their target
    degree = (links.sum(1) + text.sum(1)).index_add(0, target, links.flatten())
    popularity = text.new_zeros(count).index_add(0, classes.flatten(), text.flatten())
    scale, text_scale = 1 / (degree.sqrt() + 1e-6), 1 / (popularity.sqrt() + 1e-6)
    links = alpha * scale.unsqueeze(1) * links * scale[images]
    constant = text.new_zeros(size, count).scatter(1, classes, alpha * scale.unsqueeze(1) * text * text_scale[classes])
    if alpha < 1:
        constant.scatter_add_(1, label.unsqueeze(1), (1 - alpha) * value.unsqueeze(1))
    labels = constant.scatter_add(1, label[images], links * value[images])
    place = images * count + label.unsqueeze(1)
    labels.view(-1).index_add_(0, place.flatten(), (links * value.unsqueeze(1)).flatten())
    source, back = order // k, links.flatten()[order]
    starts = F.pad(torch.bincount(target, minlength=size).cumsum(0)[:-1], (1, 0))
    for _ in range(iterations - 1):
        forth = F.embedding_bag(images, labels, mode="sum", per_sample_weights=links)
        labels = forth.add_(F.embedding_bag(source, labels, starts, mode="sum", per_sample_weights=back)).add_(constant)
    return labels


def compare(features: Tensor, feature: Tensor, least: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the nodes among n that can matter to a new one, and their similarities [m]: the newest first.

    Those matter that reach ``least`` [n] or are among the k most similar. A matrix product finds them, with room for
    its rounding; their products are then summed row by row, so that equal features have equal similarities to the last
    bit at every position, which a matrix product does not guarantee.
    """
    rough, slack = features @ feature, len(feature) * torch.finfo(feature.dtype).eps
    if len(rough) > k:
        least = least.clamp(max=rough.topk(k).values[-1] - slack)
        nodes = (rough >= least - slack).nonzero().flatten().flip(0)
    else:
        nodes = torch.arange(len(rough), device=rough.device).flip(0)
    return nodes, (features[nodes] * feature).sum(1)


def rank(nodes: Tensor, similarity: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k most similar nodes of [..., m], with their similarities; equals stay in order."""
    best = similarity.sort(descending=True, stable=True)
    return nodes.gather(-1, best.indices[..., :k]), best.values[..., :k]


def add_row(graph: dict[str, Tensor], **rows: Tensor) -> dict[str, Tensor]:
    """Return the named tables of the graph, each with one more row."""
    return {key: torch.cat([graph[key], row.unsqueeze(0)]) for key, row in rows.items()}
