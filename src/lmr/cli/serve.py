"""``lmr serve``: a classifier that adapts to many streams, over HTTP."""

from __future__ import annotations

import argparse

from lmr.apps.method_options import MethodOptions
from lmr.apps.options import ModelOptions, ServerOptions
from lmr.cli.shared_options import add_fields, add_model_options, add_prompt_options, read_dataclass
from lmr.core.errors import LmrError
from lmr.service.settings import ServiceSettings

DESCRIPTION = """\
Serve a classifier over HTTP to many streams of images, such as cameras. Each stream has an adaptive state of its own:
a request adapts its stream on the images in it and answers them, and no stream changes the answers of another.

The default method, steady, answers as the frozen model while the images of a stream are like its first ones, and adapts
after a change, with the class shares of this stream. Labels that clients post enter these shares. Give --prior uniform
for streams that begin with bad images and have about as many of each class.

States are kept in --store and survive a restart or a crash: an answer is sent after its state is on the disk. A
watch compares each stream with the frozen model, without labels, and rolls it back when its adaptation goes wrong.
The service has a live page at its address, a description of its API at /docs, metrics for Prometheus at /metrics, and
speaks the Open Inference Protocol (V2) of KServe and Triton at /v2.

On SIGTERM or Ctrl-C the service refuses new requests, finishes the queue within --drain-s, and closes the store."""

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
  cameras that send one frame at a time, with a step for every 16 frames of a camera:
    lmr serve --labels names.txt --step 16
  one of any number of replicas behind a proxy, with the states in PostgreSQL:
    lmr serve --labels names.txt --store postgresql://lmr@db/lmr
  eight replicas on a running Ray cluster, with the states in PostgreSQL:
    lmr serve --labels names.txt --ray auto --replicas 8 --store postgresql://lmr@db/lmr
  no label for images that belong to none of the classes:
    lmr serve --labels names.txt --unknown auto
  publish the answers, so that every stream appears in Home Assistant:
    lmr serve --labels names.txt --mqtt mqtt://localhost
  the same model without adaptation, to compare:
    lmr serve --labels names.txt --method zeroshot --watch off

exit codes: 0 ended by a signal, 2 the service cannot start (an error message says why)."""

_DEFAULTS = ServiceSettings()
_UNITS = {"KB": 1000, "MB": 1000**2, "GB": 1000**3, "B": 1, "": 1}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``lmr serve``."""
    group = parser.add_argument_group("what is served")
    add = group.add_argument
    add("--demo", action="store_true", help="serve eight simulated cameras, most in bad weather and some hard to adapt "
        "to, with the model and the photographs that come with lmr; the only other options that apply are --for, "
        "--host, --port, --token-file and --log-level")  # fmt: skip
    add("--for", dest="seconds", type=float, metavar="S", help="with --demo: end after S seconds, with a table")
    add_fields(group, MethodOptions, labels="FILE|A,B,C", model="MODEL", method="SPEC", prior="WORD|SHARES|FILE")
    add_fields(group, MethodOptions, unknown="auto|X", watch="on|report|off")
    add("--step", type=_read_step, default=_DEFAULTS.step, metavar="request|N", help="request: the images of a request "
        "are one step; N: every image is answered at once, and every N images of a stream are a step, for cameras that "
        "send one frame at a time (default: request)")  # fmt: skip
    add_fields(group, ServiceSettings, show_frames=None)
    group = parser.add_argument_group("where it is served")
    add_fields(group, ServerOptions, host="ADDRESS", port="N", token_file="FILE", mqtt="ADDRESS", log_level=None)
    group = parser.add_argument_group("states of streams")
    add_fields(group, ServerOptions, store="ADDRESS")
    add_fields(group, ServiceSettings, resident="N", max_streams="N", durability=None, interval_s="S")
    add_fields(group, ServiceSettings, on_store_failure=None, create=None)
    add = parser.add_argument_group("on a cluster").add_argument
    add("--ray", nargs="?", const="local", metavar="ADDRESS", help="serve with replicas on a Ray cluster: at ADDRESS, "
        "auto for the one that runs on this machine; without an address on a cluster of this machine's cores that ends "
        "with the command. Needs a --store in PostgreSQL, and pip install 'lmr[serve,ray,postgres]'")  # fmt: skip
    add("--replicas", type=_read_range, metavar="N|MIN:MAX", help="with --ray: processes that serve, each with the "
        "whole model; MIN:MAX follows the load (default: 2)")  # fmt: skip
    add("--replica-cpus", type=float, metavar="N", help="with --ray: cores of a replica (default: 1)")
    group = parser.add_argument_group("limits of a request")
    group.add_argument("--max-body", type=_read_size, default=_DEFAULTS.max_body, metavar="SIZE",
        help="largest body of a request, as in 10MB (default: 10MB)")  # fmt: skip
    add_fields(group, ServiceSettings, max_images="N", max_pixels="N", timeout_ms="MS")
    group = parser.add_argument_group("batches and the queue")
    add_fields(group, ServiceSettings, max_batch="N", max_step_ms="MS", max_wait_ms="MS")
    group.add_argument("--threads", type=int, metavar="N", help="threads of torch that compute (default: one for small "
        "models such as photo and pocket, all cores for others; give fewer where other programs need the "
        "cores)")  # fmt: skip
    add_fields(group, ServiceSettings, queue_images="N", queue_per_stream="N", overload=None, drain_s="S")
    add_prompt_options(parser)
    add_model_options(parser)
    parser.set_defaults(watch="on", log_level=None, store="sqlite:lmr-state/streams.sqlite")


