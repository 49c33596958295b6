"""Run load and fault experiments: ``python -m lab.load``."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from lab.command import build_parser, run_command
from lab.load.bench import LoadBench, LoadResult, format_load_table
from lab.load.kill import measure_kills, measure_replicas
from lab.load.throughput import measure_photo, measure_single, measure_vit
from lmr.core.errors import LmrError

DESCRIPTION = """\
Test the service under load and under faults. Each experiment starts 'lmr serve' on this machine, as a process with a
store of its own, sends it requests with the Python client, and compares the result with an aim. Nothing is sent to any
other address, and only processes that were started here are ended.

The senders share the processors with the service. So throughput is compared per processor second: images of the service
against images of the bare loop of method.step in the same run. Wall time is given beside it.

experiments:
  throughput-vit   ViT-B/16 with random weights, saturated by 16 streams (writes 600 MB to --folder)
  throughput       the embedded model, 8 images a request
  throughput-single  the same, one image a request
  kill             200 times kill -9 at random moments, with retries
with PostgreSQL and nginx of this machine, run only if it is named:
  postgres         three replicas behind nginx, 64 cameras: 200 times kill -9 of a replica, twice of the database"""

EXAMPLES = """\
examples:
  python -m lab.load --short                 every experiment in a small form
  python -m lab.load --out load.jsonl        all of them; takes a quarter of an hour
  python -m lab.load kill                    only one
  python -m lab.load postgres --kills 200    ten minutes of faults

exit codes: 0 every aim was met, 1 some were missed, 2 an experiment could not run (an error message says why)."""


EXPERIMENTS: dict[str, Callable[[LoadBench], LoadResult]] = {
    "throughput-vit": measure_vit,
    "throughput": measure_photo,
    "throughput-single": measure_single,
    "kill": measure_kills,
}
ON_POSTGRES: dict[str, Callable[[LoadBench], LoadResult]] = {"postgres": measure_replicas}


def run_load(names: Sequence[str], bench: LoadBench, out: str | None = None) -> list[LoadResult]:
    """Run the named experiments, or all without other programs; each result is added to ``out`` as a line of JSON."""
    if bench.kills < 1:
        raise LmrError(f"Expected at least one kill, got {bench.kills}.")
    known = EXPERIMENTS | ON_POSTGRES
    for name in names:
        if name not in known:
            raise LmrError(f"There is no experiment {name!r}; choose from: {', '.join(known)}.")
    results = []
    for name in names or EXPERIMENTS:
        bench.report(f"{name} ...")
        result = known[name](bench)
        bench.report(f"{name}: {result.found} ({result.verdict})")
        results.append(result)
        if out is not None:
            with open(out, "a", encoding="utf-8") as file:
                file.write(result.to_json() + "\n")
    return results


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    parser = build_parser("load", DESCRIPTION, EXAMPLES)
    add = parser.add_argument
    add("experiments", nargs="*", metavar="NAME", help="experiments to run (default: all without PostgreSQL)")
    add("--short", action="store_true", help="run small forms, which show that everything works; not for figures")
    add("--seed", type=int, default=0, metavar="N", help="seed of the random moments (default: %(default)s)")
    add("--kills", type=int, default=200, metavar="N", help="number of kills of the service (default: %(default)s)")
    add("--out", metavar="FILE", help="append a JSON line for each experiment to FILE")
    add("--folder", metavar="DIR", help="keep models, stores and logs in DIR (default: a temporary folder)")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the experiments and print the table; return the exit code."""
    return run_command(make_parser(), run, argv)


def run(options: argparse.Namespace) -> str | None:
    """Run the experiments and print the table; return a complaint if an aim was missed."""
    with tempfile.TemporaryDirectory(prefix="lmr-load-") as temporary:
        folder = Path(options.folder or temporary)
        folder.mkdir(parents=True, exist_ok=True)
        bench = LoadBench(folder, options.short, options.seed, options.kills, lambda text: print(text, file=sys.stderr))
        results = run_load(options.experiments, bench, options.out)
    print(format_load_table(results))
    missed = [one.experiment for one in results if one.verdict == "missed"]
    return f"Missed: {', '.join(missed)}." if missed else None


if __name__ == "__main__":
    sys.exit(main())
