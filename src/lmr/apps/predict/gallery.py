"""Answers to images for people and programs: ``lmr.predict`` and its result, and the page of ``lmr predict --html``."""

from __future__ import annotations

import base64
import html
import io
import json
import os
import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from lmr.apps.options import AnyPath
from lmr.apps.predict.options import PredictOptions
from lmr.apps.predict.results import ImageAnswer, ResultFile
from lmr.core.answer import Answer
from lmr.core.errors import LmrError
from lmr.core.extras import require
from lmr.core.files import write_atomically
from lmr.images.files import UnreadableImage, open_image

if TYPE_CHECKING:
    import pandas

THUMBNAILS, SIDE = 2000, 128  # images on a page, the least sure ones, and their size in pixels


class Answers(Sequence[ImageAnswer]):
    """The answers to the images of a folder, in their order: to iterate, to index, as a table, a file or a page.

    Printed, it is the line at the end of ``lmr predict``.

    Examples:
        >>> import lmr
        >>> from PIL import Image
        >>> Image.new("RGB", (32, 32), "orange").save("fire.png")
        >>> answers = lmr.predict("fire.png", labels=["cat", "truck"])
        >>> len(answers), answers[0].label in ("cat", "truck")
        (1, True)
    """

    def __init__(self, answers: Sequence[ImageAnswer], said: str = "") -> None:
        self._answers, self._said = list(answers), said

    def __len__(self) -> int:
        return len(self._answers)

    @overload
    def __getitem__(self, place: int) -> ImageAnswer: ...

    @overload
    def __getitem__(self, place: slice) -> Answers: ...

    def __getitem__(self, place: int | slice) -> ImageAnswer | Answers:
        return Answers(self._answers[place]) if isinstance(place, slice) else self._answers[place]

    def __repr__(self) -> str:
        return self._said or f"{len(self)} answers"

    def to_dataframe(self) -> pandas.DataFrame:
        """Return a table with a row per image; the label of an image with an error is None."""
        library = require("pandas", "bench", "A table of answers")
        rows = [
            {"path": one.path, "frame": one.frame, "time": one.time, "label": one.label}
            | {
                "probability": one.probability,
                "known": one.answer.known,
                "frozen": one.answer.frozen,
                "error": one.error,
            }
            for one in self
        ]
        table: pandas.DataFrame = library.DataFrame(rows)
        return table

    def save(self, path: AnyPath) -> None:
        """Write a .jsonl or .csv file, as ``lmr predict --out``; a file that exists is replaced."""
        file = ResultFile(path, max((len(one.answer.top) for one in self), default=1))
        file.path.unlink(missing_ok=True)
        file.open()
        try:
            file.append(self)
        finally:
            file.close()

    def write_html(self, path: AnyPath) -> None:
        """Write one page with the images and their answers, least sure first; it needs no network."""
        write_atomically(Path(path), make_page(self).encode("utf-8", "replace"))


def predict(sources: AnyPath | Sequence[AnyPath], labels: AnyPath | Sequence[str], **options: Any) -> Answers:
    """Label images with the names in ``labels``, as ``lmr predict``; return their answers.

    ``sources`` are folders, files or lists, and ``options`` the fields of ``PredictOptions``: model, method, prior,
    truth, and so on. Each answer has ``path``, ``label``, ``probability``, ``top`` and ``error``.

    Examples:
        >>> import lmr
        >>> from PIL import Image
        >>> for name in ("a.png", "b.png"):
        ...     Image.new("RGB", (32, 32), "skyblue").save(name)
        >>> found = lmr.predict(".", ["airplane", "cat"])
        >>> len(found), found[0].path, found[0].label in ("airplane", "cat")
        (2, 'a.png', True)
        >>> found.save("answers.csv")
    """
    from lmr.apps.predict.taught import predict_taught
    from lmr.apps.predict.twice import predict_twice
    from lmr.apps.predict.verdict import describe_run

    known = {item.name for item in fields(PredictOptions)}
    if wrong := [name for name in options if name not in known or name in ("out", "resume", "overwrite", "stream_by")]:
        raise LmrError(f"lmr.predict has no option {wrong[0]!r}; save the result with result.save('answers.jsonl').")
    given = [sources] if isinstance(sources, (str, os.PathLike)) else list(sources)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "answers.jsonl")
        chosen = PredictOptions(labels=labels, **options)
        summary = (predict_twice if chosen.truth is None else predict_taught)(given, replace(chosen, out=out))
        answers = list(read_answers(out))
    if summary.complaint:
        raise LmrError(summary.complaint)
    return Answers(answers, describe_run(replace(summary, out=None), chosen, given))


