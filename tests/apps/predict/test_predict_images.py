"""`lmr predict` as its user meets it: lines and sentences, and nothing finished is lost whatever kills it."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import pytest
import torch
from PIL import Image

import lmr
from lmr.apps.model_options import ModelOptions
from lmr.apps.predict import predict_images as predict_file
from lmr.apps.predict import state_lock
from lmr.apps.predict.predict_images import read_labels
from lmr.apps.predict.predict_summary import PredictSummary
from lmr.apps.predict.result_file import ErrorCause, ImageAnswer, ResultFile, StandardOutput, format_csv
from lmr.apps.predict.state_lock import hold_state
from lmr.cli import main
from lmr.core.spec import parse_spec
from lmr.core.state import read_state
from lmr.data.names import read_list
from lmr.data.photographs import Photographs
from lmr.data.sets.dataset import CLEAN
from lmr.data.sets.pocket_world import CLASSES, draw
from lmr.images import image_places as places_file
from lmr.images.ahead import THREAD_NAME
from lmr.images.image_files import open_image

LABELS = list(CLASSES[:12])
TEXT = ",".join(LABELS)
DRAWINGS = ("--model", "pocket")  # an option that is given again later replaces it
CLASS_NAMES = {"pocket": LABELS, "photo": list(read_list("cifar10"))}
both_models = pytest.mark.parametrize("model", ["pocket", "photo"])
SAMPLE = Path(__file__).parents[4] / "shared" / "data" / "imagenet-sample-224"
posix = pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals, limits or locks")


class Crash(BaseException):
    """A death that nobody expects, in the middle of a call."""


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def predict_images(sources: Any, labels: Any, **options: Any) -> PredictSummary:
    """The function of the package, on drawings unless another model is named."""
    return predict_file.predict_images(sources, labels, **{"model": "pocket"} | options)


def draw_arrays(numbers: range, model: str = "pocket") -> Any:
    """Pictures that a model was made for."""
    return draw(numbers)[0] if model == "pocket" else Photographs().read(CLEAN, 0, numbers)


def draw_pictures(folder: Path, numbers: range, model: str = "pocket") -> Path:
    folder.mkdir(exist_ok=True)
    for number, pixels in zip(numbers, draw_arrays(numbers, model), strict=True):
        Image.fromarray(pixels).save(folder / f"img{number}.png")
    return folder


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def read_paths(path: Path) -> list[str]:
    return [line["path"] for line in read_lines(path)]


def same_state(one: Path, other: Path, notes: bool = True) -> bool:
    """Whether two state files hold the same bytes of every tensor and the same facts."""
    tensors, facts = read_state(one)
    others, other_facts = read_state(other)
    if tensors.keys() != others.keys() or not all(torch.equal(tensors[key], others[key]) for key in tensors):
        return False
    return not notes or facts == other_facts


def photograph(folder: Path) -> dict[str, bytes]:
    """Every file of the folder with its bytes."""
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def run_here(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """The program in this process, on drawings unless another model is named: exit code, standard output and error."""
    capsys.readouterr()
    code = main(["predict", *DRAWINGS, *words])
    said = capsys.readouterr()
    return code, said.out, said.err


def start(*words: str, **options: Any) -> subprocess.Popen[bytes]:
    """The program in a process of its own."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    environment.pop("PYTHONUNBUFFERED", None)
    command = [sys.executable, "-m", "lmr", *words]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    if (
        sys.platform != "win32"
    ):  # a shell that runs the tests in the background has them ignore Ctrl-C, and their children
        options["preexec_fn"] = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
    return subprocess.Popen(command, env=environment, **options)


@contextmanager
def crash_at(owner: Any, name: str, number: int, when: str, error: type[BaseException] = Crash) -> Iterator[list[int]]:
    """Make the ``number``-th call of a function die before or after doing its work."""
    real: Callable[..., Any] = getattr(owner, name)
    calls = [0]

    def die(*args: Any, **options: Any) -> Any:
        calls[0] += 1
        if calls[0] == number and when == "before":
            raise error
        answer = real(*args, **options)
        if calls[0] == number:
            raise error
        return answer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, die)
        yield calls


# ----------------------------------------------------------------------------------------------------------- the lines


def make_zoo(folder: Path, model: str = "pocket") -> list[str]:
    """One picture in every storage, two broken ones, and what must not be listed; the names in the order expected."""
    folder.mkdir()
    pictures = [Image.fromarray(pixels) for pixels in draw_arrays(range(8), model)]
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


def expect_lines(model: str, names: list[str], broken: set[str], batch_size: int, top: int) -> list[dict[str, Any]]:
    """The same by hand: one step per chunk on what is readable."""
    backbone, labels = lmr.load(model), CLASS_NAMES[model]
    clip = backbone.classifier(labels, ["a photo of a {}.", "a blurry picture of a {}."])
    method = lmr.create("lmr(lr=2e-3)", clip, preset="auto")
    lines: dict[str, dict[str, Any]] = {}
    for first in range(0, len(names), batch_size):
        good = [name for name in names[first : first + batch_size] if name not in broken]
        answer = method.step(torch.stack([backbone.preprocess(open_image(name)) for name in good]))
        for name, row in zip(good, answer.probabilities, strict=True):
            best = sorted(range(len(labels)), key=lambda c, row=row: -row[c].item())[:top]
            pairs = [[labels[c], round(row[c].item(), 6)] for c in best]
            lines[name] = {"path": name, "label": pairs[0][0], "probability": pairs[0][1], "top": pairs}
    return [lines.get(name, {"path": name}) for name in names]


