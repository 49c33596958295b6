"""Bytes that a step writes to PostgreSQL with its state in several forms, and what each form changes after a resume."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lab.load.bench import LoadBench, LoadResult, judge
from lab.load.inputs import LoadModel, draw_tensor, find_photo
from lab.load.postgres_server import PostgresServer, run_database
from lab.scale.capacity import COMMIT_STREAMS, make_commit
from lab.scale.sized_method import size_method
from lmr.core.method import Method
from lmr.core.registry import create
from lmr.service.engine.packing import Packer, Written
from lmr.service.store.postgres_store import PostgresStore

STEPS, IMAGES = 40, 4  # of the stream that is resumed, and the images of a step
RESUMED = (5, 10, 30)  # steps after which it is
VIT, CLASSES = "ViT-B-16", 1000
MOMENTS = ("first", "second")


@dataclass(frozen=True)
class _Form:
    """A stored form of a state: its bytes, and the largest difference of a logit after a resume."""

    bytes: float
    gap: float = 0.0


def measure_state_bytes(bench: LoadBench) -> LoadResult:
    """Measure the write-ahead log of a step, and compare forms of the state by their bytes and by what they change."""
    photo, commits = find_photo(), bench.count(40, 2)
    forms = {spec: _try_forms(photo, spec, bench.count(STEPS, 12)) for spec in ("lmr", "steady")}
    whole = {"photo": forms["lmr"]["float32"].bytes, VIT: float(size_method(VIT, "lmr", CLASSES).stored_bytes)}
    with run_database() as database:
        logs = {name: _measure_log(database, int(size), commits) for name, size in whole.items()}
    found = "; ".join(
        f"{name}: state {whole[name] / 1e3:.0f} kB, log {log / 1e3:.0f} kB a step" for name, log in logs.items()
    )
    for spec, tried in forms.items():
        shown = [
            f"{name} {form.bytes / tried['float32'].bytes:.2f} (logits within {form.gap:.0e})"
            for name, form in tried.items()
        ]
        found += f"; {spec} on photo: {', '.join(shown)}"
    figures = {
        "state_bytes": whole, "log_bytes": logs,
        "forms": {spec: {name: vars(form) for name, form in tried.items()} for spec, tried in forms.items()},
    }  # fmt: skip
    exact = [tried["as stored"].gap == 0 for tried in forms.values()]
    return LoadResult(
        "bytes of a step", "PostgreSQL; one state of each of 8 streams a commit", "the stored form changes nothing",
        found, judge(*exact), figures,
    )  # fmt: skip


def _measure_log(database: PostgresServer, state_bytes: int, commits: int) -> float:
    """Return the bytes of the write-ahead log for one state of a commit."""
    url = database.make_database()
    store = PostgresStore(url, {})

    def find_end() -> int:
        return int(database.execute("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')")[0][0])

    try:
        streams = make_commit(1, 0).streams
        epochs = {stream: store.claim(stream).epoch for stream in streams}
        for seq in range(commits + 1):
            commit = make_commit(state_bytes, seq)
            commit.epochs = epochs
            if seq == 1:  # the first commit makes the rows
                began = find_end()
            assert store.commit(commit) == {}
        return (find_end() - began) / commits / COMMIT_STREAMS
    finally:
        store.close()


def _try_forms(model: LoadModel, spec: str, steps: int) -> dict[str, _Form]:
    """Resume a stream from each form of its state, and compare its later answers with those of one that goes on."""
    backbone = model.load()
    classifier = backbone.classifier(model.classes)
    images = [backbone.preprocess(draw_tensor(range(k * IMAGES, (k + 1) * IMAGES), model.side)) for k in range(steps)]
    plain = create(spec, classifier)
    expected = [plain.step(batch).logits for batch in images]
    plain_bytes = len(Packer(plain)._header) + sum(value[0].nbytes for value in plain.state.values())
    rounded = plain_bytes - sum(plain.state[name][0].nbytes / 2 for name in MOMENTS)
    return {
        "float32": _Form(plain_bytes),
        "as stored": _resume(lambda: create(spec, classifier), images, expected, _restore),
        "moments in bfloat16": _Form(
            rounded, _resume(lambda: create(spec, classifier), images, expected, _round_moments).gap
        ),
    }


def _resume(
    make: Callable[[], Method], images: list[Tensor], expected: list[Tensor], store: Callable[[Method, Method], int]
) -> _Form:
    """Return the largest stored bytes and the largest difference, for streams that are stored after some steps."""
    sizes, gaps = [0], [0.0]
    for resumed in [step for step in RESUMED if step < len(images)]:
        first, second = make(), make()
        for batch in images[:resumed]:
            first.step(batch)
        sizes.append(store(first, second))
        pairs = zip(images[resumed:], expected[resumed:], strict=True)
        gaps += [float((second.step(batch).logits - logits).abs().max()) for batch, logits in pairs]
    return _Form(max(sizes), max(gaps))


def _restore(first: Method, second: Method) -> int:
    (packed,) = Packer(first).pack([0], [[]], [Written()])
    Packer(second).unpack(0, packed)
    return len(packed.content)


def _round_moments(first: Method, second: Method) -> int:
    state = first.state_dict()
    state["tensors"] |= {name: state["tensors"][name].to(torch.bfloat16).float() for name in MOMENTS}
    second.load_state_dict(state)
    return 0
