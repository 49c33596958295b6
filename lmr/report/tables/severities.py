"""Zero-shot against the severity of the corruptions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lmr.report.series import Series, Setting, share_seeds
from lmr.report.tables.corruptions import find_common, finish_line, list_runs, make_name, order_domains
from lmr.report.tables.distinction import tell_apart
from lmr.report.tables.table import Column, Table, make_cell


def build_severities(settings: dict[Setting, list[Series]]) -> list[Table]:
    """Zero-shot accuracy against the severity, where there are several: one line per domain."""
    families: dict[tuple[str, ...], dict[tuple[Any, ...], dict[int, Series]]] = {}
    for setting, series in settings.items():
        for one in sorted(series, key=lambda s: -len(s.domains)):
            if one.first.method == "zeroshot" and setting.severity:
                groups = families.setdefault(setting.family, {})
                groups.setdefault((one.first.images, *one.ground), {}).setdefault(setting.severity, one)
    tables = []
    for groups in families.values():
        swept = [members for members in groups.values() if len(members) > 1]
        named = tell_apart(members[max(members)] for members in swept)
        tables += [_build_severities(members, one.label) for members, one in zip(swept, named, strict=True)]
    return [table for table in tables if table.lines]


def _build_severities(members: dict[int, Series], label: str) -> Table:
    every = list(members.values())
    shared = [d for d in order_domains(every) if sum(d in one.domains for one in every) > 1]
    every, seeds = share_seeds(every, find_common(every))
    members = dict(sorted(zip(members, every, strict=True)))
    first = members[max(members)]
    lines = []
    for domain in shared:
        cells = [make_cell(one.collect(domain), None, list_runs(one, [domain])) for one in members.values()]
        lines.append(finish_line(first, cells, label=domain, members=list(members.values())))
    setting = replace(first.setting, severity=0)
    columns = tuple(Column(str(s), f"severity {s}", 2, None) for s in members)
    name, title = make_name("severities", setting), f"{label[:1].upper()}{label[1:]} accuracy (%): {setting.describe()}"
    return Table(name, title, columns, tuple(lines), "corruption", notes=tuple(seeds))
