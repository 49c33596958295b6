from __future__ import annotations

import pytest

from lmr.report.series import gather
from lmr.report.tables.severities import build_severities
from row_maker import make_row, make_world


def test_severities_have_a_line_for_each_corruption() -> None:
    (table,) = build_severities(gather(make_world()))
    assert [line.label for line in table.lines] == ["gaussian_noise", "frost", "fog", "contrast"]
    assert [column.key for column in table.columns] == ["1", "2", "3", "4", "5"]
    assert [cell.value for cell in table.lines[0].cells] == pytest.approx([60, 60, 60, 60, 30])
    assert build_severities(gather(row for row in make_world() if row.severity == 5)) == []


def test_severities_of_other_numbers_of_images_are_tables_of_their_own() -> None:
    rows = [
        make_row("zero-shot", "zeroshot()", "fog", 0.5, severity=severity, images=images, batch_size=size)
        for severity in (1, 5)
        for images, size in ((64, 64), (64, 1), (9, 64))
    ]
    titles = [table.title.partition(":")[0] for table in build_severities(gather(rows))]
    assert titles == ["Zero-shot (64 images) accuracy (%)", "Zero-shot (9 images) accuracy (%)"]
