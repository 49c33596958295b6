"""``lmr load``: load and faults for the service, on this machine."""

from __future__ import annotations

import argparse
import sys

DESCRIPTION = """\
Try the service under load and under faults. Each experiment starts 'lmr serve' on this machine, as a process of its own
with a store of its own, sends it requests with the Python client, and compares what it finds with an aim. Misses are
shown as misses. Nothing is sent to any other address, and only processes that were started here are ended.

The senders share the processors with the service. So throughput is compared per processor second: images of the service
against images of the bare loop of method.step in the same run. Wall time is given beside it.

experiments:
  throughput-vit   ViT-B/16 with random weights, saturated by 16 streams (writes 600 MB to --folder)
  throughput-8     the pocket model, 8 images a request
  throughput-1     the pocket model, one image a request
  latency          what the service adds to the computation, one request in flight
  overload         four times more than it can serve, for five minutes
  streams          10,000 streams, 500 of them resident, compared with solo runs
  kill             200 times kill -9 at random moments, with retries
  disk-full        a store on a file system that is full
  bad-input        bombs, truncated files, bodies that are too large, slow senders, clients that hang up
  sigterm          SIGTERM under load
with Ray, only if they are named:
  ray              two, three and two replicas on this machine, 20 of them and a store killed under load
  ray-latency      what Ray Serve adds to a request, against the service without it, by turns"""

EXAMPLES = """\
examples:
  lmr load --short                           every experiment in a small form, in a few minutes
  lmr load --out load.jsonl                  all of them; takes about an hour
  lmr load latency overload                  only some
  lmr load ray ray-latency                   the service on a cluster of this machine

exit codes: 0 every aim was met, 1 some were missed, 2 an experiment could not run (an error message says why)."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of ``lmr load``."""
    add = parser.add_argument
    add("experiments", nargs="*", metavar="NAME", help="experiments to run (default: all without Ray)")
    add("--short", action="store_true", help="small forms, which show that everything works; not for figures")
    add("--seed", type=int, default=0, metavar="N", help="seed of the random moments (default: %(default)s)")
    add("--kills", type=int, default=200, metavar="N", help="how often the service is killed (default: %(default)s)")
    add("--out", metavar="FILE", help="add a JSON line for each experiment to FILE")
    add("--folder", metavar="DIR", help="keep models, stores and logs in DIR (default: a temporary folder)")


def run(options: argparse.Namespace) -> str | None:
    """Run the experiments and print the table."""
    from lab.load.load_result import format_load_table
    from lab.load.load_run import run_load

    results = run_load(
        options.experiments,
        short=options.short,
        seed=options.seed,
        kills=options.kills,
        out=options.out,
        folder=options.folder,
        say=lambda words: print(f"lmr: {words}", file=sys.stderr, flush=True),
    )
    print(format_load_table(results))
    missed = [one.experiment for one in results if one.verdict == "missed"]
    return f"Missed: {', '.join(missed)}." if missed else None
