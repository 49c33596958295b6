"""``lmr serve``: a classifier that adapts to many streams, over HTTP."""

from __future__ import annotations

import argparse

from lmr.apps.method_options import MethodOptions
from lmr.apps.options import ServerOptions
from lmr.cli.shared_options import add_fields, add_model_options, add_prompt_options, read_dataclass
from lmr.core.errors import LmrError
from lmr.service.settings import ServiceSettings

DESCRIPTION = """\
Serve a classifier over HTTP to many streams of images, such as cameras. Each stream has an adaptive state of its own:
a request adapts its stream on the images in it and answers them, and no stream changes the answers of another.

The default method, steady, answers as the frozen model while its answers are as clear as on the first images of a
stream. When they become less clear, it adapts, with the class shares of this stream. Labels that clients post enter
these shares. Give --prior uniform for streams that begin with bad images and have about as many of each class.

States are kept in --store and survive a restart or a crash: an answer is sent after its state is on the disk. A
watch compares each stream with the frozen model, without labels, and rolls it back when its adaptation goes wrong.
The service has a live page at its address, a description of its API at /docs and metrics for Prometheus at /metrics.

On SIGTERM or Ctrl-C the service refuses new requests, answers those that wait within 30 seconds,
and closes the store."""

EXAMPLES = """\
examples:
  see it: eight simulated cameras and the live page, for a minute:
    lmr serve --demo --for 60
  serve the model that comes with lmr, on this machine alone:
    lmr serve --labels "cat,dog,ship,truck"
  send it an image; the name of the stream is up to you:
    curl -H "Content-Type: image/jpeg" --data-binary @frame.jpg localhost:8080/v1/streams/cam-1/images
  CLIP with names in a file, and a file for the states:
    lmr serve --labels names.txt --model openai/clip-vit-base-patch16 --store sqlite:/var/lib/lmr/streams.sqlite
  for other machines, with a token that clients send as "Authorization: Bearer ...":
    openssl rand -hex 32 > token
    lmr serve --labels names.txt --host 0.0.0.0 --token-file token
  streams that are bad from the first image on, with about as many images of each class:
    lmr serve --labels names.txt --prior uniform
  one of any number of replicas behind a proxy, with the states in PostgreSQL:
    lmr serve --labels names.txt --store postgresql://lmr@db/lmr
  no label for images that belong to none of the classes:
    lmr serve --labels names.txt --unknown 0.4
  publish the answers, so that every stream appears in Home Assistant:
    lmr serve --labels names.txt --mqtt mqtt://localhost
  post its events, such as a camera that shows no picture, to a program on this machine:
    lmr serve --labels names.txt --notify http://127.0.0.1:9000/alarm
  the same model without adaptation, to compare:
    lmr serve --labels names.txt --method zeroshot --watch off

exit codes: 0 ended by a signal, 2 the service cannot start (an error message says why)."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``lmr serve``."""
    group = parser.add_argument_group("what is served")
    add = group.add_argument
    add("--demo", action="store_true", help="serve eight simulated cameras, most in bad weather and some hard to adapt "
        "to, with the model and the photographs that come with lmr; the only other options that apply are --for, "
        "--host, --port, --token-file and --log-level")  # fmt: skip
    add("--for", dest="seconds", type=float, metavar="S", help="with --demo: end after S seconds, with a table")
    add_fields(group, MethodOptions, labels="FILE|A,B,C", model="MODEL", method="SPEC", prior="WORD|SHARES")
    add_fields(group, MethodOptions, unknown="X", reuse="X", watch="on|report|off")
    add_fields(group, ServiceSettings, show_frames=None)
    group = parser.add_argument_group("where it is served")
    add_fields(group, ServerOptions, host="ADDRESS", port="N", token_file="FILE", mqtt="ADDRESS")
    add_fields(group, ServerOptions, mqtt_password_file="FILE", notify="URL", notify_host="HOST")
    add_fields(group, ServerOptions, log_level=None)
    group = parser.add_argument_group("states of streams")
    add_fields(group, ServerOptions, store="ADDRESS", adopt=None)
    add_fields(group, ServiceSettings, resident="N", max_streams="N", durability=None, interval_s="S")
    add_fields(parser.add_argument_group("limits"), ServiceSettings, max_body="BYTES")
    add_prompt_options(parser)
    add_model_options(parser)
    parser.set_defaults(watch="on", store="sqlite:lmr-state/streams.sqlite")


def run(options: argparse.Namespace) -> str | None:
    """Serve until a signal."""
    from lmr.apps.serve import ServingPlan, open_server

    where = read_dataclass(ServerOptions, options)
    if options.demo:
        from lmr.apps.serve_demo import serve_demo

        serve_demo(options.seconds, where, report=_report)
        return None
    if options.labels is None or options.seconds is not None:
        raise LmrError("Give the class names with --labels, or --demo; --for is for --demo alone.")
    plan = ServingPlan(read_dataclass(MethodOptions, options).resolve(), read_dataclass(ServiceSettings, options))
    with open_server(plan, where, report=_report) as server:
        server.run()
    return None


def _report(message: str) -> None:
    print(f"lmr: {message}", flush=True)
