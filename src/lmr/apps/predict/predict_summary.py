"""The summary of a run of ``lmr predict``, for the last line on the screen and for the exit code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from lmr.apps.predict.result_file import ErrorCause


@dataclass(frozen=True)
class PredictSummary:
    """What a run did. ``images``, ``errors`` and ``counts`` cover the whole output, earlier runs included."""

    images: int
    errors: int
    earlier: int  # of the images, those that were finished before this run
    seconds: float  # of this run, without loading the model
    counts: dict[str, int]  # images per predicted class
    out: Path | None
    state: Path | None
    causes: Mapping[ErrorCause, int] = field(default_factory=dict)  # of the errors of this run
    first_error: str | None = None  # of this run
    watch: str | None = None  # what a watch has seen
    suited: str = ""  # which values were chosen for the number of classes, in words

    @property
    def speed(self) -> float:
        """Images per second of this run."""
        return (self.images - self.earlier) / max(self.seconds, 1e-9)

    @property
    def most_predicted(self) -> tuple[str, float] | None:
        """The class predicted most and its share of the labels; a share near 1 may mean that adaptation collapsed."""
        if not self.counts:
            return None
        label = max(self.counts, key=self.counts.__getitem__)
        return label, self.counts[label] / sum(self.counts.values())

    @property
    def complaint(self) -> str | None:
        """An error message if every image failed: of those this run labelled, or of the whole output. Otherwise None.

        A run that finished without labelling any image must not look successful to a calling script.
        """
        new, failed = self.images - self.earlier, sum(self.causes.values())
        if not (new and failed == new) and not (self.images and self.errors == self.images):
            return None
        parts = [f"None of the {new or self.images} images could be labelled."]
        if self.first_error is not None:
            parts.append(f"The first error: {self.first_error}")
        parts.append(self._advise())
        if self.out is not None:
            parts.append(f"Then label them again with --overwrite; {str(self.out)!r} holds the errors.")
        return " ".join(parts)

    def _advise(self) -> str:
        """What to try when every image failed, by the most frequent cause."""
        cause = max(self.causes, key=self.causes.__getitem__, default=ErrorCause.UNREADABLE)
        if cause is ErrorCause.UNREADABLE:
            return "Check that the files are complete images."
        if cause is ErrorCause.NOT_FINITE and self.state is not None:
            return f"The state in {str(self.state)!r} is probably damaged; give another --state, or remove the file."
        return "Check the model with 'lmr doctor'."

    def __str__(self) -> str:
        parts = [f"{self.images} images", f"{self.errors} with an error", f"{self.speed:.1f} images/s"]
        if self.earlier:
            parts[0] += f" ({self.earlier} of them finished earlier)"
        if self.most_predicted is not None:
            label, share = self.most_predicted
            parts.append(f"most predicted {label!r} ({share:.1%})")
        parts += [self.suited] if self.suited else []
        parts.append(f"results in {self.out}" if self.out else "results on standard output")
        parts += [f"state in {self.state}"] if self.state else []
        return ", ".join(parts) + (f". {self.watch}" if self.watch else "")