@both_models
def test_every_picture_gets_its_line_in_order(here: Path, model: str) -> None:
    names = make_zoo(here / "zoo", model)
    broken = {"zoo/img8.png", "zoo/img9.png"}
    (here / "names.txt").write_bytes(
        "\ufeff".encode() + "\r\n\r\n".join(f"  {name} " for name in CLASS_NAMES[model]).encode()
    )
    templates = ["--template", "a photo of a {}.", "--template", "a blurry picture of a {}."]
    shared = ["zoo", "--labels", "names.txt", "--method", "lmr(lr=2e-3)", *templates, "--batch-size", "4", "--top", "3"]
    shared += ["--model", model]
    process = start("predict", *shared, "--out", "lines.jsonl")
    out, err = process.communicate()
    assert (process.returncode, out) == (0, b"")

    lines = read_lines(here / "lines.jsonl")
    assert [line.pop("error").split(":")[0] for line in lines if "error" in line] == [
        "Cannot read 'zoo/img8.png'",
        "Cannot read 'zoo/img9.png'",
    ]
    assert lines == expect_lines(model, names, broken, 4, 3)
    assert "größe" in (here / "lines.jsonl").read_text("utf-8")

    (summary,) = err.decode().splitlines()
    assert summary.startswith("lmr: 10 images, 2 with an error, ")
    labels = [line["label"] for line in lines if "label" in line]
    share = max(map(labels.count, labels)) / 8
    assert f" ({share:.1%})" in summary
    assert summary.endswith("results in lines.jsonl")
    assert sorted(path.name for path in here.iterdir()) == ["lines.jsonl", "names.txt", "zoo"]

    # The same on the screen, and as a table.
    process = start("predict", *shared)
    out, err = process.communicate()
    assert out == (here / "lines.jsonl").read_bytes()
    assert b"results on standard output" in err
    assert main(["predict", *shared, "--out", "lines.csv"]) == 0
    rows = list(csv.DictReader(io.StringIO((here / "lines.csv").read_text("utf-8"), newline="")))
    assert list(rows[0]) == ["path", "label", "probability", "top1", "top2", "top3", "error"]
    assert [row["path"] for row in rows] == names
    for row, line in zip(rows, lines, strict=True):
        assert bool(row["error"]) == (row["path"] in broken)
        assert row["label"] == line.get("label", "")
        if not row["error"]:
            assert float(row["probability"]) == line["probability"]
            pairs = [row[f"top{k}"].rsplit(":", 1) for k in (1, 2, 3)]
            assert [[label, float(share)] for label, share in pairs] == line["top"]


def test_a_rotated_picture_is_seen_upright(here: Path) -> None:
    make_zoo(here / "zoo")
    Image.fromarray(draw([6])[0][0]).save(here / "upright.png")
    predict_images(["upright.png", "zoo/img7.png"], LABELS, method="zeroshot", out="o.jsonl")
    upright, turned = read_lines(here / "o.jsonl")
    assert turned["top"] == [[label, pytest.approx(share, abs=1e-4)] for label, share in upright["top"]]


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
    monkeypatch.setattr("lmr.models.pocket.Pocket.preprocess", refuse_nothing(lmr.load("pocket").preprocess))
    summary = predict_images("a", LABELS, out="o.jsonl")
    lines = read_lines(here / "o.jsonl")
    assert ["error" in line for line in lines] == [False, True, True, False]
    assert lines[1]["error"] == "The model's answer to 'a/img1.png' is not a finite number."
    assert lines[2]["error"] == "Cannot prepare 'a/img2.png' for the model: too thin"
    assert summary.errors == 2


def refuse_nothing(real: Callable[[Any], torch.Tensor]) -> Callable[[Any, Any], torch.Tensor]:
    def preprocess(self: Any, image: Any) -> torch.Tensor:
        if image is None:
            raise ValueError("too thin")
        return real(image)

    return preprocess


def test_more_top_classes_than_classes(here: Path) -> None:
    draw_pictures(here / "a", range(2))
    predict_images("a", "red circle,blue star", out="o.csv", top=9)
    assert (here / "o.csv").read_text().splitlines()[0] == "path,label,probability,top1,top2,error"


@posix
def test_names_that_are_no_text_survive_both_formats(here: Path) -> None:
    odd = ["a\nb.png", 'say "x", y.png', os.fsdecode(b"\xff\xfe.png"), "ü\u2028.png", "c\rd.png", "e\r\nf.png"]
    odd += ["\r.png", "g\r", '"\r"', "\r,\n.png", "=1+1.png", " @sum.png"]
    pixels = draw(range(1))[0][0]
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


def test_table_of_an_older_version_that_cannot_be_read_back_gets_an_error_message(here: Path) -> None:
    """Version 0.2 did not quote a carriage return."""
    table = ResultFile("o.csv", 1)
    content = b"path,label,probability,top1,error\na\rb.png,x,0.5,x:0.5,\n"
    (here / "o.csv").write_bytes(content)
    with pytest.raises(lmr.LmrError, match=r"Cannot read 'o\.csv' back .* start again with --overwrite"):
        table.recover(len(content), hashlib.sha256(content).hexdigest())


