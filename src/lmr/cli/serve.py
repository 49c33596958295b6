"""``lmr serve``: a classifier that adapts to many streams, over HTTP."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from lmr.apps.options import ModelOptions, ServerOptions
from lmr.cli.shared_options import (
    add_classifier_options,
    add_fields,
    add_model_options,
    add_prompt_options,
    add_unknown,
    read_dataclass,
)
from lmr.core.errors import LmrError
from lmr.service.settings import ServiceSettings

if TYPE_CHECKING:
    from lmr.apps.serve import ServingPlan

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
_CLUSTER = ("replicas", "replica_cpus")
_UNITS = {"KB": 1000, "MB": 1000**2, "GB": 1000**3, "B": 1, "": 1}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``lmr serve``."""
    _add_what(parser.add_argument_group("what is served"))
    _add_where(parser.add_argument_group("where it is served"))
    _add_states(parser.add_argument_group("states of streams"))
    _add_cluster(parser.add_argument_group("on a cluster"))
    _add_limits(parser.add_argument_group("limits of a request"))
    _add_schedule(parser.add_argument_group("batches and the queue"))
    add_prompt_options(parser)
    add_model_options(parser)


def _add_what(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--demo",
        action="store_true",
        help="serve eight simulated cameras, most in bad weather and some hard to adapt to, with the model and the "
        "photographs that come with lmr; the only other options that apply are --for, --host, --port, --token-file and "
        "--log-level",
    )
    add("--for", dest="seconds", type=float, metavar="S", help="with --demo: end after S seconds, with a table")
    add_classifier_options(group, needed=False)
    add(
        "--method",
        default="steady",
        metavar="SPEC",
        help="a method of 'lmr list', with arguments as in \"lmr(lr=5e-4)\"; values that you do not give depend on the "
        "number of classes, and time constants count images (default: %(default)s)",
    )
    add(
        "--prior",
        metavar="WORD|SHARES|FILE",
        help="the class shares to expect in every stream: history, those of its images before the first change; "
        "uniform; shares such as car=0.8,truck=0.1, where the other classes share the rest evenly; or a file of "
        "name,share lines (default: the method's own)",
    )
    add_unknown(group)
    add(
        "--watch",
        default="on",
        metavar="on|report|off",
        help="on: watch each stream without labels and roll it back when its adaptation goes wrong; report: only say "
        "so (default: %(default)s)",
    )
    add(
        "--step",
        type=_read_step,
        default=_DEFAULTS.step,
        metavar="request|N",
        help="request: the images of a request are one step; N: every image is answered at once, and every N images of "
        "a stream are a step, for cameras that send one frame at a time (default: request)",
    )
    add_fields(group, ServiceSettings, show_frames=None)


def _add_where(group: argparse._ArgumentGroup) -> None:
    add_fields(group, ServerOptions, host="ADDRESS", port="N", token_file="FILE", mqtt="ADDRESS", log_level=None)
    group.set_defaults(log_level=None)


def _add_states(group: argparse._ArgumentGroup) -> None:
    add_fields(group, ServerOptions, store="ADDRESS")
    group.set_defaults(store="sqlite:lmr-state/streams.sqlite")
    add_fields(
        group,
        ServiceSettings,
        resident="N",
        max_streams="N",
        durability=None,
        interval_s="S",
        on_store_failure=None,
        create=None,
    )


def _add_cluster(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--ray",
        nargs="?",
        const="local",
        metavar="ADDRESS",
        help="serve with replicas on a Ray cluster: at ADDRESS, auto for the one that runs on this machine; without an "
        "address on a cluster of this machine's cores that ends with the command. Needs a --store in PostgreSQL, and "
        "pip install 'lmr[serve,ray,postgres]'",
    )
    add(
        "--replicas",
        type=_read_range,
        metavar="N|MIN:MAX",
        help="with --ray: processes that serve, each with the whole model; MIN:MAX follows the load (default: 2)",
    )
    add(
        "--replica-cpus",
        type=float,
        metavar="N",
        help="with --ray: cores of a replica (default: 1)",
    )


def _add_limits(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--max-body",
        type=_read_size,
        default=_DEFAULTS.max_body,
        metavar="SIZE",
        help="largest body of a request, as in 10MB (default: 10MB)",
    )
    add_fields(group, ServiceSettings, max_images="N", max_pixels="N", timeout_ms="MS")


def _add_schedule(group: argparse._ArgumentGroup) -> None:
    add_fields(group, ServiceSettings, max_batch="N", max_step_ms="MS", max_wait_ms="MS")
    group.add_argument(
        "--threads",
        type=int,
        metavar="N",
        help="threads of torch that compute (default: one for small models such as photo and pocket, all cores for "
        "others; give fewer where other programs need the cores)",
    )
    add_fields(group, ServiceSettings, queue_images="N", queue_per_stream="N", overload=None, drain_s="S")


def run(options: argparse.Namespace) -> str | None:
    """Serve until a signal."""
    from lmr.apps.model_options import add_prior, choose_prompts, read_labels
    from lmr.apps.serve import ServingPlan, leave_if_loading, serve_classifier
    from lmr.core.known import check_unknown
    from lmr.watch.settings import read_watch

    options.log_level = options.log_level or ("warning" if options.demo else "info")
    where = read_dataclass(ServerOptions, options)
    if options.demo:
        from lmr.apps.serve_demo import serve_demo

        serve_demo(options.seconds, where, report=_report)
        leave_if_loading()
        return None
    if options.labels is None or options.seconds is not None:
        raise LmrError("Give the class names with --labels, or --demo; --for is for --demo alone.")
    names = read_labels(options.labels)
    plan = ServingPlan(
        names,
        model=options.model,
        method=options.method if options.prior is None else add_prior(options.method, options.prior, names),
        prompts=choose_prompts(options.templates, options.prompts),
        watch=read_watch(options.watch),
        options=read_dataclass(ModelOptions, options),
        settings=read_dataclass(ServiceSettings, options),
        threads=options.threads,
        unknown=check_unknown(options.unknown),
    )
    if options.ray is not None:
        _serve_on_ray(options, plan, where)
    elif any(getattr(options, key) is not None for key in _CLUSTER):
        raise LmrError("--replicas and --replica-cpus are for a cluster; give --ray with them.")
    else:
        serve_classifier(plan, where, report=_report)
        leave_if_loading()
    return None


def _serve_on_ray(options: argparse.Namespace, plan: ServingPlan, where: ServerOptions) -> None:
    from lmr.cluster.ray_serve import ReplicaCount, serve_on_ray

    least, most = options.replicas or (2, None)
    cpus = 1.0 if options.replica_cpus is None else options.replica_cpus
    serve_on_ray(options.ray, plan, where, ReplicaCount(least, most, cpus), _report)


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
