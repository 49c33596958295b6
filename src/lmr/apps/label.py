"""``lmr label``: label some images of a folder by hand, on a local page.

The images come in random order, so that the labels also give an honest estimate of the accuracy. Every label is written
to the disk at once. A second run with the same file continues.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import random
import secrets
import sys
import threading
import webbrowser
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmr.apps.method_options import LabelOptions
from lmr.apps.options import AnyPath
from lmr.apps.truth import read_truth, write_truth
from lmr.core.errors import LmrError
from lmr.core.extras import require
from lmr.core.files import hold_lock
from lmr.core.log import LOGGER
from lmr.images.files import UnreadableImage, list_images, open_image

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from torch import Tensor

    from lmr.core.classifier import ZeroShot

SIDE = 1280  # pixels of the longer side of a shown image, at most
FEWEST = 5  # labels from which an estimate is shown
OTHERS = 200  # images without a label that show the mean answer of the model
PENDING = 30.0  # seconds to wait at the end for the estimate
_CHUNK = 8  # images that the model answers at a time
GOAL = 20


class LabelSession:
    """The images of a folder, their labels so far, and the one that is shown. Threads may share it.

    The order is random but follows from the names of the files: it stays the same when files come or go.
    """

    def __init__(self, folder: AnyPath, names: Sequence[str], file: AnyPath) -> None:
        self.names, self.file = list(names), Path(file)
        self.images = list_images([folder])
        self._base = Path(folder) if os.path.isdir(folder) else Path(folder).parent
        self._order = sorted(range(len(self.images)), key=self._hash)
        self._labels: dict[int, str | None] = {}
        self._others: list[tuple[str, str | None]] = []  # labels of files that are not in the folder
        self._skipped: list[int] = []
        self._history: list[int] = []
        self._lock = threading.RLock()
        if self.file.exists() and self.file.stat().st_size:
            truth = read_truth(self.file, self.images, names, [self._base], empty=True)
            self._labels = {k: None if one is None else self.names[one] for k, one in truth.classes.items()}
            self._others = [(row.path, row.name) for row in truth.missing]
            self._history = list(self._labels)
        elif not self.file.parent.is_dir():
            raise LmrError(f"Cannot write {str(self.file)!r}: there is no folder {str(self.file.parent)!r}.")

    def _hash(self, place: int) -> bytes:
        return hashlib.sha256(os.path.relpath(self.images[place], self._base).encode(errors="replace")).digest()

    @property
    def labels(self) -> dict[int, str | None]:
        """The labels so far by the number of the image, in the order they were given; None: none of the classes."""
        with self._lock:
            return dict(self._labels)

    @property
    def order(self) -> list[int]:
        """The numbers of all images in the order in which they are shown."""
        return self._order

    def find_next(self, count: int = 1) -> list[int]:
        """Return the numbers of the next images without a label; skipped ones come last."""
        with self._lock:
            waiting = [place for place in self._order if place not in self._labels and place not in self._skipped]
            found: list[int] = []
            for place in (*waiting, *(place for place in self._skipped if place not in self._labels)):
                if len(found) == count:
                    break
                if self.images[place].exists():
                    found.append(place)
            return found

    def label(self, place: int, name: str | None) -> None:
        """Give an image a label, and write all labels; an earlier label is replaced."""
        if name is not None and name not in self.names:
            raise LmrError(f"There is no class {name!r}.")
        with self._lock:
            if not 0 <= place < len(self.images):
                raise LmrError(f"There is no image {place}.")
            self._write({own: label for own, label in self._labels.items() if own != place} | {place: name})
            self._history = [one for one in self._history if one != place] + [place]

    def skip(self, place: int) -> None:
        """Show an image again after all others."""
        with self._lock:
            self._skipped = [one for one in self._skipped if one != place] + [place]

    def back(self) -> int | None:
        """Remove the last label and return the number of its image; None if there is none."""
        with self._lock:
            if not self._history:
                return None
            place = self._history[-1]
            self._write({own: label for own, label in self._labels.items() if own != place})
            self._history.pop()
            self._skipped = [one for one in self._skipped if one != place]
            return place

    def _write(self, labels: dict[int, str | None]) -> None:
        """Make these all labels, in the file first."""
        rows = [(self._spell(self.images[place]), name) for place, name in labels.items()]
        write_truth(self.file, [*self._others, *rows])
        self._labels = labels

    def _spell(self, path: Path) -> str:
        """Return a path relative to the folder of the file of labels if it is inside, else the absolute path."""
        own, folder = os.path.abspath(path), os.path.abspath(self.file.parent)
        return os.path.relpath(own, folder) if own.startswith(folder.rstrip(os.sep) + os.sep) else own


class Estimator:
    """Estimates the accuracy of the frozen model, without and with the labels, in a thread of its own."""

    def __init__(self, session: LabelSession, load: Callable[[], tuple[ZeroShot, Callable[[Any], Tensor]]]) -> None:
        self._session, self._load = session, load
        self._logits: dict[int, Tensor | None] = {}  # by image; None where it cannot be read
        self._changed, self._ended = threading.Event(), threading.Event()
        self._current = threading.Event()  # the text is about the labels as they are
        self.text = "The model is loading."
        self.thread = threading.Thread(target=self._run, name="lmr-estimate", daemon=True)

    def start(self) -> Estimator:
        """Start the thread."""
        self.notify()
        self.thread.start()
        return self

    def notify(self) -> None:
        """Look at the labels again."""
        self._current.clear()
        self._changed.set()

    def wait(self, seconds: float) -> bool:
        """Wait until the text is about the labels as they are, at most for some seconds; return whether it is."""
        return self._current.wait(seconds)

    def stop(self) -> None:
        """End the thread."""
        self._ended.set()
        self._changed.set()
        if self.thread.is_alive():
            self.thread.join(60)

    def _run(self) -> None:
        try:
            classifier, preprocess = self._load()
            others = [place for place in self._session.order if place not in self._session.labels][:OTHERS]
            random.Random(0).shuffle(others)
            while not self._ended.is_set():
                self._changed.clear()
                labelled = [place for place in self._session.labels if place not in self._logits]
                missing = labelled or [place for place in others if place not in self._logits]
                self._encode(classifier, preprocess, missing[:_CHUNK])
                if not labelled[_CHUNK:]:
                    self._estimate()
                    if not self._changed.is_set():
                        self._current.set()
                if not missing:
                    self._changed.wait()
        except LmrError as error:
            self.text = f"No estimate: {error}"
        except Exception as error:  # labelling goes on without an estimate
            LOGGER.exception("The accuracy cannot be estimated.")
            self.text = f"No estimate: {error}"
        finally:
            self._current.set()

    def _encode(self, classifier: ZeroShot, preprocess: Callable[[Any], Tensor], places: Sequence[int]) -> None:
        import torch

        inputs, readable = [], []
        for place in places:
            try:
                inputs.append(preprocess(open_image(self._session.images[place])))
                readable.append(place)
            except (UnreadableImage, ValueError, OSError, MemoryError):
                self._logits[place] = None
        if inputs:
            with torch.no_grad():
                found = classifier(torch.stack(inputs).to(classifier.device))
            self._logits |= dict(zip(readable, found.float().cpu(), strict=True))

    def _estimate(self) -> None:
        self.text = describe_labels(self._session.labels, self._session.names, self._logits)


def describe_labels(labels: dict[int, str | None], names: Sequence[str], logits: dict[int, Tensor | None]) -> str:
    """Return a line about the accuracy that the labels show, without and with them."""
    import torch

    from lmr.core.functional.offset import Estimate, estimate_accuracy

    truth = {place: names.index(name) for place, name in labels.items() if name is not None}
    rows = [(own, truth[place]) for place in truth if (own := logits.get(place)) is not None]
    if len(rows) < FEWEST:
        return f"An estimate of the accuracy appears after {FEWEST} labels."
    own, right = torch.stack([row for row, _ in rows]), torch.tensor([label for _, label in rows])
    frozen = Estimate(int((own.argmax(1) == right).sum()), len(rows))
    everyone = torch.stack([row for row in logits.values() if row is not None])
    taught = estimate_accuracy(own, right, everyone)
    return f"{len(rows)} labelled: frozen {frozen}, with your labels {taught}"


def make_label_app(session: LabelSession, estimator: Estimator | None, prefix: str = "") -> Starlette:
    """Return the page for one session as an ASGI app below the path ``prefix``."""
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.middleware import Middleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware
    from starlette.requests import Request
    from starlette.responses import FileResponse, JSONResponse, Response
    from starlette.routing import Mount, Route
    from starlette.staticfiles import StaticFiles

    from lmr.service.page import ASSETS_FOLDER, PAGE_FOLDER

    policy = {
        "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-store",
    }

    def describe() -> dict[str, Any]:
        labels, coming = session.labels, session.find_next(2)
        return {
            "names": session.names,
            "image": coming[0] if coming else None,
            "next": coming[1] if len(coming) > 1 else None,
            "path": str(session.images[coming[0]]) if coming else None,
            "labelled": len(labels),
            "total": len(session.images),
            "goal": GOAL,
            "file": str(session.file),
            "estimate": "" if estimator is None else estimator.text,
        }

    def act(body: Any) -> None:
        action, place = body.get("action"), body.get("image")
        if action == "back":
            session.back()
        elif not isinstance(place, int) or isinstance(place, bool):
            raise LmrError("Expected the number of an image.")
        elif action == "skip":
            session.skip(place)
        elif action == "label" and isinstance(body.get("name"), str | None):
            session.label(place, body["name"])
        else:
            raise LmrError("Expected the action label, skip or back.")
        if estimator is not None:
            estimator.notify()

    async def show(_: Request) -> Response:
        return FileResponse(PAGE_FOLDER / "label.html", headers=policy)

    async def read(_: Request) -> Response:
        return JSONResponse(await run_in_threadpool(describe), headers=policy)

    async def write(request: Request) -> Response:
        # A page of another site cannot send this type without asking first, and nobody answers that.
        if request.headers.get("content-type") != "application/json":
            return JSONResponse({"detail": "Expected JSON."}, 415, policy)
        try:
            body = await request.json()
            await run_in_threadpool(act, body if isinstance(body, dict) else {})
        except ValueError as error:  # an LmrError is one
            return JSONResponse({"detail": str(error)}, 422, policy)
        return JSONResponse(await run_in_threadpool(describe), headers=policy)

    async def show_image(request: Request) -> Response:
        place = request.path_params["place"]
        if place >= len(session.images):
            return JSONResponse({"detail": "There is no such image."}, 404, policy)
        try:
            content = await run_in_threadpool(_render, session.images[place])
        except UnreadableImage as error:
            return JSONResponse({"detail": str(error)}, 404, policy)
        return Response(content, media_type="image/jpeg", headers=policy | {"Cache-Control": "private, max-age=600"})

    routes = [
        Route("/", show),
        Route("/state", read),
        Route("/state", write, methods=["POST"]),
        Route("/image/{place:int}", show_image),
        Mount("/assets", StaticFiles(directory=ASSETS_FOLDER)),
    ]
    if prefix:
        return Starlette(routes=[Mount(prefix, routes=routes)])
    hosts = Middleware(TrustedHostMiddleware, allowed_hosts=["localhost", "127.0.0.1", "[::1]"], www_redirect=False)
    return Starlette(routes=routes, middleware=[hosts])


def _render(path: Path) -> bytes:
    """Return an image as JPEG of a size that a browser shows quickly."""
    image = open_image(path)
    image.thumbnail((SIDE, SIDE))
    content = io.BytesIO()
    image.save(content, "JPEG", quality=90)
    return content.getvalue()


def label_folder(folder: AnyPath, options: LabelOptions) -> str:
    """Serve the page until Ctrl-C; return a sentence about what was labelled."""
    given, options, file = options, options.resolve(), Path(options.out)
    busy = f"Another 'lmr label' is writing {str(file)!r}; end it first, or give another --out."
    with hold_lock(file.with_name(f".{file.name}.lock"), busy, failed=f"Cannot write {str(file)!r}"):
        session = LabelSession(folder, options.names, file)
        started = len(session.labels)
        estimator = Estimator(session, lambda: _load(options, session.images)) if options.estimate else None
        try:
            _serve(session, estimator, options)
            if estimator is not None and len(session.labels) >= FEWEST:
                with contextlib.suppress(KeyboardInterrupt):
                    estimator.wait(PENDING)
        finally:
            if estimator is not None:
                estimator.stop()
    count = len(session.labels)
    said = [f"{count} label{'s' * (count != 1)} in {str(session.file)!r}, {count - started:+d} in this run."]
    if estimator is not None and count >= FEWEST:
        said.append(f"{estimator.text.rstrip('.')}.")
    if count:
        said.append(f"Next: {_write_next(folder, given)}")
    return " ".join(said)


def _write_next(folder: AnyPath, given: LabelOptions) -> str:
    """Return the command that uses the labels."""
    from lmr.apps.predict.options import PredictOptions
    from lmr.apps.predict.verdict import write_command

    same = {name: getattr(given, name) for name in ("labels", "model", "templates", "prompts")}
    return write_command("predict", [folder], PredictOptions(**same), "--truth", os.fspath(given.out))


def _load(options: LabelOptions, images: Sequence[Path]) -> tuple[ZeroShot, Callable[[Any], Tensor]]:
    from lmr.apps.precision import load_model

    loaded = load_model(options, images)
    return loaded.classifier, loaded.backbone.preprocess


def _serve(session: LabelSession, estimator: Estimator | None, options: LabelOptions) -> None:
    uvicorn = require("uvicorn", "serve", "The page of 'lmr label'")
    from lmr.service.network import is_loopback

    local = is_loopback(options.host)
    prefix = "" if local else f"/{secrets.token_urlsafe(12)}"
    app = make_label_app(session, None if estimator is None else estimator.start(), prefix)
    config = uvicorn.Config(app, options.host, options.port, log_config=None, access_log=False, server_header=False)
    server = uvicorn.Server(config)
    try:
        socket = config.bind_socket()
    except (OSError, SystemExit) as error:
        raise LmrError(
            f"Cannot listen on {options.host} port {options.port}: it is in use or not allowed; give another --port."
        ) from error
    port = socket.getsockname()[1]
    host = options.host if ":" not in options.host else f"[{options.host}]"
    url = f"http://{host}:{port}{prefix}/"
    print(f"lmr: label images at {url} ; Ctrl-C ends, and {str(session.file)!r} has the labels", file=sys.stderr)
    if local and sys.stderr.isatty():
        threading.Timer(0.5, webbrowser.open, [url]).start()
    with contextlib.suppress(KeyboardInterrupt):  # after Ctrl-C, which uvicorn passes on
        server.run([socket])