def run(options: argparse.Namespace) -> str | None:
    """Serve until a signal."""
    from lmr.apps.serve import ServingPlan, leave_if_loading, serve_classifier
    from lmr.core.known import check_unknown

    options.log_level = options.log_level or ("warning" if options.demo else "info")
    where = read_dataclass(ServerOptions, options)
    if options.demo:
        from lmr.apps.serve_demo import serve_demo

        serve_demo(options.seconds, where, report=_report)
        leave_if_loading()
        return None
    if options.labels is None or options.seconds is not None:
        raise LmrError("Give the class names with --labels, or --demo; --for is for --demo alone.")
    given = read_dataclass(MethodOptions, options).resolve()
    plan = ServingPlan(
        given.names,
        model=given.model,
        method=given.method,
        prompts=given.wording,
        watch=given.watch_settings,
        options=read_dataclass(ModelOptions, options),
        settings=read_dataclass(ServiceSettings, options),
        threads=options.threads,
        unknown=check_unknown(given.unknown),
    )
    if options.ray is not None:
        from lmr.cluster.ray_serve import ReplicaCount, serve_on_ray

        least, most = options.replicas or (2, None)
        cpus = 1.0 if options.replica_cpus is None else options.replica_cpus
        serve_on_ray(options.ray, plan, where, ReplicaCount(least, most, cpus), _report)
    elif options.replicas is not None or options.replica_cpus is not None:
        raise LmrError("--replicas and --replica-cpus are for a cluster; give --ray with them.")
    else:
        serve_classifier(plan, where, report=_report)
        leave_if_loading()
    return None


def _report(message: str) -> None:
    print(f"lmr: {message}", flush=True)


def _read_step(text: str) -> int:
    """0 for "request"."""
    if text == "request":
        return 0
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected 'request' or a number of images, got {text!r}")
    return int(text)


def _read_range(text: str) -> tuple[int, int | None]:
    """Bounds of a number of replicas; the second is None for a number that is fixed."""
    least, colon, most = text.partition(":")
    if not least.isdecimal() or (colon and not most.isdecimal()):
        raise argparse.ArgumentTypeError(f"expected a number of replicas as in 3, or bounds as in 2:8, got {text!r}")
    return int(least), int(most) if colon else None


def _read_size(text: str) -> int:
    """Bytes, from a number with a unit."""
    digits = text.rstrip("kKmMgGbB")
    unit = text[len(digits) :].upper()
    if not digits.strip().isdecimal() or unit not in _UNITS:
        raise argparse.ArgumentTypeError(f"expected a size such as 10MB, got {text!r}")
    return int(digits) * _UNITS[unit]