def read_answers(path: AnyPath) -> Iterator[ImageAnswer]:
    """Yield the answers in a .jsonl file of ``lmr predict``."""
    names = {item.name for item in fields(Answer)}
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        for record in map(json.loads, file):
            values = {key: value for key, value in record.items() if key in names}
            values |= {key: tuple(map(tuple, values[key])) for key in ("top", "frozen_top") if key in values}
            yield ImageAnswer(record["path"], Answer(**values), record.get("frame"), record.get("time"))


def make_page(answers: Sequence[ImageAnswer]) -> str:
    """Return the page of all answers, or of the least sure ones where there are very many."""
    good = [one for one in answers if one.error is None]
    shown = sorted(good, key=lambda one: one.probability or 0.0)[:THUMBNAILS]
    counts = Counter(one.label or "" for one in good)
    options = "".join(
        f'<option value="{html.escape(name)}">{html.escape(name)} ({count})</option>'
        for name, count in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    )
    changed = sum(one.answer.frozen not in (None, one.answer.label) for one in good)
    compared = sum(one.answer.frozen is not None for one in good)
    said = f"{len(answers)} images" + (
        f", {len(answers) - len(good)} could not be read" if len(good) < len(answers) else ""
    )
    said += f"; adapting changed {changed} of {compared} answers" if compared else ""
    said += f"; the {len(shown)} least sure are shown" if len(shown) < len(good) else ""
    cards = "\n".join(map(_make_card, shown))
    parts = {"SAID": html.escape(said), "OPTIONS": options, "CARDS": cards}
    return re.sub("@(SAID|OPTIONS|CARDS)@", lambda found: parts[found[1]], _PAGE)


def _make_card(one: ImageAnswer) -> str:
    place = one.path if one.time is None else f"{one.path} at {one.time:g} s"
    name, sure = html.escape(one.label or ""), f"{100 * (one.probability or 0.0):.0f} %"
    before = one.answer.frozen
    note = ""
    if before is not None:
        note = (
            f'<p class="was">frozen: {html.escape(before)}</p>'
            if before != one.answer.label
            else '<p class="same">frozen: the same</p>'
        )
    changed = int(bool(before) and before != one.answer.label)
    picture = _make_thumbnail(one)
    image = f'<img src="{picture}" alt="{name}" loading="lazy">' if picture else '<div class="none">no picture</div>'
    return (
        f'<figure data-label="{name}" data-changed="{changed}">{image}<figcaption><b>{name}</b> {sure}{note}'
        f'<p class="path" title="{html.escape(place)}">{html.escape(place)}</p></figcaption></figure>'
    )


def _make_thumbnail(one: ImageAnswer) -> str:
    """Return a small JPEG as an address; empty for a frame of a video, and where the file is gone."""
    if one.frame is not None:
        return ""
    try:
        image = open_image(one.path)
    except (UnreadableImage, OSError, ValueError):
        return ""
    image.thumbnail((SIDE, SIDE))
    content = io.BytesIO()
    image.save(content, "JPEG", quality=75)
    return f"data:image/jpeg;base64,{base64.b64encode(content.getvalue()).decode()}"


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'">
<title>lmr predict</title>
<style>
:root{color-scheme:light dark}
body{font:16px/1.4 system-ui,sans-serif;margin:0;background:Canvas;color:CanvasText}
header{position:sticky;top:0;background:Canvas;padding:.75rem 1rem;border-bottom:1px solid GrayText;z-index:1}
h1{font-size:1.1rem;margin:0 0 .25rem}header p{margin:0 0 .5rem}
select,label{font:inherit}select{max-width:100%;padding:.3rem}label{margin-left:.75rem;white-space:nowrap}
main{display:grid;grid-template-columns:repeat(auto-fill,minmax(9rem,1fr));gap:1rem;padding:1rem}
figure{margin:0;min-width:0}figure[hidden]{display:none}
img,.none{width:100%;aspect-ratio:1;object-fit:cover;border-radius:6px;background:#8884;display:grid;place-items:center}
figcaption p{margin:0;font-size:.85rem;overflow:hidden;text-overflow:ellipsis;white-space:nowrap}
.was{color:#c2410c;font-weight:600}.same,.path{opacity:.75}
@media(prefers-color-scheme:dark){.was{color:#fb923c}}
</style></head><body>
<header><h1>Answers, least sure first</h1><p>@SAID@</p>
<select id="label" aria-label="Class"><option value="">all classes</option>@OPTIONS@</select>
<label><input type="checkbox" id="changed"> changed by adapting</label></header>
<main>
@CARDS@
</main>
<script>
const label = document.getElementById("label"), changed = document.getElementById("changed");
function filter() {
  for (const card of document.querySelectorAll("figure")) {
    const other = label.value && card.dataset.label !== label.value;
    card.hidden = other || (changed.checked && card.dataset.changed !== "1");
  }
}
label.onchange = changed.onchange = filter;
</script></body></html>
"""
