"""``lmr bench``: run methods on streams of images."""

from __future__ import annotations

import argparse
import dataclasses
import sys
import textwrap
import tomllib
from typing import Any

from lmr.bench.plans.fields import FOLDER, PlanFields
from lmr.cli.shared_options import add_fields
from lmr.core.explain import explain_fields

# The fields of a plan with an option of their own; --set takes the others.
OPTIONS = ("methods", "datasets", "corruptions", "severities", "backbones", "batch_sizes", "seeds", "images", "select")

DESCRIPTION = """\
Run methods on streams of images and store every result with its whole protocol. A plan says what to run:
methods, datasets, corruptions, severities, models, prompts, batch sizes, seeds. Give the same command again to resume
a bench that was stopped: finished runs are skipped. A run that fails does not stop the others."""

EXAMPLES = """\
examples:
  lmr bench --list                                       the plans that come with lmr
  lmr bench photo-quick                                  nine methods on photographs, no download: minutes
  lmr bench photo --datasets cifar10-c --root ~/data     15 corruptions, on the whole test set
  lmr bench 'photo*'                                     the ablations too: all that the figures need
  lmr bench cifar10-c --root ~/data --workers 2          a table of the paper
  lmr bench photo-quick --methods lmr --seeds 1 2 3      a plan with other values
  lmr bench photo-quick --methods lmr ./mine.py:mine     your own method, from a file
  lmr bench --methods lmr "tent(lr=1e-3)" --datasets folder:photos --backbones ViT-B-16
  lmr bench photo-quick --set order=skew majority=0.6 'dominant=["1", "1>3"]'
  lmr bench photo --select grid.toml                     each method also in values chosen on other corruptions
  lmr bench photo --ray auto                             on all nodes of a Ray cluster"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``lmr bench``."""
    add = parser.add_argument
    add("plans", nargs="*", metavar="PLAN", help="a plan of the package (see --list; 'photo*' is every plan whose "
        "name begins with photo), or a file PLAN.toml")  # fmt: skip
    add("--list", action="store_true", help="list the plans that come with lmr")
    add("--dry-run", action="store_true", help="list the runs that are not finished yet, and run nothing")
    add("--out", default=FOLDER, metavar="RUNS", help="where rows and samples are written (default: %(default)s)")
    add("--from", dest="sources", nargs="+", default=[], metavar="RUNS", help="reuse the finished runs in these "
        "folders of runs or packs (see lmr report --pack), to continue a bench of another machine")  # fmt: skip
    add("--workers", type=int, metavar="N", help="processes that share the cores (default: as many as cores for small "
        "models such as photo, otherwise 1)")  # fmt: skip
    add("--ray", nargs="?", const="local", metavar="ADDRESS", help="run on a Ray cluster: at ADDRESS, auto for one "
        "that this machine belongs to, or (without an address) one that is started here for the time of the bench; "
        "rows are those of one machine. Needs pip install 'lmr[ray]'")  # fmt: skip
    add("--root", metavar="DIR", help="where datasets are kept (default: $LMR_DATA, or ~/.cache/lmr/data)")
    group = parser.add_argument_group("instead of a plan, or to change one", _describe_others())
    add_fields(group, PlanFields, methods="SPEC", datasets="NAME", corruptions="NAME", severities="1..5")
    add_fields(group, PlanFields, backbones="MODEL", batch_sizes="N", seeds="N", images="N", select="GRID")
    group.add_argument("--set", nargs="+", action="extend", type=_read_field, default=[], metavar="FIELD=VALUE",
        help="any field of a plan, with a value as in a plan; quotes around a text may be left out")  # fmt: skip
    parser.set_defaults(**dict.fromkeys(OPTIONS))
    for action in group._group_actions:
        action.required = False  # a plan has these


def _describe_others() -> str:
    """Return the fields of a plan that have no option of their own, one per line."""
    meanings, lines = explain_fields(PlanFields), ["fields for --set:"]
    for item in dataclasses.fields(PlanFields):
        if item.name not in OPTIONS:
            choices = f" ({', '.join(item.metadata['choices'])})" if "choices" in item.metadata else ""
            text = f"  {item.name:<14}{meanings[item.name]}{choices}"
            lines += textwrap.wrap(text, 116, subsequent_indent=" " * 16)
    return "\n".join(lines)


def _read_field(word: str) -> tuple[str, Any]:
    """Return the name and the value of "field=value", where the value is TOML, or a text without quotes."""
    name, equals, value = word.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"expected FIELD=VALUE, such as order=dirichlet, got {word!r}")
    try:
        return name, tomllib.loads(f"value = {value}")["value"]
    except (ValueError, RecursionError):
        return name, value


def read_overrides(options: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of a plan that were given, by their names."""
    return {key: getattr(options, key) for key in OPTIONS} | dict(options.set)


def run(options: argparse.Namespace) -> str | None:
    """List plans, list runs, or run them; return a complaint if runs failed."""
    from lmr.bench.plans.plan import choose_plans, list_plans
    from lmr.bench.plans.task import list_tasks
    from lmr.bench.running.bench import leave_out_finished, run_bench
    from lmr.bench.running.selection import list_trials

    if options.list:
        titles = list_plans()
        width = max(map(len, titles))
        print("\n".join(f"{name:{width}}  {title}" for name, title in titles.items()))
        return None
    plans = choose_plans(options.plans, read_overrides(options))
    if options.dry_run:
        every = list_tasks(plans, options.root, lambda message: print(f"lmr: {message}", file=sys.stderr))
        tasks = leave_out_finished(every, options.out, options.sources)
        trials = list_tasks(list_trials(plans, options.root), options.root)
        print("\n".join(f"{task.run}  {task.command}" for task in tasks))
        earlier = f" {len(every) - len(tasks)} more are finished." if len(tasks) < len(every) else ""
        print(f"Runs: {len(tasks)}, images: {sum(task.images for task in tasks):,}.{earlier}")
        if trials:
            print(f"Before them, {len(trials)} runs to choose values; then each method also runs in the chosen ones.")
        return None
    if options.ray:
        from lmr.cluster.ray_bench import run_ray_bench
        from lmr.cluster.ray_connection import connect

        with connect(options.ray) as ray:
            result = run_ray_bench(ray, plans, options.out, options.workers, options.root, options.sources)
    else:
        result = run_bench(plans, options.out, workers=options.workers, root=options.root, sources=options.sources)
    print(result.describe(), file=sys.stderr)
    if result.rows:
        print(f"Rows are in {options.out}; 'lmr report {options.out}' makes tables and figures of them.")
    return f"{len(result.failures)} runs failed." if result.failures else None
