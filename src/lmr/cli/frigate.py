"""``lmr frigate``: sub-labels for the objects that Frigate tracks."""

from __future__ import annotations

import argparse
import sys

from lmr.cli.shared_options import add_fields, read_dataclass
from lmr.service.settings import FrigateOptions

DESCRIPTION = """\
Classify the objects that Frigate tracks, with the class names of a running 'lmr serve', and write the answers back as
sub-labels: a car becomes a delivery van, a bird a magpie.

For every better snapshot of an object, Frigate sends a message to its MQTT broker. This command gets the snapshot,
cut to the object, sends it to the stream of its camera, and sets the sub-label with its probability. Every camera
adapts on its own, and appears on the live page of the service. Start the service with --unknown auto to leave out
objects that are none of the classes.

If the broker, Frigate or the service cannot be reached, the command waits and tries again. At most 256 objects wait,
each with its last snapshot; the oldest are dropped. No object adapts a stream twice with the same snapshot."""

EXAMPLES = """\
examples:
  Frigate, its broker and the service on this machine:
    lmr serve --labels "car,delivery van,pickup truck,bus"
    lmr frigate --mqtt mqtt://localhost --frigate http://localhost:5000 --objects car
  on other machines, and only answers that are more likely than not:
    lmr frigate --mqtt mqtt://user:password@broker --frigate http://nvr:5000 --to https://vision.example \\
        --token-file token --least 0.5
  a broker where Frigate's topic_prefix is house/frigate:
    lmr frigate --mqtt mqtt://broker/house/frigate --frigate http://nvr:5000

exit codes: 0 ended by SIGTERM, 2 it cannot continue (an error message says why), 130 interrupted."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``lmr frigate``."""
    add = parser.add_argument
    add(
        "--mqtt",
        required=True,
        metavar="ADDRESS",
        help="the broker of Frigate: mqtt://host, or mqtts://user:password@host:port/prefix, where the prefix is "
        "Frigate's topic_prefix; needs pip install 'lmr[mqtt,serve]'",
    )
    add("--frigate", required=True, metavar="URL", help="the address of Frigate, such as http://nvr:5000")
    add_fields(parser, FrigateOptions, to="URL", objects="A,B,C", least="X", token_file="FILE", patience="S")


def run(options: argparse.Namespace) -> None:
    """Serve until a signal."""
    import signal

    from lmr.service.frigate import FrigateBridge, run_frigate

    def begin(bridge: FrigateBridge) -> None:
        signal.signal(signal.SIGTERM, lambda *_: bridge.stop())

    _report(f"{run_frigate(read_dataclass(FrigateOptions, options), _report, begin)}.")


def _report(message: str) -> None:
    print(f"lmr: {message}", file=sys.stderr, flush=True)
