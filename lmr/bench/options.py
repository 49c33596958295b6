"""The options of ``lmr bench`` and the function they call."""

from __future__ import annotations

import argparse
import fnmatch
import sys
from pathlib import Path
from typing import Any

from lmr.bench.plans.choices import DTYPES, FOLDER, KEYS, RESETS
from lmr.bench.plans.plan import Plan, list_plans, parse_plan, read_plan
from lmr.bench.plans.task import list_tasks
from lmr.bench.running.bench import run_bench
from lmr.core.errors import LmrError
from lmr.data.orders import ORDERS


def add_bench_options(parser: argparse.ArgumentParser) -> None:
    """Add the options to the parser of the command."""
    add = parser.add_argument
    add("plans", nargs="*", metavar="PLAN", help="a plan of the package (see --list; 'pocket*' is all "
        "that begin so), or a file PLAN.toml")  # fmt: skip
    add("--list", action="store_true", help="show the plans that come with lmr")
    add("--dry-run", action="store_true", help="show what would be run and run nothing")
    add("--out", default=FOLDER, metavar="RUNS", help="where rows and samples go (default: %(default)s)")
    add("--workers", type=int, metavar="N", help="processes that share the cores (default: as many as cores for the "
        "pocket model, otherwise 1)")  # fmt: skip
    add("--root", metavar="DIR", help="where datasets lie (default: $LMR_DATA, or ~/.cache/lmr/data)")
    group = parser.add_argument_group("instead of a plan, or instead of what it says")
    add = group.add_argument
    add("--methods", nargs="+", metavar="SPEC", help='such as all, lmr or "tent(lr=1e-3)"')
    add("--preset", nargs="+", metavar="NAME", help="the first of these presets that a method has")
    add("--datasets", "--data", nargs="+", metavar="NAME", help="such as pocket-c, cifar10-c, folder:PATH or csv:PATH")
    add("--corruptions", nargs="+", metavar="NAME", help="such as fog or clean (default: the benchmark's)")
    add("--severities", nargs="+", type=int, metavar="1..5", help="(default: 5)")
    add("--backbones", nargs="+", metavar="MODEL", help="as lmr.load takes them (default: pocket)")
    add(
        "--prompts",
        nargs="+",
        metavar="TEXT",
        help='templates such as "a photo of a {}.", or JSON files; each is a set',
    )
    add(
        "--batch-sizes",
        nargs="+",
        type=_read_size,
        metavar="N",
        help="(default: preset, what each method is meant for)",
    )
    add("--seeds", nargs="+", type=int, metavar="N", help="of the order (default: 1)")
    add("--images", type=int, metavar="N", help="the first so many of each stream (default: all)")
    add("--order", choices=ORDERS, help="(default: shuffle)")
    add("--concentration", type=float, metavar="X", help="of the order dirichlet (default: 0.1)")
    add("--block", type=int, metavar="N", help="of the order classes: pictures of a class in a row (default: all)")
    add("--reset", choices=RESETS, help="never: one stream through all corruptions (default: domain)")
    add("--mix", action="store_true", default=None, help="shuffle all corruptions into one stream")
    add("--forgetting", type=int, metavar="N", help="clean pictures to ask for after each stream (default: 0)")
    add("--recovery", action="store_true", default=None, help="measure how far zero-shot's errors are undone")
    add("--dtype", choices=DTYPES, help="of the frozen weights (default: float32)")
    add("--device", metavar="NAME", help="where models run (default: cpu)")


def _read_size(word: str) -> int | str:
    return word if word == "preset" else int(word)


def read_plans(options: argparse.Namespace) -> list[Plan]:
    """The plans that the options ask for; options win over what a plan says."""
    given: dict[str, Any] = {key: getattr(options, key) for key in KEYS if getattr(options, key) is not None}
    for key in ("corruptions", "batch_sizes"):
        if given.get(key) in (["all"], ["preset"]):
            given[key] = given[key][0]
    if not options.plans:
        if not given:
            raise LmrError("Say what to run: a plan ('lmr bench --list' shows them) or --methods and --datasets.")
        return [parse_plan("command line", "", Path.cwd(), given)]
    known = list_plans()
    names = [name for plan in options.plans for name in fnmatch.filter(known, plan) or [plan]]
    return [read_plan(name, given) for name in dict.fromkeys(names)]


def run_bench_command(options: argparse.Namespace) -> str | None:
    """Run the command; what it returns is a complaint."""
    if options.list:
        titles = list_plans()
        width = max(map(len, titles))
        print("\n".join(f"{name:{width}}  {title}" for name, title in titles.items()))
        return None
    plans = read_plans(options)
    if options.dry_run:
        tasks = list_tasks(plans, options.root)
        print("\n".join(f"{task.run}  {task.command}" for task in tasks))
        print(f"{len(tasks)} runs, {sum(task.images for task in tasks):,} pictures in all.")
        return None
    outcome = run_bench(plans, options.out, workers=options.workers, root=options.root)
    print(outcome.describe(), file=sys.stderr)
    if outcome.rows:
        print(f"Rows are in {options.out}; 'lmr report {options.out}' makes tables and figures of them.")
    return f"{len(outcome.failures)} runs failed." if outcome.failures else None
