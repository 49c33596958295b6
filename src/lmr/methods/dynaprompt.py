"""DynaPrompt (Xiao et al. 2025): a buffer of contexts that lives through the stream, a few of them for each image."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from torch import Tensor

from lmr.core.errors import LmrError
from lmr.core.functional.by_stream import choose_rows
from lmr.core.functional.losses import entropy
from lmr.core.functional.prompt_selection import move_to_back, select_by_code, select_by_paper
from lmr.core.functional.views import marginal_entropy
from lmr.core.method import COUNTS, Mix, Prediction, Preset, Ranges
from lmr.core.prompts.prompt_method import ContextMethod
from lmr.core.registry import register
from lmr.core.traits import Passes

_SOURCE = "the benchmark tta-vlm"
Row = dict[str, Tensor]  # the state of one stream, without its first axis


@register("dynaprompt")
class DynaPrompt(ContextMethod):
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

    label = "DynaPrompt"
    source = "Xiao et al. 2025"
    year = 2025
    presets: ClassVar[dict[str, Preset]] = {
        "default": Preset({}, _SOURCE, batch_size=1),
        "official": Preset({"prompts": 12}, "the authors' script", batch_size=1),
        "fine-grained": Preset({"lr": 3e-3, "augmix": True}, _SOURCE + ": fine-grained sets", batch_size=1),
    }

    prompts: int = 10
    selection: Literal["official", "paper"] = "official"

    def prepare(self) -> None:
        if not 1 <= self.prompts <= 1000:
            raise LmrError(f"Expected 'prompts' of dynaprompt from 1 to 1000, got {self.prompts}.")
        super().prepare()

    def saturate(self, images: Tensor) -> None:
        signs = torch.randn(self.state["moved"].shape, generator=torch.Generator().manual_seed(0)).sign()
        self.state["moved"].copy_(self.lr * signs)  # as after a first step
        self.state["uses"].fill_(1)

    def count_passes(self, learning: float = 1.0) -> Passes:
        """With a full buffer and one prompt selected: all that are moved, then that one for its step and its answer."""
        forwards = self.prompts + (1 if self.selection == "official" else 2)  # there the first is not moved
        shared = 1 + self.tuner.shape[0]
        return Passes(self.views, text_forwards=forwards, text_backwards=1, own_prompts=True, shared_tokens=shared)

    def begin(self, streams: int) -> dict[str, Tensor]:
        numbers = torch.arange(self.prompts, device=self.classifier.device).repeat(streams, 1)
        moved = self.tuner.start.new_zeros(streams, self.prompts, len(self.tuner.start))
        return super().begin(streams) | {"moved": moved, "order": numbers, "uses": torch.zeros_like(numbers)}

    def ranges(self, state: Mapping[str, Tensor]) -> Ranges:
        return super().ranges(state) | {"order": (0, self.prompts - 1), "uses": COUNTS}

    def _check_fit(self, tensors: Mapping[str, Tensor], rows: int) -> None:
        super()._check_fit(tensors, rows)
        order = tensors["order"]
        if not torch.equal(order.sort(1).values, torch.arange(self.prompts, device=order.device).expand_as(order)):
            raise LmrError("The tensor 'order' of the state does not name every prompt once; the state is damaged.")

    def adapt(self, images: Tensor, mix: Mix) -> Prediction:
        features, rows = self.encode_views(images, mix), self.take(mix)
        rows = {key: value.clone() for key, value in rows.items()}
        answers, facts = [], []
        for own, stream in zip(features, mix.index.tolist(), strict=True):
            row, logits, selected, stepped = self._serve(own, {key: value[stream] for key, value in rows.items()})
            for key, value in row.items():
                rows[key][stream] = value
            answers.append(logits)
            facts.append((selected, stepped))
        rows["seen"] += mix.sizes
        self.put(rows, mix)
        counts, taken = torch.tensor(facts, device=features.device).unbind(1)
        report = {"selected": mix.mean(counts.double()), "stepped": mix.all(taken.bool()), "seen": rows["seen"]}
        return Prediction(torch.stack(answers), self.summarise(report, mix))

    def answer(self, images: Tensor, mix: Mix) -> Tensor:
        """Logits as if each image arrived now, alone; the prompts stay as they are."""
        pairs = zip(self.encode_views(images, mix), mix.active[mix.index].tolist(), strict=True)
        return torch.stack([self._serve(own, {k: v[s] for k, v in self.state.items()})[1] for own, s in pairs])

    def _serve(self, features: Tensor, row: Row) -> tuple[Row, Tensor, int, bool]:
        """One image's features [V, D]: what changes in its stream, its logits [C], how many prompts it used, if any."""
        moved, uses, order = row["moved"].clone(), row["uses"].clone(), row["order"]
        with torch.no_grad():
            chosen, prototypes = self._choose(features, moved, uses, int(order[0]))
            logits = torch.stack([self.compare(features, prototypes[number]) for number in chosen])
            confident = entropy(logits).mean(0).sort(stable=True).indices[: self.count_confident(len(features))]
        gradient = torch.zeros_like(moved)
        for number in chosen:
            slope = self._differentiate(features[confident], prototypes[number]) / len(chosen)
            gradient[number] += self.tuner.pull_back(self.tuner.start + moved[number], slope.unsqueeze(0))[0]
        stepped, _ = self.optim.step(moved, gradient, self.optim.begin(moved))
        if self.selection == "paper":
            touched = torch.zeros_like(uses, dtype=torch.bool)
            touched[chosen] = True
            stepped = choose_rows(touched, stepped, moved)
        with torch.no_grad():
            after = {number: self._encode(stepped[number]) for number in set(chosen)}
            answer = torch.stack([self.compare(features[0], after[number]) for number in chosen]).mean(0)
        if not bool(answer.isfinite().all() & stepped.isfinite().all()):
            return {}, self.compare(features[0], self.tuner.start_prototypes), 0, False
        for number in chosen:
            uses[number] += 1
        return {"moved": stepped, "uses": uses, "order": move_to_back(order, chosen)}, answer, len(chosen), True

    def _choose(self, features: Tensor, moved: Tensor, uses: Tensor, first: int) -> tuple[list[int], list[Tensor]]:
        """The prompts for an image, and the prototypes [C, D] of all; ``first`` begins anew, in place, if it has to."""
        initial, official = self.tuner.start_prototypes, self.selection == "official"
        if official:
            moved[first], uses[first] = 0, 0  # as it is already where it was never used
        prototypes = [self._encode(own) for own in moved]
        logits = torch.stack([self.compare(features, own) for own in prototypes])
        if official:
            return select_by_code(logits, first), prototypes
        chosen = select_by_paper(logits, self.compare(features, initial), uses > 0)
        if not chosen:
            moved[first], uses[first], prototypes[first], chosen = 0, 0, initial, [first]
        return chosen, prototypes

    def _encode(self, moved: Tensor) -> Tensor:
        """Prototypes [C, D] of a context by its difference [n * w] from the original one."""
        return self.tuner.encode(self.tuner.start + moved) if bool(moved.any()) else self.tuner.start_prototypes

    def _differentiate(self, features: Tensor, prototypes: Tensor) -> Tensor:
        """The gradient [C, D] of the entropy of the mean prediction of views [k, D] along the prototypes."""
        with torch.enable_grad():
            prototypes = prototypes.detach().requires_grad_()
            loss = marginal_entropy(self.compare(features, prototypes))
            return torch.autograd.grad(loss, prototypes)[0]
