"""DynaPrompt against plain autograd on the whole buffer, by the code and by the paper."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

import lmr
from view_problem import ViewProblem, make_view_problem, make_views, measure_entropy, measure_mean_entropy

SIZES, VIEWS = (4, 5, 6, 5), 10


class BufferReference:
    """The buffer as a list; all prompts of it are encoded for every image."""

    def __init__(
        self, problem: ViewProblem, prompts: int, selection: str, lr: float, decay: float, keep: float
    ) -> None:
        self.problem, self.selection, self.settings, self.keep = problem, selection, (lr, decay), keep
        self.moved = torch.zeros(prompts, *problem.context.shape, dtype=torch.float64)
        self.order, self.uses = list(range(prompts)), [0] * prompts
        self.history: list[list[int]] = []
        self.spared = selection != "paper"  # whether a full buffer's least recently active prompt was used once more

    def step(self, views: Tensor) -> Tensor:
        scale, self.features = self.problem.scale, self.problem.encode_images(views)
        features = self.features
        if self.selection == "official" and 0 not in self.uses:
            self.renew()
        if self.selection == "paper":  # the buffer is asked before a prompt is deleted
            full, suitable = 0 not in self.uses, self.find_suitable()
            self.spared = self.spared or (full and self.order[0] in suitable)
            if not suitable:
                self.renew()
        moved = self.moved.clone().requires_grad_()
        optim = torch.optim.AdamW([moved], self.settings[0], weight_decay=self.settings[1])
        texts = [self.problem.encode_texts(self.problem.context + own) for own in moved]
        logits = torch.stack([scale * features @ own.T for own in texts])
        chosen = self.select(logits.detach())
        self.history.append(chosen)
        certainty = [sum(measure_entropy(logits[m][v]).item() for m in chosen) for v in range(len(views))]
        kept = sorted(range(len(views)), key=lambda v: certainty[v])[: max(1, int(len(views) * self.keep))]
        (sum(measure_mean_entropy(logits[m][kept]) for m in chosen) / len(chosen)).backward()
        optim.step()
        before, self.moved = self.moved, moved.detach()
        if self.selection == "paper":
            for number in set(range(len(before))) - set(chosen):
                self.moved[number] = before[number]
        for number in chosen:
            self.order.remove(number)
            self.order.append(number)
            self.uses[number] += 1
        with torch.no_grad():
            answers = [
                scale * features[0] @ self.problem.encode_texts(self.problem.context + self.moved[m]).T for m in chosen
            ]
        return sum(answers) / len(answers)

    def select(self, logits: Tensor) -> list[int]:
        first = self.order[0]
        if self.selection == "official":
            entropies = np.array([np.mean([measure_entropy(row).item() for row in own]) for own in logits])
            drops = np.array([np.mean([own[0].max().item() - row.max().item() for row in own[1:]]) for own in logits])
            ranking = np.argsort(-entropies.round(12), kind="stable")
            place = int(np.where(ranking == first)[0][0])
            later = ranking[min(place + 1, len(ranking) - 1) :]
            fallen = np.argsort(-drops.round(12), kind="stable")[:place]
            return [*(int(ranking[number]) for number in np.intersect1d(later, fallen)), first]
        return self.find_suitable() or [first]

    def renew(self) -> None:
        """Put a new initial prompt into a free place, or into that of the least recently active prompt."""
        self.moved[self.order[0]] = 0
        self.uses[self.order[0]] = 0

    def find_suitable(self) -> list[int]:
        """The paper's S: prompts in use that are as certain as the initial one and as sensitive to the views."""
        certain, falling = self.judge(torch.zeros_like(self.problem.context))
        judged = {m: self.judge(self.moved[m]) for m in range(len(self.uses)) if self.uses[m]}
        return [m for m, (entropy, fall) in judged.items() if entropy <= certain and fall >= falling]

    def judge(self, moved: Tensor) -> tuple[float, float]:
        """The mean entropy of a prompt over the views, and the mean fall of its probability."""
        with torch.no_grad():
            rows = self.problem.scale * self.features @ self.problem.encode_texts(self.problem.context + moved).T
        return float(np.mean([measure_entropy(row).item() for row in rows])), self.fall(rows)

    def fall(self, rows: Tensor) -> float:
        label = int(rows[0].argmax())
        shares = [float(row.softmax(0)[label]) for row in rows]
        return float(np.mean([shares[0] - share for share in shares[1:]]))


@pytest.mark.parametrize("selection", ["official", "paper"])
@pytest.mark.parametrize(("prompts", "lr", "decay", "keep"), [(4, 5e-3, 0.01, 0.2), (3, 0.03, 0.5, 0.4)])
def test_stream_is_that_of_the_reference(selection: str, prompts: int, lr: float, decay: float, keep: float) -> None:
    problem = make_view_problem()
    reference = BufferReference(problem, prompts, selection, lr, decay, keep)
    spec = f"dynaprompt(prompts={prompts}, selection={selection!r}, lr={lr}, weight_decay={decay}, keep={keep})"
    method = lmr.create(spec, problem.classifier)
    for batch in range(len(SIZES)):
        views = make_views(batch, SIZES, VIEWS)
        found = method.step(views)
        for own, logits in zip(views, found.logits, strict=True):
            torch.testing.assert_close(logits, reference.step(own), atol=1e-8, rtol=0)
        assert method.state["order"][0].tolist() == reference.order
        assert method.state["uses"][0].tolist() == reference.uses
        torch.testing.assert_close(
            method.state["moved"][0].view_as(reference.moved), reference.moved, atol=1e-8, rtol=0
        )
        assert found.info["selected"] == pytest.approx(np.mean([len(c) for c in reference.history[-len(views) :]]))
    assert len({tuple(chosen) for chosen in reference.history}) > 2
    assert any(len(chosen) > 1 for chosen in reference.history)
    assert reference.spared
