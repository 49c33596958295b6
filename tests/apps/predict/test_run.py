"""`lmr predict` as its user meets it: the lines, the days after, the help and the values that are chosen."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import lmr
from lmr.apps.predict.results import ImageAnswer, print_answers
from lmr.cli import main
from lmr.core.answer import Answer
from lmr.core.state import read_state
from lmr.images import sources as places_file
from lmr.images.files import open_image
from predict_runs import (
    LABELS,
    TEXT,
    USUAL,
    Crash,
    crash_at,
    draw_arrays,
    draw_pictures,
    photograph,
    posix,
    predict_images,
    read_lines,
    read_paths,
    run_here,
    same_state,
    start,
    turn_grey,
)


def make_zoo(folder: Path) -> list[str]:
    """One picture in every storage, two broken ones, and what must not be listed; the names in the order expected."""
    folder.mkdir()
    pictures = [Image.fromarray(pixels) for pixels in draw_arrays(range(8))]
    pictures[0].save(folder / "img10.png")
    pictures[1].save(folder / "img2.jpg", quality=90)
    pictures[2].save(folder / "img3.webp", lossless=True)
    pictures[3].convert("L").save(folder / "img4.png")
    pictures[4].quantize(32).save(folder / "img5.png")
    pictures[5].convert("RGBA").resize((50, 40)).save(folder / "img6.png")
    exif = Image.Exif()
    exif[0x0112] = 6
    pictures[6].transpose(Image.Transpose.ROTATE_90).save(folder / "img7.png", exif=exif)
    pictures[7].save(folder / "img8.png")
    whole = (folder / "img8.png").read_bytes()
    (folder / "img8.png").write_bytes(whole[: len(whole) // 2])
    (folder / "img9.png").write_text("this is no picture")
    (folder / "notes.txt").write_text("nor is this")
    (folder / "deep").mkdir()
    pictures[7].resize((64, 48)).save(folder / "deep" / 'größe,"1".bmp')
    names = ['deep/größe,"1".bmp', "img2.jpg", "img3.webp", *(f"img{k}.png" for k in range(4, 11))]
    return [str(Path(folder.name) / name) for name in names]


def expect_lines(names: list[str], broken: set[str], batch_size: int, top: int) -> list[dict[str, Any]]:
    """The same by hand: one step per chunk on what is readable."""
    backbone, labels = lmr.load(), LABELS
    clip = backbone.classifier(labels, ["a photo of a {}.", "a blurry picture of a {}."])
    method = lmr.create("lmr(lr=2e-3)", clip, preset="auto")
    lines: dict[str, dict[str, Any]] = {}
    for first in range(0, len(names), batch_size):
        good = [name for name in names[first : first + batch_size] if name not in broken]
        answer = method.step(torch.stack([backbone.preprocess(open_image(name)) for name in good]))
        for name, row, score in zip(good, answer.probabilities, answer.known.tolist(), strict=True):
            best = sorted(range(len(labels)), key=lambda c, row=row: -row[c].item())[:top]
            pairs = [[labels[c], round(row[c].item(), 6)] for c in best]
            lines[name] = {"path": name, "label": pairs[0][0], "probability": pairs[0][1], "top": pairs}
            lines[name]["known"] = round(score, 6)
    return [lines.get(name, {"path": name}) for name in names]


def test_every_picture_gets_its_line_in_order(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = make_zoo(here / "zoo")
    broken = {"zoo/img8.png", "zoo/img9.png"}
    (here / "names.txt").write_bytes("\ufeff".encode() + "\r\n\r\n".join(f"  {name} " for name in LABELS).encode())
    templates = ["--template", "a photo of a {}.", "--template", "a blurry picture of a {}."]
    shared = [
        "zoo",
        "--labels",
        "names.txt",
        "--method",
        "lmr(lr=2e-3)",
        *templates,
        "--batch-size",
        "4",
        "--top",
        "3",
        "--passes",
        "1",
    ]
    code, out, err = run_here(capsys, *shared, "--out", "lines.jsonl", "-v")
    assert (code, out) == (0, "")

    lines = read_lines(here / "lines.jsonl")
    assert [line.pop("error").split(":")[0] for line in lines if "error" in line] == [
        "Cannot read 'zoo/img8.png'",
        "Cannot read 'zoo/img9.png'",
    ]
    assert lines == expect_lines(names, broken, 4, 3)
    assert "größe" in (here / "lines.jsonl").read_text("utf-8")

    line, _, summary = err.splitlines()
    assert line.startswith("lmr: 8 of 10 images labelled in lines.jsonl, 2 could not be read. ")
    assert summary.startswith("lmr: 10 images, 2 with an error, ")
    labels = [line["label"] for line in lines if "label" in line]
    share = max(map(labels.count, labels)) / 8
    assert f" ({share:.1%})" in summary
    assert summary.endswith("results in lines.jsonl")
    assert sorted(path.name for path in here.iterdir()) == ["lines.jsonl", "names.txt", "zoo"]

    # The same on the screen, and as a table.
    code, out, err = run_here(capsys, *shared, "--verbose")
    assert (code, out) == (0, (here / "lines.jsonl").read_text("utf-8"))
    assert "results on standard output" in err
    assert main(["predict", *shared, "--out", "lines.csv"]) == 0
    rows = list(csv.DictReader(io.StringIO((here / "lines.csv").read_text("utf-8"), newline="")))
    assert list(rows[0]) == ["path", "frame", "time", "label", "probability", "known", "top1", "top2", "top3", "error"]
    assert [row["path"] for row in rows] == names
    for row, line in zip(rows, lines, strict=True):
        assert bool(row["error"]) == (row["path"] in broken)
        assert row["label"] == line.get("label", "")
        if not row["error"]:
            assert [float(row[key]) for key in ("probability", "known")] == [line["probability"], line["known"]]
            pairs = [row[f"top{k}"].rsplit(":", 1) for k in (1, 2, 3)]
            assert [[label, float(share)] for label, share in pairs] == line["top"]


def test_broken_pictures_change_nothing_for_the_others(here: Path) -> None:
    draw_pictures(here / "a", range(4))
    shutil.copytree("a", "b")
    for number in (4, 5):
        (here / "b" / f"img{number}.png").write_text("x")
    (here / "b" / "img6.png").symlink_to("nowhere.png")
    predict_images("a", LABELS, batch_size=2, out="a.jsonl", state="a.state")
    summary = predict_images("b", LABELS, batch_size=2, out="b.jsonl", state="b.state")
    assert (summary.images, summary.errors, sum(summary.counts.values())) == (7, 3, 4)
    expected = [line | {"path": line["path"].replace("a/", "b/")} for line in read_lines(here / "a.jsonl")]
    lines = read_lines(here / "b.jsonl")
    assert lines[:4] == expected
    assert [set(line) for line in lines[4:]] == [{"path", "error"}] * 3
    assert same_state(here / "a.state", here / "b.state", notes=False)


def test_a_picture_the_model_cannot_take_and_an_answer_that_is_no_number_are_lines_too(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw_pictures(here / "a", range(4))
    real = lmr.Method.step

    def spoil(self: lmr.Method, images: torch.Tensor) -> lmr.Prediction:
        answer = real(self, images)
        answer.logits[1] = float("nan")
        return answer

    monkeypatch.setattr(lmr.Method, "step", spoil)
    monkeypatch.setattr(places_file, "open_image", lambda path: None if "img2" in str(path) else open_image(path))
    monkeypatch.setattr("lmr.models.embedded.Embedded.preprocess", refuse_nothing(lmr.load().preprocess))
    summary = predict_images("a", LABELS, out="o.jsonl")
    lines = read_lines(here / "o.jsonl")
    assert ["error" in line for line in lines] == [False, True, True, False]
    assert lines[1]["error"].startswith("The model's answer to 'a/img1.png' is not a finite number")
    assert lines[2]["error"] == "Cannot prepare 'a/img2.png' for the model: too thin"
    assert summary.errors == 2


def refuse_nothing(real: Callable[[Any], torch.Tensor]) -> Callable[[Any, Any], torch.Tensor]:
    def preprocess(self: Any, image: Any) -> torch.Tensor:
        if image is None:
            raise ValueError("too thin")
        return real(image)

    return preprocess


@posix
def test_names_that_are_no_text_survive_both_formats(here: Path) -> None:
    odd = ["a\nb.png", 'say "x", y.png', os.fsdecode(b"\xff\xfe.png"), "ü\u2028.png", "c\rd.png", "e\r\nf.png"]
    odd += ["\r.png", "g\r", '"\r"', "\r,\n.png", "=1+1.png", " @sum.png"]
    pixels = draw_arrays(range(1))[0]
    os.mkdir("a")
    for name in odd:
        with open(os.path.join("a", name), "wb") as file:
            Image.fromarray(pixels).save(file, format="PNG")
    for out in ("o.jsonl", "o.csv"):
        sources = [os.path.join("a", name) for name in odd]  # files with and without an extension
        assert predict_images(sources, LABELS, out=out, state=f"{out}.kept", batch_size=3).images == len(odd)
        before = (here / out).read_bytes()
        again = predict_images(sources, LABELS, out=out, state=f"{out}.kept", batch_size=3, resume=True)
        assert (again.images, again.earlier) == (len(odd), len(odd))
        assert (here / out).read_bytes() == before
    listed = [json.loads(line)["path"] for line in (here / "o.jsonl").read_bytes().splitlines()]
    assert listed == sources
    with open("o.csv", newline="", encoding="utf-8", errors="surrogateescape") as file:
        assert [row["path"] for row in csv.DictReader(file)] == sources


def test_cells_that_look_like_formulas_are_text(here: Path) -> None:
    """They are resumed as what they are."""
    pixels = draw_arrays(range(1))[0]
    names = ["=1+1.png", "+1.png", "-1.png", "@sum.png", "'=1.png", "'quoted'.png"]
    for name in names:
        Image.fromarray(pixels).save(name)
    labels = "=apple,@aquarium fish"
    predict_images(names, labels, out="o.csv", state="s")
    with open("o.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["path"] for row in rows] == [f"'{name}" for name in names[:5]] + names[5:]
    assert all(cell[:2] in ("'=", "'@") for row in rows for cell in (row["label"], row["top1"], row["top2"]))
    again = predict_images(names, labels, out="o.csv", state="s", resume=True)
    assert (again.images, again.earlier) == (len(names), len(names))
    assert set(again.counts) <= {"=apple", "@aquarium fish"}


def test_the_screen_speaks_utf8_and_text_only_outputs_work(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = ImageAnswer("größe.png", Answer("日本", 0.5, top=(("日本", 0.5),)))
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    sys.stdout.write("first ")
    print_answers([answer])
    expected = '{"path": "größe.png", "label": "日本", "probability": 0.5, "known": null, "top": [["日本", 0.5]]}\n'
    assert raw.getvalue().decode() == "first " + expected
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    print_answers([answer])
    assert sys.stdout.getvalue() == expected  # type: ignore[attr-defined]


@posix
def test_a_reader_who_has_seen_enough(here: Path) -> None:
    draw_pictures(here / "a", range(4))
    process = start("predict", *USUAL, "a", "--labels", TEXT, "--batch-size", "1", hold=3)
    assert json.loads(process.stdout.readline())["path"] == "a/img0.png"
    process.stdout.close()
    assert process.communicate()[1] == b""
    assert process.returncode == 141


def test_pictures_added_meanwhile_come_after_what_is_finished(here: Path) -> None:
    draw_pictures(here / "a", range(10, 17))
    with crash_at(lmr.Method, "step", 3, "before"), pytest.raises(Crash):
        predict_images("a", LABELS, batch_size=2, out="o.jsonl")
    finished = (here / "o.jsonl").read_bytes()
    draw_pictures(here / "a", range(2, 4))
    (here / "a" / "img11.png").unlink()
    predict_images("a", LABELS, batch_size=2, out="o.jsonl", resume=True)
    assert (here / "o.jsonl").read_bytes().startswith(finished)
    expected = [10, 11, 12, 13, 2, 3, 14, 15, 16]
    assert read_paths(here / "o.jsonl") == [f"a/img{number}.png" for number in expected]


def test_tomorrow_goes_on_where_today_ended(here: Path) -> None:
    monday = draw_pictures(here / "monday", range(4))
    tuesday = draw_pictures(here / "tuesday", range(4, 7))
    predict_images([monday, tuesday], LABELS, batch_size=2, out="week.jsonl", state="week.state")
    predict_images(monday, LABELS, batch_size=2, out="monday.jsonl", state="days.state")
    predict_images(tuesday, LABELS, batch_size=2, out="tuesday.jsonl", state="days.state")
    week = (here / "week.jsonl").read_bytes()
    assert week == (here / "monday.jsonl").read_bytes() + (here / "tuesday.jsonl").read_bytes()
    assert same_state(here / "week.state", here / "days.state", notes=False)
    predict_images(tuesday, LABELS, batch_size=2, out="alone.jsonl")
    assert (here / "alone.jsonl").read_bytes() != (here / "tuesday.jsonl").read_bytes()


def test_state_of_an_unfinished_run_is_not_taken_away_from_it(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    draw_pictures(here / "mon", range(6))
    draw_pictures(here / "tue", range(6, 10))
    monday = ["mon", "--labels", TEXT, "--batch-size", "2", "--state", "cam.state", "--out", "mon.jsonl"]
    tuesday = ["tue", "--labels", TEXT, "--batch-size", "2", "--state", "cam.state", "--out", "tue.jsonl"]
    with crash_at(lmr.Method, "step", 2, "before", KeyboardInterrupt):
        assert run_here(capsys, *monday)[0] == 130
    before = photograph(here)
    code, _, said = run_here(capsys, *tuesday)
    assert code == 2
    assert "not finished; resume that run first" in said
    assert photograph(here) == before
    assert run_here(capsys, *monday, "--resume")[0] == 0
    assert run_here(capsys, *tuesday)[0] == 0
    assert len((here / "mon.jsonl").read_text().splitlines()) == 6
    assert len((here / "tue.jsonl").read_text().splitlines()) == 4


@pytest.mark.parametrize("words", [[""], ["a", "--state", ""], ["a", "--out", ""]])
def test_empty_names_get_a_sentence(words: list[str], here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    draw_pictures(here / "a", range(2))
    code, out, said = run_here(capsys, *words, "--labels", TEXT)
    assert (code, out) == (2, "")
    assert "empty" in said


# The values for the number of classes.


@pytest.mark.usefixtures("real_models")
def test_default_answers_as_the_frozen_model_until_the_images_change(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    draw_pictures(here / "a", range(64))
    turn_grey(draw_pictures(here / "b", range(64, 256)))
    words = ["--labels", TEXT, "--method", "steady"]
    code, _, said = run_here(capsys, "a", *words, "--out", "a.jsonl")
    assert (code, said.count("\n")) == (0, 2)  # a line, and a command
    assert "ordinary" in said
    assert "nothing was adapted" in said
    assert "\n  lmr label a " in said
    run_here(capsys, "a", "b", *words[:2], "--method", "zeroshot", "--out", "plain.jsonl")
    code, _, said = run_here(capsys, "a", "b", *words, "--out", "both.jsonl")
    found = re.search(r"less sure by image (\d+), and adapting", said)
    assert found is not None
    first = int(found.group(1))
    assert first > 64
    both, plain = (Path(f"{name}.jsonl").read_bytes().splitlines() for name in ("both", "plain"))
    assert both[: first - 1] == plain[: first - 1]
    assert both[first - 1 :] != plain[first - 1 :]
    _, _, said = run_here(capsys, "b", *words, "--prior", "uniform", "--out", "b.jsonl")
    assert "washed out" in said
    assert "adapting changed" in said


def test_a_state_with_other_labels_is_adopted_if_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = draw_pictures(tmp_path / "images", range(6))
    predict_images(folder, LABELS, state="camera.state", out="first.jsonl")
    old, facts = read_state("camera.state")
    assert json.loads(facts["names"]) == LABELS
    labels = [LABELS[3], "sea", *LABELS[:2]]
    given = {"state": "camera.state", "out": "second.jsonl", "adopt": True}
    with pytest.raises(lmr.LmrError, match="--adopt"):
        predict_images(folder, labels, **given | {"adopt": False})
    predict_images(folder, labels, **given)
    new, facts = read_state("camera.state")
    assert json.loads(facts["names"]) == labels
    assert new["images"].tolist() == [12]
    assert new["predicted"].sum() == 6 + old["predicted"][0, [3, 0, 1]].sum()
    assert {line["label"] for line in read_lines(tmp_path / "second.jsonl")} <= set(labels)
    for wrong in ({"state": None}, {"resume": True}):
        with pytest.raises(lmr.LmrError, match="--adopt is for the --state"):
            predict_images(folder, labels, **given | wrong)
