"""Fill the tables of docs/results/leaderboard.md and domains.md from the stored runs.

Every table stands between two comments, ``<!-- table: PACK/NAME -->`` and ``<!-- end -->``: ``python -m
lab.result_pages`` replaces what is between them, and nothing else.
"""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

from lab.command import build_parser, run_command
from lmr.report.formats import format_markdown
from lmr.report.groups import gather
from lmr.report.report import build_leaderboards, build_tables
from lmr.report.runs import read_runs

ROOT = Path(__file__).parent.parent
RUNS = ROOT / "results" / "leaderboard", ROOT / "results" / "one-order"
PAGES = tuple(ROOT / "docs" / "results" / name for name in ("leaderboard.md", "domains.md"))
BLOCK = re.compile(r"(<!-- table: (?P<name>\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
WIDTH = 100
MISSING = "The stored runs do not have the numbers of this table yet."
DESCRIPTION = "Fill the tables of docs/results/leaderboard.md and docs/results/domains.md from the packs in results/."


def make_tables(*folders: Path) -> dict[str, str]:
    """Return the Markdown of every table of each folder of runs, by both names: of a report, and the leaderboard."""
    found: dict[str, str] = {}
    for folder in folders:
        runs = read_runs([folder])
        settings = gather(runs.rows)
        tables = [*build_leaderboards(runs, settings), *build_tables(runs, settings)]
        found |= {f"{folder.name}/{table.name}": format_markdown(table) for table in tables}
    return found


def fill(page: str, tables: dict[str, str]) -> str:
    """Return a page with its tables made anew; the heading of a table is left to the page."""

    def replace(match: re.Match[str]) -> str:
        table = tables.get(match["name"])
        body = "\n".join(map(_wrap, table.rstrip().split("\n")[2:])) if table else MISSING
        return f"{match[1]}\n{body}\n\n{match[3]}"

    return BLOCK.sub(replace, page)


def _wrap(line: str) -> str:
    """Return a note in lines as long as those of other pages; a line of a table stays as it is."""
    if not line.startswith("- "):
        return line
    return textwrap.fill(line, WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def run(options: argparse.Namespace) -> None:
    """Write both pages."""
    tables = make_tables(*RUNS)
    for page in PAGES:
        page.write_text(fill(page.read_text(encoding="utf-8"), tables), encoding="utf-8")
        print(f"Written: {page.relative_to(ROOT)}.")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = build_parser("result_pages", DESCRIPTION)
    return run_command(parser, run, argv)


if __name__ == "__main__":
    sys.exit(main())
