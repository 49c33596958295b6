"""``lmr bench``: run methods on streams of images."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from lmr.bench.plans.choices import DTYPES, FOLDER, KEYS, RESETS, TIMINGS
from lmr.data.names import ORDERS

if TYPE_CHECKING:
    from lmr.bench.plans.plan import Plan
    from lmr.bench.running.bench import BenchResult

DESCRIPTION = """\
Run methods on streams of images and store every result with its whole protocol. A plan says what to run:
methods, datasets, corruptions, severities, models, prompts, batch sizes, seeds. Give the same command again to resume
a bench that was stopped: finished runs are skipped. A run that fails does not stop the others."""

EXAMPLES = """\
examples:
  lmr bench --list                                       the plans that come with lmr
  lmr bench photo-quick                                  nine methods on photographs, no download: minutes
  lmr bench photo --root ~/data                          15 corruptions, on the whole test sets if they are there
  lmr bench 'photo*'                                     the ablations too: all that the figures need
  lmr bench cifar10-c --root ~/data --workers 2          a table of the paper
  lmr bench photo-quick --methods lmr --seeds 1 2 3      a plan with other values
  lmr bench photo-quick --methods lmr ./mine.py:mine     your own method, from a file
  lmr bench --methods lmr "tent(lr=1e-3)" --datasets folder:photos --backbones ViT-B-16
  lmr bench photo --ray auto                             on all nodes of a Ray cluster
  lmr bench --methods lmr --datasets "cifar10-c|photo-c"     the first of these that is under --root"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``lmr bench``."""
    add = parser.add_argument
    add("plans", nargs="*", metavar="PLAN", help="a plan of the package (see --list; 'photo*' is every plan whose "
        "name begins with photo), or a file PLAN.toml")  # fmt: skip
    add("--list", action="store_true", help="list the plans that come with lmr")
    add("--dry-run", action="store_true", help="list the runs and run nothing")
    add("--estimate", action="store_true", help="estimate the time on this machine and run nothing")
    add("--out", default=FOLDER, metavar="RUNS", help="where rows and samples are written (default: %(default)s)")
    add("--from", dest="sources", nargs="+", default=[], metavar="RUNS", help="reuse the finished runs in these "
        "folders of runs or packs (see lmr report --pack), to continue a bench of another machine")  # fmt: skip
    add("--workers", type=int, metavar="N", help="processes that share the cores (default: as many as cores for small "
        "models such as photo and pocket, otherwise 1)")  # fmt: skip
    add("--ray", nargs="?", const="local", metavar="ADDRESS", help="run on a Ray cluster: at ADDRESS, auto for one "
        "that this machine belongs to, or (without an address) one that is started here for the time of the bench; "
        "rows are those of one machine. Needs pip install 'lmr[ray]'")  # fmt: skip
    add("--root", metavar="DIR", help="where datasets are kept (default: $LMR_DATA, or ~/.cache/lmr/data)")
    group = parser.add_argument_group("instead of a plan, or to change one")
    add = group.add_argument
    add("--methods", nargs="+", metavar="SPEC", help='such as lmr, "tent(lr=1e-3)" or ./mine.py:mine; all; or '
        "paper, those that the paper compares")  # fmt: skip
    add("--preset", nargs="+", metavar="NAME", help="presets to use; each method takes the first that it has")
    add("--datasets", "--data", nargs="+", metavar="NAME", help="such as photo-c, cifar10-c, pacs, folder:PATH, "
        "domains:PATH or csv:PATH; 'cifar10-c|photo-c' is the first one found, 'cifar100-c|' may be missing",
    )  # fmt: skip
    add("--corruptions", nargs="+", metavar="NAME", help="such as fog or clean, or domains of the set (default: those "
        "of the benchmark)")  # fmt: skip
    add("--severities", nargs="+", type=int, metavar="1..5", help="severities of the corruptions (default: 5)")
    add("--backbones", nargs="+", metavar="MODEL", help="models, as lmr.load takes them (default: photo)")
    add("--prompts", nargs="+", metavar="TEXT", help='templates such as "a photo of a {}.", or JSON files; each is a '
        "set")  # fmt: skip
    add("--batch-sizes", nargs="+", type=_read_size, metavar="N", help="images per step (default: preset, the batch "
        "size of each method's preset)")  # fmt: skip
    add("--seeds", nargs="+", type=int, metavar="N", help="seeds of the order of the images (default: 1)")
    add("--images", type=int, metavar="N", help="use the first N images of each stream (default: all)")
    add("--order", choices=ORDERS, help="order of the images in a stream (default: shuffle)")
    add("--concentration", type=float, metavar="X", help="for --order dirichlet: small is strongly imbalanced "
        "(default: 0.1)")  # fmt: skip
    add("--block", type=int, metavar="N", help="for --order classes: images of one class in a row (default: all)")
    add("--majority", type=float, metavar="X", help="for --order skew: the share of the dominant classes "
        "(default: 0.8)")  # fmt: skip
    add("--tail", type=float, metavar="X", help="for --order skew, in place of a majority: a long tail, in which the "
        "k-th class has a share in proportion to X^k")  # fmt: skip
    add("--dominant", nargs="+", metavar="CLASS", help="for --order skew: the number of the dominant class, a stream "
        "for each; '1+3': both together; '1>3': 3 takes over half-way, or at the onset (default: drawn by the seed)",
    )  # fmt: skip
    add("--onset", type=int, metavar="N", help="the first N images of every stream are clean and are not counted, then "
        "the corruption begins (default: 0)")  # fmt: skip
    add("--reset", choices=RESETS, help="never: one stream through all corruptions (default: domain)")
    add("--rounds", type=int, metavar="N", help="for --reset never: how often the stream goes through all corruptions "
        "(default: 1)")  # fmt: skip
    add("--mix", action="store_true", default=None, help="shuffle all corruptions into one stream")
    add("--latin", action="store_true", default=None, help="for --reset never: one stream for each order of a Latin "
        "square of the domains")  # fmt: skip
    add("--timing", choices=TIMINGS, help="live: the stream does not wait; a method whose step costs k forward "
        "passes adapts on every k-th batch and answers the others with its last state (default: wait)")  # fmt: skip
    add("--forgetting", type=int, metavar="N", help="clean images to classify after each stream (default: 0)")
    add("--recovery", action="store_true", default=None, help="measure how many of zero-shot's errors are corrected")
    add("--watch", nargs="+", metavar="MODE", help="on, report or off: with a watch that rolls a stream back when its "
        "adaptation goes wrong, one that only reports, or none; several to compare them (default: off)")  # fmt: skip
    add("--dtype", choices=DTYPES, help="type of the frozen weights (default: float32)")
    add("--device", metavar="NAME", help="where models run, such as cpu or cuda (default: cpu)")


