"""What all tables do with a series: a line with its protocol, the runs behind its cells, differences to the paper."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lmr.bench.running.row import Row
from lmr.report.paper.paper_tables import PublishedRow, PublishedTable, find_differences
from lmr.report.series import Series
from lmr.report.tables.table import Cell, Line


def finish_line(
    one: Series, cells: Sequence[Cell], differs: Sequence[str] = (), label: str = "", members: Sequence[Series] = ()
) -> Line:
    """A line with the protocol and the command of its first run; for several series all values are listed."""
    found: dict[str, dict[str, None]] = {"method": {one.first.spec: None}}
    for member in members or (one,):
        for row in member.rows:
            for key, value in _describe_protocol(row, member.seeds).items():
                found.setdefault(key, {})[value] = None
    protocol = tuple((key, " | ".join(values)) for key, values in found.items())
    first, name = one.first, label or one.label
    watched = one.watch is not None
    return Line(name, tuple(cells), tuple(differs), protocol, first.command, one.kind, first.spec, watched)


def _describe_protocol(row: Row, seeds: Sequence[int]) -> dict[str, str]:
    return {
        "backbone": ", ".join(f"{key} {value}" for key, value in row.backbone.items()),
        "dataset": row.dataset,
        **({"data": describe_data(row)} if row.protocol else {}),
        "severity": str(row.severity),
        "prompts": f"{row.prompts.get('name')} ({row.prompts.get('count')} prompts)",
        "batch size": str(row.batch_size),
        "images": str(row.images),
        "order": f"{row.order_words}, {'seed' if len(seeds) == 1 else 'seeds'} {', '.join(map(str, seeds))}",
        "reset": row.reset,
        "answers": f"{row.emit} the batch's own update",
        **({"watch": row.watch["spec"]} if row.watch else {}),
    }


def describe_data(row: Row) -> str:
    """What the row says about its data: whether they are official or made."""
    return "; ".join(f"{key}: {value}" for key, value in row.protocol.items())


def list_runs(one: Series, domains: Iterable[str]) -> tuple[str, ...]:
    """The runs behind a cell."""
    rows = (one.find(domain, seed) for domain in domains for seed in one.seeds)
    return tuple(dict.fromkeys(row.run for row in rows if row is not None))


def find_theirs(one: Series, published: PublishedTable | None) -> PublishedRow | None:
    """The published numbers of what a series ran; there are none of watched runs."""
    return published.find(one.first.spec) if published and one.watch is None else None


def list_differences(
    series: Iterable[Series], table: PublishedTable | None, row: PublishedRow | None, column: str | None = None
) -> list[str]:
    """Where the protocol of any run differs from the published one; each difference once."""
    if table is None or row is None:
        return []
    found = (text for one in series for run in one.rows for text in find_differences(run, table, row, column))
    return list(dict.fromkeys(found))