def test_the_screen_speaks_utf8_and_text_only_outputs_work(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = ImageAnswer("größe.png", [("日本", 0.5)])
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    sys.stdout.write("first ")
    StandardOutput().append([answer])
    expected = '{"path": "größe.png", "label": "日本", "probability": 0.5, "top": [["日本", 0.5]]}\n'
    assert raw.getvalue().decode() == "first " + expected
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    StandardOutput().append([answer])
    assert sys.stdout.getvalue() == expected  # type: ignore[attr-defined]


def test_memory_holds_three_batches(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one of the step and two that threads have read ahead; a slow step shows how far they get."""
    draw_pictures(here / "a", range(40))
    opened: list[int] = []
    real = lmr.Method.step

    def watch(path: Path) -> Image.Image:
        written = (here / "o.jsonl").read_bytes().count(b"\n")
        opened.append(len(opened) - written)
        return open_image(path)

    def take_long(self: lmr.Method, images: torch.Tensor) -> lmr.Prediction:
        time.sleep(0.03)
        return real(self, images)

    monkeypatch.setattr(places_file, "open_image", watch)
    monkeypatch.setattr(lmr.Method, "step", take_long)
    predict_images("a", LABELS, out="o.jsonl", batch_size=4)
    assert len(opened) == 40
    assert 8 <= max(opened) < 12
    assert THREAD_NAME not in [thread.name for thread in threading.enumerate()]


def test_a_terminal_gets_a_bar(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    draw_pictures(here / "a", range(2))

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    predict_images("a", LABELS, out="o.jsonl")
    assert "2/2" in terminal.getvalue()
    monkeypatch.setattr(sys, "stdout", Terminal())  # lines and bar on one terminal would be a mess
    terminal.truncate(0)
    predict_images("a", LABELS)
    assert terminal.getvalue() == ""


@posix
def test_a_reader_who_has_seen_enough(here: Path) -> None:
    draw_pictures(here / "a", range(60))
    process = start("predict", *DRAWINGS, "a", "--labels", TEXT, "--batch-size", "1")
    assert process.stdout is not None
    assert process.stderr is not None
    assert json.loads(process.stdout.readline())["path"] == "a/img0.png"
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait() == 141
    process.stderr.close()


# ------------------------------------------------------------------------------------------------- killed and resumed


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[Path, bytes, Path]]:
    """Pictures, and what an uninterrupted run over them leaves: (folder, bytes of the output, a copy of the state)."""
    folder = tmp_path_factory.mktemp("straight")

    def run(out: Path, model: str = "pocket") -> tuple[Path, bytes, Path]:
        """The output must have the same path in both runs, for the state knows it."""
        pictures = draw_pictures(folder / model, range(7), model)
        (pictures / "img3.png").write_text("broken")
        predict_images(pictures, CLASS_NAMES[model], model=model, batch_size=2, out=out, state=f"{out}.kept")
        kept = folder / f"{out.parent.name}.state"
        shutil.move(f"{out}.kept", kept)
        content = out.read_bytes()
        out.unlink()
        return pictures, content, kept

    return run


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    ("model", "owner", "name", "most"),
    [
        ("pocket", os, "fsync", 15),
        ("pocket", os, "replace", 5),
        ("pocket", lmr.Method, "step", 4),
        ("photo", lmr.Method, "step", 4),
    ],
)
def test_dead_at_any_call_and_resumed_is_as_never_interrupted(
    here: Path, straight: Callable[..., Any], model: str, owner: Any, name: str, most: int, when: str
) -> None:
    out = here / ("o.csv" if name == "replace" else "o.jsonl")
    pictures, content, kept = straight(out, model)
    for number in range(1, most + 1):
        options: dict[str, Any] = {"model": model, "batch_size": 2, "out": out, "state": f"{out}.kept"}
        with crash_at(owner, name, number, when), pytest.raises(Crash):
            predict_images(pictures, CLASS_NAMES[model], **options)
        if out.exists():
            with out.open("ab") as file:
                file.write(b'{"path": "a torn li')
        with crash_at(owner, name, 2, "before"), suppress(Crash):  # and dead again, unless too little was left to do
            predict_images(pictures, CLASS_NAMES[model], **options, resume=out.exists())
        summary = predict_images(pictures, CLASS_NAMES[model], **options, resume=out.exists())
        assert out.read_bytes() == content, (name, number, when)
        assert same_state(kept, Path(f"{out}.kept")), (name, number, when)
        assert (summary.images, summary.errors) == (7, 1)
        assert sorted(path.name for path in here.iterdir()) == [out.name, f"{out.name}.kept"]
        out.unlink()
        os.unlink(f"{out}.kept")
    with crash_at(owner, name, most + 1, when) as calls:
        predict_images(pictures, CLASS_NAMES[model], **options)
    assert calls == [most], "the loop above must reach every call"


def test_without_a_state_of_its_own_the_progress_lies_beside_the_output_and_goes_at_the_end(
    here: Path, straight: Callable[..., Any]
) -> None:
    out = here / "o.jsonl"
    pictures, content, _ = straight(out)
    with crash_at(lmr.Method, "step", 3, "before"), pytest.raises(Crash):
        predict_images(pictures, LABELS, batch_size=2, out=out)
    assert (here / "o.jsonl.state").exists()
    summary = predict_images(pictures, LABELS, batch_size=2, out=out, resume=True)
    assert out.read_bytes() == content
    assert [path.name for path in here.iterdir()] == ["o.jsonl"]
    assert (summary.images, summary.earlier, summary.state, summary.out) == (7, 4, None, out)
    assert "7 images (4 of them finished earlier), 1 with an error" in str(summary)
    assert sum(summary.counts.values()) == 6


def test_a_run_that_died_before_its_first_answer_resumes(here: Path, straight: Callable[..., Any]) -> None:
    out = here / "o.jsonl"
    pictures, content, _ = straight(out)
    with crash_at(places_file, "open_image", 1, "before"), pytest.raises(Crash):
        predict_images(pictures, LABELS, batch_size=2, out=out)
    assert out.read_bytes() == b""
    assert (here / "o.jsonl.state").exists()
    predict_images(pictures, LABELS, batch_size=2, out=out, resume=True)
    assert out.read_bytes() == content

    out.unlink()  # nothing at all was saved: --resume just starts
    predict_images(pictures, LABELS, batch_size=2, out=out, resume=True)
    assert out.read_bytes() == content
    out.write_bytes(b"")
    predict_images(pictures, LABELS, batch_size=2, out=out, resume=True)
    assert out.read_bytes() == content


def test_overwrite_replaces_only_once_it_can_be_resumed(here: Path, straight: Callable[..., Any]) -> None:
    out = here / "o.jsonl"
    pictures, content, _ = straight(out)
    out.write_bytes(b"precious\n" * 1000)
    with crash_at(lmr.Method, "save", 1, "before"), pytest.raises(Crash):
        predict_images(pictures, LABELS, batch_size=2, out=out, overwrite=True)
    assert out.read_bytes() == b"precious\n" * 1000
    with crash_at(lmr.Method, "save", 1, "after"), pytest.raises(Crash):
        predict_images(pictures, LABELS, batch_size=2, out=out, overwrite=True)
    predict_images(pictures, LABELS, batch_size=2, out=out, resume=True)
    assert out.read_bytes() == content
    out.write_bytes(b"precious\n" * 1000)
    predict_images(pictures, LABELS, batch_size=2, out=out, overwrite=True)
    assert out.read_bytes() == content


def wait_for_growth(process: subprocess.Popen[bytes], out: Path, size: int) -> None:
    end = time.monotonic() + 300
    while not out.exists() or out.stat().st_size <= size:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.002)


@posix
def test_killed_interrupted_and_terminated_processes(here: Path) -> None:
    # Many pictures, and all deaths among the first of them: on a busy machine a signal may come late.
    draw_pictures(here / "a", range(160))
    out, kept = here / "o.jsonl", here / "camera.state"
    words = ["predict", *DRAWINGS, "a", "--labels", TEXT, "--batch-size", "1", "--out", out.name, "--state", kept.name]
    process = start(*words)
    process.communicate()
    assert process.returncode == 0
    content = out.read_bytes()
    shutil.move(kept, here / "straight.state")
    out.unlink()

    size = -1  # the first dies as soon as its output exists, the others after some lines more
    for death in (signal.SIGKILL, signal.SIGINT, signal.SIGKILL, signal.SIGTERM):
        process = start(*words, *["--resume"] * (size >= 0))
        wait_for_growth(process, out, size)
        process.send_signal(death)
        said = process.communicate()[1].decode()
        if death == signal.SIGKILL:
            assert (process.returncode, said) == (-signal.SIGKILL, "")
        else:
            assert process.returncode == 130
            assert said.startswith("lmr: Interrupted. To continue after the ")
            assert said.endswith("finished images, run the same command with --resume.\n")
            assert said.count("\n") == 1
        size = out.stat().st_size + len(content) // 20
    process = start(*words, "--resume")
    process.communicate()
    assert process.returncode == 0
    assert out.read_bytes() == content
    assert same_state(kept, here / "straight.state")


def test_interrupted_on_the_screen_there_is_nothing_to_continue(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    draw_pictures(here / "a", range(2))
    with crash_at(lmr.Method, "step", 1, "before", KeyboardInterrupt):
        assert run_here(capsys, "a", "--labels", TEXT) == (130, "", "lmr: Interrupted.\n")
    with crash_at(ModelOptions, "load", 1, "before", KeyboardInterrupt):
        assert run_here(capsys, "a", "--labels", TEXT, "--out", "o.jsonl") == (130, "", "lmr: Interrupted.\n")
    assert [path.name for path in here.iterdir()] == ["a"]
    for flag, save, advice in [("--overwrite", 3, "--resume instead of --overwrite"), ("--resume", 1, "--resume")]:
        with crash_at(lmr.Method, "save", save, "before", KeyboardInterrupt):
            words = ("a", "--labels", TEXT, "--out", "o.jsonl", "--batch-size", "1", flag)
            assert run_here(capsys, *words) == (
                130,
                "",
                (f"lmr: Interrupted. To continue after the 1 finished images, run the same command with {advice}.\n"),
            )


@posix
def test_a_full_disk(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import resource

    draw_pictures(here / "a", range(40))
    words = ["a", "--labels", ",".join(CLASSES), "--top", "100", "--batch-size", "8", "--out", "o.jsonl"]
    assert run_here(capsys, *words)[0] == 0
    content = (here / "o.jsonl").read_bytes()
    (here / "o.jsonl").unlink()

    @contextmanager
    def limited_to(size: int) -> Iterator[None]:
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    with limited_to(1000):  # not even the first progress fits
        code, _, said = run_here(capsys, *words)
    assert code == 2
    assert said.startswith("lmr: Cannot write 'o.jsonl.state': File too large.")
    assert [path.name for path in here.iterdir()] == ["a"]

    with limited_to(len(content) * 2 // 3 + 7):  # the output stops in the middle of a line
        code, _, said = run_here(capsys, *words)
    assert code == 2
    assert said == (
        "lmr: Cannot write 'o.jsonl': File too large. To continue after the 24 finished images, run the same command "
        "with --resume.\n"
    )
    assert not (here / "o.jsonl").read_bytes().endswith(b"\n")
    assert run_here(capsys, *words, "--resume")[0] == 0
    assert (here / "o.jsonl").read_bytes() == content


# ----------------------------------------------------------------------------------------- new pictures, other days


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


def test_resuming_a_finished_run_adds_only_what_is_new(here: Path) -> None:
    draw_pictures(here / "a", range(3))
    predict_images("a", LABELS, batch_size=2, out="o.csv", state="s")
    before = photograph(here)
    assert predict_images("a", LABELS, batch_size=2, out="o.csv", state="s", resume=True).earlier == 3
    assert photograph(here) == before
    draw_pictures(here / "a", range(3, 5))
    summary = predict_images("a", LABELS, batch_size=2, out="o.csv", state="s", resume=True)
    assert (summary.images, summary.earlier) == (5, 3)
    text = (here / "o.csv").read_text()
    assert text.startswith(before[str(here / "o.csv")].decode())
    assert [row["path"] for row in csv.DictReader(io.StringIO(text))] == [f"a/img{k}.png" for k in range(5)]


@both_models
def test_tomorrow_goes_on_where_today_ended(here: Path, model: str) -> None:
    monday = draw_pictures(here / "monday", range(4), model)
    tuesday = draw_pictures(here / "tuesday", range(4, 7), model)
    predict_images(
        [monday, tuesday], CLASS_NAMES[model], model=model, batch_size=2, out="week.jsonl", state="week.state"
    )
    predict_images(monday, CLASS_NAMES[model], model=model, batch_size=2, out="monday.jsonl", state="days.state")
    predict_images(tuesday, CLASS_NAMES[model], model=model, batch_size=2, out="tuesday.jsonl", state="days.state")
    week = (here / "week.jsonl").read_bytes()
    assert week == (here / "monday.jsonl").read_bytes() + (here / "tuesday.jsonl").read_bytes()
    assert same_state(here / "week.state", here / "days.state", notes=False)
    predict_images(tuesday, CLASS_NAMES[model], model=model, batch_size=2, out="alone.jsonl")
    assert (here / "alone.jsonl").read_bytes() != (here / "tuesday.jsonl").read_bytes()


def test_a_state_serves_without_an_output_file_too(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    draw_pictures(here / "a", range(4))
    predict_images("a", LABELS, batch_size=2, out="o.jsonl", state="one.state")
    words = ("--labels", TEXT, "--batch-size", "2", "--state", "two.state")
    first = run_here(capsys, "a/img0.png", "a/img1.png", *words)
    second = run_here(capsys, "a/img2.png", "a/img3.png", *words)
    assert (first[0], second[0]) == (0, 0)
    assert (first[1] + second[1]).encode() == (here / "o.jsonl").read_bytes()
    assert second[2].endswith("results on standard output, state in two.state\n")
    assert same_state(here / "one.state", here / "two.state", notes=False)


# ----------------------------------------------------------------------------------------------------------- sentences


def prepare(here: Path) -> list[str]:
    """An interrupted run and what surrounds it; the words that would resume it."""
    draw_pictures(here / "a", range(6))
    words = ["a", "--labels", TEXT, "--batch-size", "2", "--out", "o.jsonl"]
    with crash_at(lmr.Method, "step", 3, "before"), pytest.raises(Crash):
        main(["predict", *DRAWINGS, *words])
    return words


def refuse(capsys: pytest.CaptureFixture[str], here: Path, sentence: str, *words: str) -> None:
    """The words must end with code 2, one sentence, and every file as it was."""
    before = photograph(here)
    code, out, err = run_here(capsys, *words)
    assert (code, out) == (2, "")
    assert err.startswith("lmr: ")
    assert err.count("\n") == 1
    assert sentence in err
    assert photograph(here) == before


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (["--labels", ",".join(LABELS[1:])], "other classes or prompts"),
        (
            ["--labels", TEXT.replace("red circle", "red_circle")],
            "The run had other spellings in --labels; resume with",
        ),
        (["--template", "a drawing of a {}."], "other classes or prompts"),
        (["--method", "lmr(lr=2e-3)"], "The state belongs to lmr(lr=0.001"),
        (["--method", "zeroshot"], "The state belongs to lmr(lr=0.001"),
        (["--model", "poket"], "Did you mean 'pocket'?"),
        (["--model", "photo"], "The photo model does not know the word 'red'"),
        (["--batch-size", "3"], "The run had --batch-size 2; resume with the same"),
        (["--top", "4"], "The run had --top 5; resume with the same"),
        (["--memory", "lean"], "The run had --memory fast; resume with the same"),
        pytest.param(
            ["--compile"],
            "The run was started without --compile; resume with the same",
            marks=pytest.mark.filterwarnings("ignore"),  # what the compiler says of itself
        ),
        (["--out", "p.jsonl", "--state", "o.jsonl.state"], "holds the progress of the output '"),
        (["--state", "other.state"], "there is no 'other.state': the run has finished, or it had another --state"),
    ],
)
def test_resuming_something_else_is_refused(
    here: Path, capsys: pytest.CaptureFixture[str], change: list[str], sentence: str
) -> None:
    words = prepare(here)
    refuse(capsys, here, sentence, *words, *change, "--resume")
    assert run_here(capsys, *words, "--resume")[0] == 0


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


def edit(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"img0", b"img9"))


def forget_notes(path: Path) -> None:
    method = lmr.create("lmr", lmr.load("pocket").classifier(LABELS), preset="auto")
    method.load(path)
    method.save(path)


def spoil_notes(path: Path) -> None:
    method = lmr.create("lmr", lmr.load("pocket").classifier(LABELS), preset="auto")
    notes = method.load(path)
    method.save(path, notes=notes | {"offset": "many"})


@pytest.mark.parametrize(
    ("name", "tamper", "sentence"),
    [
        ("o.jsonl", cut, "were finished when the run ended: the file was cut or replaced."),
        ("o.jsonl", Path.unlink, "has 0 bytes, but"),
        ("o.jsonl", edit, "has changed since the run ended: the file was edited or replaced."),
        ("o.jsonl.state", cut, "is not a complete state file"),
        ("o.jsonl.state", lambda path: path.write_bytes(b""), "is not a complete state file"),
        ("o.jsonl.state", Path.unlink, "'o.jsonl' cannot be resumed, because there is no 'o.jsonl.state'"),
        ("o.jsonl.state", forget_notes, "holds the progress of no output, not of"),
        ("o.jsonl.state", spoil_notes, "does not say how much of the output is finished"),
    ],
)
def test_resuming_what_was_tampered_with_is_refused(
    here: Path, capsys: pytest.CaptureFixture[str], name: str, tamper: Callable[[Path], None], sentence: str
) -> None:
    words = prepare(here)
    tamper(here / name)
    refuse(capsys, here, sentence, *words, "--resume")
    assert run_here(capsys, *words, "--overwrite")[0] == 0
    assert len(read_lines(here / "o.jsonl")) == 6


def test_a_finished_run_without_a_state_is_not_resumed(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = prepare(here)
    assert run_here(capsys, *words, "--resume")[0] == 0
    refuse(capsys, here, "the run has finished, or it had another --state", *words, "--resume")


def test_relative_paths_are_resumed_where_they_begin(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = prepare(here)
    (here / "b").mkdir()
    monkeypatch.chdir("b")
    elsewhere = ["../a", *words[1:-1], "../o.jsonl", "--resume"]
    refuse(capsys, here, f"The run was started in {str(here)!r} and its paths are relative to it", *elsewhere)
    monkeypatch.chdir(here)
    other_spelling = ["./a/../a", *words[1:-1], "./o.jsonl", "--resume"]
    assert run_here(capsys, *other_spelling)[0] == 0
    assert len(read_lines(here / "o.jsonl")) == 6


def test_absolute_paths_are_resumed_anywhere(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw_pictures(here / "a", range(4))
    (here / "b").mkdir()
    with crash_at(lmr.Method, "step", 2, "before"), pytest.raises(Crash):
        predict_images(here / "a", LABELS, batch_size=2, out=here / "o.jsonl")
    monkeypatch.chdir("b")
    predict_images(here / "a", LABELS, batch_size=2, out="../o.jsonl", resume=True)
    assert read_paths(here / "o.jsonl") == [str(here / "a" / f"img{k}.png") for k in range(4)]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [  # options are added; a name takes the folder's place
        ([], "'o.jsonl' exists; continue it with --resume, replace it with --overwrite, or give another --out."),
        (["--out", "o.txt"], "Expected an output file that ends in .jsonl or .csv, got 'o.txt'; rename it."),
        (
            ["--out", "nowhere/o.jsonl"],
            "Cannot write 'nowhere/o.jsonl': there is no folder 'nowhere'; create it first.",
        ),
        (
            ["--out", "p.jsonl", "--state", "nowhere/s"],
            "Cannot write 'nowhere/s': there is no folder 'nowhere'; create",
        ),
        (["--out", "p.jsonl", "--state", "./p.jsonl"], "--state and --out are both 'p.jsonl'; give them different"),
        (["--out", "p.jsonl", "--state", "foreign"], "'foreign' is not a complete state file"),
        (["--out", "p.jsonl", "--state", "a"], "'a' is a folder; give --state the name of a file."),
        (["--out", "folder.jsonl"], "'folder.jsonl' is a folder; give --out the name of a file."),
        (["--out", "p.jsonl", "--labels", "a"], "Expected a file of class names, got the folder 'a'"),
        (["--out", "p.jsonl", "--state", "o.jsonl.state", "--labels", "a star,a ring"], "other classes or prompts"),
        (["--out", "p.jsonl", "--state", "o.jsonl.state", "--method", "zeroshot"], "The state belongs to lmr("),
        (["--out", "o.jsonl", "--overwrite", "--state", "foreign"], "'foreign' is not a complete state file"),
        (["--out", "p.jsonl", "--batch-size", "0"], "Expected a batch size of at least 1, got 0."),
        (["--out", "p.jsonl", "--top", "0"], "Expected a number of top classes of at least 1, got 0."),
        (["--out", "p.jsonl", "--method", "lrm"], "There is no method 'lrm'."),
        (["--out", "p.jsonl", "--method", "lmr(lr='x')"], "Expected a number for 'lr' of lmr"),
        (["--out", "p.jsonl", "--template", "a photo"], "Expected templates with {}"),
        (["--out", "p.jsonl", "--labels", "red circle"], "at least two class names"),
        (["--out", "p.jsonl", "--labels", "nams.txt"], "got 'nams.txt', and there is no such file."),
        (["--out", "p.jsonl", "--labels", "red circle,red_circle,ring"], "Name every class once; 'red circle' occurs"),
        (["--out", "p.jsonl", "--labels", "red circle,red  circle"], "Name every class once; 'red circle' occurs"),
        (["--out", "p.jsonl", "--labels", "red circle,blu star"], "does not know the word 'blu'"),
        (["--out", "p.jsonl", "--labels", "latin"], "Cannot read the class names in 'latin'"),
        (["--out", "p.jsonl", "--labels", "empty"], "Expected class names, one per line, in 'empty'"),
        (["missing", "--out", "p.jsonl"], "There is no file or folder 'missing'"),
        (["bare", "--out", "p.jsonl"], "The folder 'bare' contains no image"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_touched(
    here: Path, capsys: pytest.CaptureFixture[str], change: list[str], sentence: str
) -> None:
    words = prepare(here)
    (here / "foreign").write_bytes(b"12345678 no state")
    (here / "latin").write_bytes("grün\nblau\n".encode("latin-1"))
    (here / "empty").write_bytes(b"\n\n")
    (here / "bare").mkdir()
    (here / "folder.jsonl").mkdir()
    if change and not change[0].startswith("-"):
        words[0] = change.pop(0)
    refuse(capsys, here, sentence, *words, *change)
    assert not (here / "p.jsonl").exists()


def test_the_same_from_python(here: Path) -> None:
    draw_pictures(here / "a", range(2))
    for options, sentence in [
        ({"resume": True, "overwrite": True, "out": "o.jsonl"}, "Choose between --resume"),
        ({"resume": True}, "Only a run that writes to a file can be resumed"),
    ]:
        with pytest.raises(lmr.LmrError, match=sentence):
            predict_images("a", LABELS, **options)  # type: ignore[arg-type]
    with pytest.raises(lmr.LmrError, match="There is nothing to label"):
        predict_images([], LABELS)
    with pytest.raises(lmr.LmrError, match="Expected class names as texts"):
        read_labels([1, 2])  # type: ignore[list-item]
    assert read_labels(" a, b c ,,d ") == ["a", "b c", "d"]
    (here / "a,b").write_text("crane, bird\nring\n")
    assert read_labels("a,b") == read_labels(here / "a,b") == ["crane, bird", "ring"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("names.txt", "red star\nblue ring\n"),
        ("names.tsv", "n01\tred star\nn02\tblue ring\n"),
        ("names.json", '["red star", "blue ring"]'),
        ("map.json", '{"n01": "red star", "n02": "blue ring"}'),
    ],
)
def test_labels_may_be_in_any_file_that_doctor_takes(here: Path, name: str, text: str) -> None:
    (here / name).write_text(text)
    assert read_labels(name) == ["red star", "blue ring"]
    (here / "deep.json").write_text("[" * 100_000)
    with pytest.raises(lmr.LmrError, match=r"class names in 'deep\.json', found JSON that is nested too deeply"):
        read_labels("deep.json")


@posix
def test_two_runs_cannot_write_one_file(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = prepare(here)
    other = ResultFile("o.jsonl", 5)
    other.open()
    for flag in ("--resume", "--overwrite"):
        refuse(capsys, here, "Another run is writing 'o.jsonl'; wait for it, or give another --out.", *words, flag)
    other.close()
    assert run_here(capsys, *words, "--resume")[0] == 0


@posix
def test_two_runs_cannot_use_one_state(here: Path) -> None:
    """Two processes: the first is held in the middle of its run, so that the others always come at that moment."""
    draw_pictures(here / "a", range(60))
    shared = ["--labels", TEXT, "--batch-size", "1", "--state", "camera.state"]
    first = start("predict", *DRAWINGS, "a", *shared, "--out", "a.jsonl")
    wait_for_growth(first, here / "a.jsonl", 0)
    first.send_signal(signal.SIGSTOP)
    try:
        before = photograph(here)
        for output in (["--out", "b.jsonl"], []):
            second = start("predict", *DRAWINGS, "a", *shared, *output)
            out, said = second.communicate()
            assert (second.returncode, out) == (2, b"")
            assert said.startswith(b"lmr: Another run is using the state 'camera.state'; wait for it, or give another")
            assert said.count(b"\n") == 1
            assert photograph(here) == before
    finally:
        first.send_signal(signal.SIGCONT)
    assert first.communicate()[1].startswith(b"lmr: 60 images, 0 with an error")
    predict_images("a", LABELS, batch_size=1, state="camera.state", out="b.jsonl")
    assert sorted(path.name for path in here.iterdir()) == ["a", "a.jsonl", "b.jsonl", "camera.state"]
    assert read_state(here / "camera.state")[0]["predicted"].sum() == 120  # of both runs


@posix
def test_the_progress_beside_an_output_is_locked_too(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = prepare(here)
    with hold_state(here / "o.jsonl.state", "busy"):
        refuse(
            capsys, here, "Another run is writing 'o.jsonl'; wait for it, or give another --out.", *words, "--resume"
        )
        other = ["a", "--labels", TEXT, "--state", "o.jsonl.state"]
        refuse(capsys, here, "Another run is using the state 'o.jsonl.state'; wait for it", *other)
    assert run_here(capsys, *words, "--resume")[0] == 0


@posix
def test_a_lock_file_that_was_removed_in_the_meantime_is_not_trusted(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run before ends, and another begins, between the opening and the locking of the lock file."""
    path, real = here / ".s.lock", state_lock.acquire_lock
    others: list[IO[bytes]] = []

    def meet_another(file: IO[bytes]) -> bool:
        if not others:
            path.unlink()
            others.append(path.open("ab"))
            assert real(others[0])
        return real(file)

    monkeypatch.setattr(state_lock, "acquire_lock", meet_another)
    with pytest.raises(lmr.LmrError, match="busy"), hold_state(here / "s", "busy"):
        pass
    assert path.exists()
    others[0].close()
    with hold_state(here / "s", "busy"):
        assert path.exists()
    assert not path.exists()


@posix
@pytest.mark.parametrize("kind", ["pipe", "socket", "device"])
def test_pipes_and_devices_are_refused_before_they_are_opened(
    here: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    """Opening a pipe waits for its other end, deaf to SIGTERM."""
    draw_pictures(here / "a", range(2))
    if kind == "device":
        (here / "p.jsonl").symlink_to(os.devnull)
    elif kind == "pipe":
        os.mkfifo("p.jsonl")
    else:
        with socket.socket(socket.AF_UNIX) as end:
            end.bind("p.jsonl")
    for option in ("--state", "--out"):
        words = ["a", "--labels", TEXT, option, "p.jsonl"]
        refuse(capsys, here, f"'p.jsonl' is a pipe, a socket or a device; give {option} the name", *words)
    os.rename("p.jsonl", "o.jsonl.state")
    refuse(capsys, here, "'o.jsonl.state' is a pipe, a socket", "a", "--labels", TEXT, "--out", "o.jsonl")


@posix
def test_labels_and_prompts_may_come_from_a_pipe(here: Path) -> None:
    """As the shell makes them of ``<(command)``."""
    draw_pictures(here / "a", range(2))
    prompts = json.dumps({name: [f"a photo of a {name}."] for name in LABELS})
    for name, text in (("labels", "\n".join(LABELS)), ("prompts", prompts)):
        os.mkfifo(name)
        threading.Thread(target=Path(name).write_text, args=(text,), daemon=True).start()
    predict_images("a", "labels", prompts="prompts", out="pipes.jsonl")
    predict_images("a", LABELS, out="lists.jsonl")
    assert (here / "pipes.jsonl").read_bytes() == (here / "lists.jsonl").read_bytes()


def test_a_run_in_which_every_image_fails_is_exit_code_one(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    draw_pictures(here / "good", range(1))
    (here / "bad").mkdir()
    for number in range(3):
        (here / "bad" / f"{number}.png").write_text("x")
    code, _, said = run_here(capsys, "bad", "--labels", TEXT, "--out", "o.jsonl")
    assert code == 1
    summary, complaint = said.splitlines()
    assert summary.startswith("lmr: 3 images, 3 with an error")
    first = read_lines(here / "o.jsonl")[0]["error"]
    assert complaint == (
        f"lmr: None of the 3 images could be labelled. The first error: {first} Check "
        "that the files are complete images. Then label them again with --overwrite; 'o.jsonl' holds the errors."
    )
    assert run_here(capsys, "bad", "good", "--labels", TEXT, "--out", "o.jsonl", "--overwrite")[0] == 0


def test_a_batch_too_large_for_the_memory_says_what_to_do(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    draw_pictures(here / "a", range(4))
    with crash_at(lmr.Method, "step", 2, "before", torch.OutOfMemoryError):
        code, _, said = run_here(capsys, "a", "--labels", TEXT, "--batch-size", "2", "--out", "o.jsonl")
    assert code == 2
    assert said == (
        "lmr: There is not enough memory for a batch of 2 images on cpu; start again with a smaller --batch-size or "
        "with --memory lean.\n"
    )


def test_a_ruined_state_is_named_as_the_cause(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw_pictures(here / "a", range(4))
    predict_images("a", LABELS, state="s", out="o.jsonl", batch_size=2)
    draw_pictures(here / "a", range(4, 6))
    real = lmr.Method.step

    def spoil(self: lmr.Method, images: torch.Tensor) -> lmr.Prediction:
        answer = real(self, images)
        return lmr.Prediction(answer.logits * float("nan"))

    monkeypatch.setattr(lmr.Method, "step", spoil)
    summary = predict_images("a", LABELS, state="s", out="o.jsonl", batch_size=2, resume=True)
    assert (summary.images, summary.errors, summary.earlier) == (6, 2, 4)  # those that failed are all of this run
    assert summary.causes == {ErrorCause.NOT_FINITE: 2}
    assert summary.complaint == (
        "None of the 2 images could be labelled. The first error: The model's answer to 'a/img4.png' is not a finite "
        "number. The state in 's' is probably damaged; give another --state, or remove the file. Then label them again "
        "with --overwrite; 'o.jsonl' holds the errors."
    )
    assert "Check the model with 'lmr doctor'." in str(predict_images("a", LABELS, out="p.jsonl").complaint)
    monkeypatch.undo()
    monkeypatch.chdir(here)
    assert predict_images("a", LABELS, out="q.jsonl").complaint is None


@posix
def test_a_disk_without_locks_is_trusted(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    def refuse_lock(*_: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", refuse_lock)
    draw_pictures(here / "a", range(2))
    assert predict_images("a", LABELS, out="o.jsonl").images == 2


def test_standard_output_that_fails(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    draw_pictures(here / "a", range(2))
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", None)
        assert main(["predict", *DRAWINGS, "a", "--labels", TEXT]) == 2
    assert "There is no standard output to write to; give a file with --out." in capsys.readouterr().err
    if os.path.exists("/dev/full"):
        with open("/dev/full", "wb", buffering=0) as full:
            process = start("predict", *DRAWINGS, "a", "--labels", TEXT, stdout=full)
            said = process.communicate()[1]
        assert said == b"lmr: Cannot write to standard output: No space left on device; use --out.\n"
        assert process.returncode == 2


def test_results_module_reads_back_what_it_wrote(tmp_path: Path) -> None:
    answers = [
        ImageAnswer("a.png", [("x:y", 0.75), ('q,"', 0.25)]),
        ImageAnswer("b\n.png", error='broken, "really"\nso'),
    ]
    for name in ("o.csv", "o.jsonl"):
        first = ResultFile(tmp_path / name, 2)
        first.open()
        first.append(answers[:1])
        first.append(answers[1:])
        first.close()
        second = ResultFile(tmp_path / name, 2)
        assert second.recover(first.offset, first.digest) == [("a.png", None, "x:y"), ("b\n.png", None, None)]
        assert (second.offset, second.digest) == (first.offset, first.digest)
    assert format_csv(answers[0], 2) == b'a.png,x:y,0.750000,x:y:0.750000,"q,"":0.250000",\n'


# ------------------------------------------------------------------------------------------------------------- the help


def test_default_is_the_model_of_photographs(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also photographs of any size, shape and storage, as a camera or a scanner writes them."""
    (here / "photos").mkdir()
    for number, (width, height) in enumerate([(640, 480), (31, 33), (1, 1), (2000, 20), (17, 900), (32, 32)]):
        picture = Image.fromarray(Photographs().read(CLEAN, 0, [number])[0]).resize((width, height))
        mode = "CMYK" if number == 0 else "L" if number == 1 else "RGB"
        picture.convert(mode).save(here / "photos" / f"{number}.jpg")
    code = main(["predict", "photos", "--labels", "cat,dog,ship,truck"])
    said = capsys.readouterr()
    assert code == 0
    lines = [json.loads(line) for line in said.out.splitlines()]
    assert [line["path"] for line in lines] == [f"photos/{number}.jpg" for number in range(6)]
    assert all({name for name, _ in line["top"]} == {"cat", "dog", "ship", "truck"} for line in lines)
    assert said.err.startswith("lmr: 6 images, 0 with an error, ")
    predict_file.predict_images("photos", ["cat", "dog", "ship", "truck"], out="python.jsonl")
    predict_images("photos", ["cat", "dog", "ship", "truck"], model="photo", out="named.jsonl")
    for name in ("python.jsonl", "named.jsonl"):
        assert (here / name).read_text() == said.out


@pytest.mark.skipif(not SAMPLE.is_dir(), reason="the sample of ImageNet is not beside the repository")
def test_real_photographs_get_their_lines(here: Path) -> None:
    (here / "photos").mkdir()
    for path in sorted(SAMPLE.glob("*.JPEG"))[:4]:
        shutil.copy(path, here / "photos")
    assert predict_file.predict_images("photos", "cat,dog,ship,truck", out="o.csv").errors == 0
    assert len((here / "o.csv").read_text().splitlines()) == 5


@pytest.mark.parametrize(
    ("labels", "sentence"),
    [
        ("cat,dgo", "does not know the word 'dgo' in 'a photo of a dgo.'. Near ones: dog"),
        ("cat,fish", "knows no class 'fish', as in 'a photo of a fish.'. Near ones: aquarium fish, flatfish."),
        ("cat,red star", "For other words load a CLIP model, such as ViT-B-16."),
    ],
)
def test_unknown_class_name_is_refused_before_an_image_is_read(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, labels: str, sentence: str
) -> None:
    draw_pictures(here / "a", range(2), "photo")
    opened: list[Path] = []
    monkeypatch.setattr(places_file, "open_image", opened.append)
    words = ["a", "--model", "photo", "--labels", labels, "--out", "o.jsonl", "--state", "camera.state"]
    refuse(capsys, here, sentence, *words)
    assert opened == []
    assert [path.name for path in here.iterdir()] == ["a"]


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["predict", "--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    options = "--labels --model --method --template --prompts --batch-size --state --out --resume --overwrite --top"
    for word in [
        *options.split(),
        "examples:",
        'lmr predict photos --labels "cat,dog,ship,truck"',
        "lmr predict photos --labels names.txt --out photos.csv --resume",
    ]:
        assert word in said
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"lmr {lmr.__version__}\n"
    for words in ([], ["predict"], ["predict", "a", "--labels", "a,b", "--resume", "--overwrite"]):
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == 2


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


def read_spec(path: Path) -> dict[str, Any]:
    return parse_spec(read_state(path)[1]["spec"])[1]


def test_few_classes_get_the_values_for_few(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    draw_pictures(here / "a", range(3))
    assert main(["predict", "a", "--labels", TEXT, "--model", "pocket", "--state", "s", "--out", "o.jsonl"]) == 0
    assert "gamma0=0.3, beta=3.0 as chosen for 12 classes" in capsys.readouterr().err
    assert (read_spec(here / "s")["gamma0"], read_spec(here / "s")["beta"]) == (0.3, 3.0)
    for method, gamma0, beta in (("lmr(gamma0=2)", 2.0, 3.0), ('lmr(preset="default")', 4.0, 1.0)):
        Path("s").unlink()
        summary = predict_images("a", LABELS, model="pocket", method=method, state="s", out="o.jsonl", overwrite=True)
        assert (read_spec(here / "s")["gamma0"], read_spec(here / "s")["beta"]) == (gamma0, beta)
        assert ("chosen for" in str(summary)) == (method == "lmr(gamma0=2)")


def test_a_state_of_the_published_values_is_continued_with_them(here: Path) -> None:
    """As saved by a version that had no others."""
    draw_pictures(here / "a", range(3))
    lmr.create("lmr", lmr.load("pocket").classifier(LABELS), preset="default").save("s")
    summary = predict_images("a", LABELS, model="pocket", state="s", out="o.jsonl")
    assert (read_spec(here / "s")["gamma0"], read_spec(here / "s")["beta"]) == (4.0, 1.0)
    assert "chosen for" not in str(summary)


def test_what_a_killed_run_left_does_not_decide_the_values_of_a_new_one(here: Path) -> None:
    draw_pictures(here / "a", range(3))
    Path("o.jsonl").write_text("", "utf-8")
    lmr.create("lmr", lmr.load("pocket").classifier(LABELS), preset="default").save("o.jsonl.state")
    summary = predict_images("a", LABELS, model="pocket", out="o.jsonl", overwrite=True)
    assert "as chosen for 12 classes" in str(summary)