def _read_size(word: str) -> int | str:
    return word if word == "preset" else int(word)


def run(options: argparse.Namespace) -> str | None:
    """List plans, list runs, or run them; return a complaint if runs failed."""
    from lmr.bench.plans.plan import choose_plans, list_plans
    from lmr.bench.plans.task import list_tasks
    from lmr.bench.running.bench import run_bench

    if options.list:
        titles = list_plans()
        width = max(map(len, titles))
        print("\n".join(f"{name:{width}}  {title}" for name, title in titles.items()))
        return None
    plans = choose_plans(options.plans, {key: getattr(options, key) for key in KEYS})
    if options.ray and not options.estimate:
        return _run_on_ray(plans, options)
    if options.dry_run or options.estimate:
        tasks = list_tasks(plans, options.root, lambda message: print(f"lmr: {message}", file=sys.stderr))
        if options.dry_run:
            print("\n".join(f"{task.run}  {task.command}" for task in tasks))
            print(f"Runs: {len(tasks)}, images: {sum(task.images for task in tasks):,}.")
        if options.estimate:
            from lmr.bench.running.estimate import describe_left_time

            print(describe_left_time(tasks, options.out, options.workers, options.sources))
        return None
    result = run_bench(plans, options.out, workers=options.workers, root=options.root, sources=options.sources)
    return _close(result, options)


def _run_on_ray(plans: list[Plan], options: argparse.Namespace) -> str | None:
    from lmr.cluster.ray_bench import describe_placement, run_ray_bench
    from lmr.cluster.ray_connection import connect

    with connect(options.ray) as ray:
        if options.dry_run:
            print(describe_placement(ray, plans, options.root))
            return None
        return _close(run_ray_bench(ray, plans, options.out, options.workers, options.root, options.sources), options)


def _close(result: BenchResult, options: argparse.Namespace) -> str | None:
    """Say what became of a bench; what is returned is a complaint."""
    print(result.describe(), file=sys.stderr)
    if result.rows:
        print(f"Rows are in {options.out}; 'lmr report {options.out}' makes tables and figures of them.")
    return f"{len(result.failures)} runs failed." if result.failures else None
