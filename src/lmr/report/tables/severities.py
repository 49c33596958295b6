"""The baseline against the severity of the corruptions."""

from __future__ import annotations

from typing import Any

from lmr.report.row_traits import LineKind
from lmr.report.series import Series, Setting, find_common, order_domains, share_seeds
from lmr.report.tables.distinction import tell_apart
from lmr.report.tables.lines import finish_line, list_runs
from lmr.report.tables.table import Column, ReportTable, TableKind, make_cell, name_table


def build_severities(settings: dict[Setting, list[Series]]) -> list[ReportTable]:
    """Accuracy of the baseline against the severity, where there are several: one line per domain."""
    families: dict[Setting, dict[tuple[Any, ...], dict[int, Series]]] = {}
    for setting, series in settings.items():
        for one in sorted(series, key=lambda s: -len(s.domains)):
            if one.kind is LineKind.BASELINE and setting.severity:
                groups = families.setdefault(setting.family, {})
                key = (one.first.method, one.first.images, *one.ground)
                groups.setdefault(key, {}).setdefault(setting.severity, one)
    tables = []
    for groups in families.values():
        swept = [members for members in groups.values() if len(members) > 1]
        named = tell_apart(members[max(members)] for members in swept)
        tables += [_build(members, one.label) for members, one in zip(swept, named, strict=True)]
    return [table for table in tables if table.lines]


def _build(members: dict[int, Series], label: str) -> ReportTable:
    every = list(members.values())
    domains = [d for d in order_domains(every) if sum(d in one.domains for one in every) > 1]
    shared = share_seeds(every, find_common(every))
    members = dict(sorted(zip(members, shared.value, strict=True)))
    first = members[max(members)]
    lines = []
    for domain in domains:
        cells = [make_cell(one.collect(domain), None, list_runs(one, [domain])) for one in members.values()]
        lines.append(finish_line(first, cells, label=domain, members=list(members.values())))
    setting = first.setting.family
    columns = tuple(Column(str(s), f"severity {s}", 2, None) for s in members)
    kind, title = TableKind.SEVERITIES, f"{label[:1].upper()}{label[1:]} accuracy (%): {setting.describe()}"
    return ReportTable(kind, name_table(kind, setting), title, columns, tuple(lines), "corruption", notes=shared.notes)
