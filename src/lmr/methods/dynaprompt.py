"""DynaPrompt (Xiao et al. 2025): a buffer of contexts that lives through the stream, a few of them for each image."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from lmr.core.bases.prompts import PromptMethod
from lmr.core.card import Card, Preset
from lmr.core.functional.losses import entropy, marginal_entropy
from lmr.core.functional.ordered import adapt_in_order, answer_in_order
from lmr.core.method import COUNTS, Ranges
from lmr.core.prediction import State, Step
from lmr.core.registry import register
from lmr.core.streams import Streams, choose_rows

_SOURCE = "the benchmark tta-vlm"

_CARD = Card(
    label="DynaPrompt",
    source="Xiao et al. 2025",
    year=2025,
    presets={
        "default": Preset({}, _SOURCE, batch_size=1),
        "official": Preset({"prompts": 12}, "the authors' script", batch_size=1),
        "fine-grained": Preset({"lr": 3e-3, "augmix": True}, _SOURCE + ": fine-grained sets", batch_size=1),
    },
)


@register("dynaprompt", _CARD)
class DynaPrompt(PromptMethod):
    """Prompts that are certain of an image, and sensitive to its views, take TPT's step together and stay.

    A stream keeps ``prompts`` contexts as differences from the original one, at first 0. Images are served in order,
    one at a time; a batch only encodes them together. The selected prompts step on the mean of their entropies over the
    views that are most certain on average; the answer is the mean of their logits after the step. AdamW begins anew
    with each image.

    Code and paper differ. ``selection="official"`` is the released code: the prompt that was unused for longest begins
    anew with every image, as soon as all were used, and is among the selected (``select_by_code``); in most images it
    is the only one. The decay of AdamW shrinks all differences, also those of prompts that are not selected.
    ``selection="paper"`` takes all prompts whose entropy is at most that of the original prompt, and whose probability
    of the image's class falls at least as far from the image to its views. Only where there is none, the prompt that
    was unused for longest begins anew and is taken. Prompts that are not selected stay as they are.
    """

    memory_span = "stream"

    prompts: int = 10  # contexts that a stream keeps
    selection: Literal["official", "paper"] = "official"  # rule of the released code, or of the paper

    def prepare(self) -> None:
        self._require_count("prompts")
        super().prepare()

    def fill_state(self, images: Tensor) -> None:
        signs = torch.randn(self.state["moved"].shape, generator=torch.Generator().manual_seed(0)).sign()
        self.state["moved"].copy_(self.lr * signs)  # as after a first step
        self.state["uses"].fill_(1)

    def begin(self) -> Mapping[str, Tensor | int]:
        numbers = torch.arange(self.prompts, device=self.classifier.device)
        moved = self.tuner.start.new_zeros(self.prompts, len(self.tuner.start))
        return {**super().begin(), "moved": moved, "order": numbers, "uses": torch.zeros_like(numbers)}

    def ranges(self, state: Mapping[str, Tensor]) -> Ranges:
        return super().ranges(state) | {"order": (0, self.prompts - 1), "uses": COUNTS}

    def describe(self, state: State) -> Mapping[str, Tensor]:
        return {"seen": state["seen"]}

    def adapt(self, images: Tensor, state: State, streams: Streams) -> Step:
        def count(sums: Tensor) -> dict[str, Tensor]:
            return {"selected": sums.double() / streams.sizes}

        features = self._encode_views(images, state, streams)
        return adapt_in_order(features, state, streams, self.look, self.learn, count)

    def answer(self, images: Tensor, state: State, streams: Streams) -> Tensor:
        return answer_in_order(self._encode_views(images, state, streams), state, streams, self.look)

    def look(self, features: Tensor, row: State) -> tuple[Tensor, tuple[State, int]]:
        """Return the logits [C] of an image; what changes in the state of its stream, and the prompts that it used."""
        moved, uses, order = row["moved"].clone(), row["uses"].clone(), row["order"]
        with torch.no_grad():
            chosen, prototypes = self._choose(features, moved, uses, int(order[0]))
            logits = torch.stack([self._compare(features, prototypes[number]) for number in chosen])
            confident = entropy(logits).mean(0).sort(stable=True).indices[: self._count_confident(len(features))]
        gradient = torch.zeros_like(moved)
        for number in chosen:
            own = self._find_gradient(features[confident], prototypes[number]) / len(chosen)
            gradient[number] += self.tuner.vjp(self.tuner.start + moved[number], own.unsqueeze(0))[0]
        stepped, _ = self.optim.step(moved, gradient, self.optim.begin(moved))
        if self.selection == "paper":
            touched = torch.zeros_like(uses, dtype=torch.bool)
            touched[chosen] = True
            stepped = choose_rows(touched, stepped, moved)
        with torch.no_grad():
            after = {number: self._encode(stepped[number]) for number in set(chosen)}
            answer = torch.stack([self._compare(features[0], after[number]) for number in chosen]).mean(0)
        for number in chosen:
            uses[number] += 1
        return answer, ({"moved": stepped, "uses": uses, "order": move_to_back(order, chosen)}, len(chosen))

    def learn(self, found: tuple[State, int], row: State) -> Tensor:
        changes, count = found
        for key, value in changes.items():
            row[key].copy_(value)
        return torch.full_like(row["seen"], count)

    def _choose(self, features: Tensor, moved: Tensor, uses: Tensor, first: int) -> tuple[list[int], list[Tensor]]:
        """Return the prompts for an image, and the prototypes [C, D] of all; may reset ``first``, in place."""
        initial, official = self.tuner.start_prototypes, self.selection == "official"
        if official:
            moved[first], uses[first] = 0, 0  # as it is already where it was never used
        prototypes = [self._encode(own) for own in moved]
        logits = torch.stack([self._compare(features, own) for own in prototypes])
        if official:
            return select_by_code(logits, first), prototypes
        chosen = select_by_paper(logits, self._compare(features, initial), uses > 0)
        if not chosen:
            moved[first], uses[first], prototypes[first], chosen = 0, 0, initial, [first]
        return chosen, prototypes

    def _encode(self, moved: Tensor) -> Tensor:
        """Return prototypes [C, D] of a context by its difference [n * w] from the original one."""
        return self.tuner.encode(self.tuner.start + moved) if bool(moved.any()) else self.tuner.start_prototypes

    def _find_gradient(self, features: Tensor, prototypes: Tensor) -> Tensor:
        """Return the gradient [C, D] of the entropy of the mean prediction of views [k, D] along the prototypes."""
        with torch.enable_grad():
            prototypes = prototypes.detach().requires_grad_()
            loss = marginal_entropy(self._compare(features, prototypes))
            return torch.autograd.grad(loss, prototypes)[0]


def measure_logit_drop(logits: Tensor) -> Tensor:
    """Return how far the largest logit falls from the image to its views, on average: [M] of logits [M, V, C].

    The largest logit of each view is taken for itself, whatever its class, as in the code. Without views it is 0.
    """
    most = logits.amax(-1)
    return (most[:, :1] - most[:, 1:]).sum(1) / max(1, most.shape[1] - 1)


def measure_probability_drop(logits: Tensor) -> Tensor:
    """Return how far the probability of the image's class falls from it to its views, on average: [M]."""
    shares = logits.softmax(-1)
    chosen = shares[:, 0].argmax(-1).view(-1, 1, 1).expand(-1, shares.shape[1], 1)
    own = shares.gather(2, chosen).squeeze(2)
    return (own[:, :1] - own[:, 1:]).sum(1) / max(1, own.shape[1] - 1)


def select_by_code(logits: Tensor, reference: int) -> list[int]:
    """Return the prompts that the released code selects by the logits [M, V, C] of an image, the reference last.

    Prompts are ranked by entropy, the largest first; r is the reference's place. Candidates are the prompts ranked
    after it (or the last one, if there is none) that are also among the first r by the drop of the logits. Their
    numbers are then used as places in the ranking by entropy, which is apparently a mistake, and is kept. A prompt can
    occur twice.
    """
    ranking = entropy(logits).mean(1).sort(descending=True, stable=True).indices.tolist()
    fallen = measure_logit_drop(logits).sort(descending=True, stable=True).indices.tolist()
    place = ranking.index(reference)
    candidates = set(ranking[min(place + 1, len(ranking) - 1) :]) & set(fallen[:place])
    return [*(ranking[number] for number in sorted(candidates)), reference]


def select_by_paper(logits: Tensor, initial: Tensor, used: Tensor) -> list[int]:
    """Return the used [M] prompts that are as certain as the initial one, and whose probabilities fall as far.

    ``logits`` [M, V, C] are those of the prompts in the buffer, ``initial`` [V, C] those of the original prompt.
    """
    first = initial.unsqueeze(0)
    certain = entropy(logits).mean(1) <= entropy(first).mean(1)
    falling = measure_probability_drop(logits) >= measure_probability_drop(first)
    chosen: list[int] = (certain & falling & used).nonzero().flatten().tolist()
    return chosen


def move_to_back(order: Tensor, chosen: list[int]) -> Tensor:
    """Return the order [M] of the prompts after these were used, one after the other."""
    places: list[int] = order.tolist()
    for number in chosen:
        places.remove(number)
        places.append(number)
    return torch.tensor(places, dtype=order.dtype, device=order.device)
