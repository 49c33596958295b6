"""The calculation and the simulation as text, as values for JSON, and as a figure."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from lab.scale.capacity import SPARSE, Capacity, Resource
from lab.scale.replica import SimulatedReplica
from lab.scale.simulation import SimulationPlan, SimulationResult, draw_arrivals, make_times
from lmr.bench.table import format_table
from lmr.report.drawing import DASHES, OURS, PALETTE, Drawing, label_ends, render

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INTERVALS = (1.0, 10.0, 60.0, 600.0)  # seconds between commits, for comparison
LOADS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)  # of the figure
SECONDS = 30.0  # simulated for each load
_LINES = ((50, "p50"), (95, "p95"), (99, "p99"))

_FIRST = {
    "accelerators": ("The accelerators break first", "compute {needed}"),
    "disk": ("The disks break first", "write {needed}"),
    "network": ("The network breaks first", "carry {needed}"),
    "memory": ("Memory breaks first", "keep {needed} resident"),
}

Line = tuple[str, str, str]  # a quantity, its value, and where it comes from


def describe_capacity(capacity: Capacity) -> str:
    """Return the tables, and a sentence about the resource that breaks first."""
    options = capacity.options
    title = (
        f"{options.streams:,} streams at {options.fps:g} images/s, {options.model}, {options.classes:,} classes, "
        f"{capacity.sized.spec.partition('(')[0]}"
    )
    parts = [
        title,
        _list("Arithmetic", _list_arithmetic(capacity)),
        _list("State of a stream", _list_state(capacity)),
        _list("Written to disks", _list_written(capacity)),
        _list("Network", _list_network(capacity)),
        _list("One replica on each accelerator", _list_replica(capacity)),
        _describe_resources(capacity),
        describe_bottleneck(capacity),
    ]
    return "\n\n".join(parts)


def describe_bottleneck(capacity: Capacity) -> str:
    """Return which resource decides the number of machines, and what would change that."""
    first, *others = capacity.resources
    message, work = _FIRST[first.name]
    rest = ", ".join(f"{one.machines:,} to {_format_work(one)}" for one in others)
    load = f"{capacity.options.load:.0%}"
    need = f"{_count(first.machines, 'machine')} to {work.format(needed=_format_need(first))}"
    lines = [f"{message}: {need} at {load} load; {rest}."]
    if first.name == "disk" and capacity.options.durability == "answer":
        period = capacity.options.images_per_request / capacity.options.fps
        lines.append(
            f"With --durability interval, only intervals above {period:g} s, the time between two requests of a "
            "stream, write less."
        )
    if capacity.busiest_load > 1:
        lines.append(
            f"The busiest replica would need {capacity.busiest_load:.0%} of what it has: lower --load, or raise "
            "--virtual-nodes."
        )
    return "\n".join(lines)


def compare(capacity: Capacity, plan: SimulationPlan, result: SimulationResult) -> str:
    """Return the simulation beside the predictions of the table for the same streams."""
    steady, options = capacity.steady, capacity.options
    rows = [
        ("requests per second", f"{options.requests_per_second:,.0f}", f"{result.sent / result.seconds:,.0f}"),
        ("answered", f"{result.sent:,}", f"{result.answered:,}"),
        ("refused (429), past their deadline (504)", "0", f"{result.refused:,}, {result.expired:,}"),
        ("latency, p50", _milli(steady.median_seconds), _milli(result.median)),
        ("latency, p95", "", _milli(result.p95)),
        ("latency, p99", "", _milli(result.p99)),
        ("latency, longest", "", _milli(result.longest)),
        ("longest wait for a batch", "", _milli(result.longest_wait)),
        (f"streams that waited more than {plan.starved_seconds:g} s", "0", f"{result.starved:,}"),
        ("images per batch", f"{steady.batch_images:.1f}", f"{result.batch_images:.1f}"),
        ("batch fill", f"{steady.batch_images / capacity.batch_limit:.0%}", f"{result.batch_fill:.0%}"),
        ("accelerators busy", f"{steady.busy:.0%}", f"{result.busy:.0%} (most: {result.busiest:.0%})"),
        ("states written per second", "", f"{result.states_per_second:,.0f}"),
        ("written", _rate(capacity.find_written(options.durability)), _rate(result.written_per_second)),
        ("streams of the busiest replica", f"{capacity.imbalance * capacity.streams_per_replica:,.0f}",
         f"{result.most_streams:,}"),
        ("streams in memory", f"{options.streams:,}", f"{result.resident:,}"),
        ("states read again, evictions", "0, 0", f"{result.loads:,}, {result.evictions:,}"),
        ("moved to one more replica", f"{options.streams * capacity.moved_share:,.0f}", f"{result.moved:,}"),
    ]  # fmt: skip
    title = (
        f"Simulation: {result.streams:,} streams on {_count(result.replicas, 'replica')} for {result.seconds:g} s, "
        f"{plan.arrivals} arrivals, seed {plan.seed}"
    )
    return f"{title}\n\n" + format_table([("", "table", "simulation"), *rows])


def to_values(capacity: Capacity, plan: SimulationPlan | None, result: SimulationResult | None) -> dict[str, Any]:
    """Return every number, for JSON."""
    values = dataclasses.asdict(capacity)
    values |= {
        "machines": capacity.machines,
        "replicas": capacity.replicas,
        "flops_per_second": capacity.flops_per_second,
        "memory_bytes_per_stream": capacity.sized.memory_bytes,
        "written_bytes_per_second": {
            "answer": capacity.find_written("answer"),
            "interval": {f"{every:g}": capacity.find_written("interval", every) for every in _list_intervals(capacity)},
        },
        "moved_share": capacity.moved_share,
        "busiest_load": capacity.busiest_load,
        "breaks_first": capacity.resources[0].name,
        "sentence": describe_bottleneck(capacity),
    }
    if plan is not None and result is not None:
        values["simulation"] = {"plan": dataclasses.asdict(plan), "result": dataclasses.asdict(result)}
    return values


def _list_arithmetic(capacity: Capacity) -> list[Line]:
    sized, options = capacity.sized, capacity.options
    passes = f"{sized.passes.forwards:g} forwards, {sized.passes.backwards:g} backwards"
    step = options.find_step_seconds(capacity.batch_limit, capacity.seconds_per_image)
    return [
        ("a plain forward", f"{sized.forward_flops / 1e9:,.1f} GFLOP", "counted from the sizes of the tower"),
        ("an image in a step", f"{sized.flops / 1e9:,.1f} GFLOP", passes),
        ("images", f"{options.streams * options.fps:,.0f} /s", "streams x fps"),
        ("all of them", f"{capacity.flops_per_second / 1e12:,.0f} TFLOP/s", "images x operations"),
        ("time of an image", f"{1000 * capacity.seconds_per_image:.3f} ms",
         f"{options.gpu_tflops:g} TFLOP/s x {options.utilisation:g} utilisation"),
        ("a full batch", f"{capacity.batch_limit} images", f"{1000 * step:.1f} ms with {options.overhead_ms:g} ms of "
         "fixed time"),
        ("an accelerator", f"{capacity.images_per_accelerator:,.0f} images/s", "in full batches"),
        ("accelerators", f"{capacity.accelerators:,}", f"at {options.load:.0%} load"),
    ]  # fmt: skip


def _list_state(capacity: Capacity) -> list[Line]:
    sized = capacity.sized
    largest = max(sized.tensors.values())
    rows = [key for key, size in sized.tensors.items() if sized.trained and size == largest]
    copies = f"{len(rows)} x {sized.trained:,} numbers ({', '.join(rows)}), class statistics" if rows else ""
    lines = [
        ("in memory", _size(sized.memory_bytes), copies),
        ("as a file", _size(sized.stored_bytes), "what 'lmr serve' stores"),
        ("all streams", _size(capacity.options.streams * sized.stored_bytes), "streams x file"),
    ]
    if sized.moments:
        saved = 1 - sized.small_moments_bytes / sized.stored_bytes
        lines.append(("with 8-bit moments", _size(sized.small_moments_bytes), f"saves {saved:.0%}; not built"))
    extra = "counted" if capacity.options.watch == "on" else "not counted (--watch off)"
    return [*lines, ("the watch adds", _size(sized.watch_bytes), f"at most, its snapshots; {extra}")]


def _list_written(capacity: Capacity) -> list[Line]:
    always = capacity.find_written("answer")
    times = capacity.commit_bytes / capacity.sized.stored_bytes
    lines = [
        ("a commit of one state", _size(capacity.commit_bytes), f"measured: log and place, {times:.2f} x the file"),
        ("durability answer", _rate(always), "every request"),
    ]
    for every in _list_intervals(capacity):
        written = capacity.find_written("interval", every)
        lines.append((f"durability interval, {every:g} s", _rate(written), f"saves {1 - written / always:.0%}"))
    saved = f"saves {1 - 1 / SPARSE:.0%}; not built"
    return [*lines, (f"sparse: every {SPARSE}th step", _rate(always / SPARSE), saved)]


def _list_intervals(capacity: Capacity) -> list[float]:
    own = [capacity.options.interval] if capacity.options.durability == "interval" else []
    return sorted({*INTERVALS, *own})


def _list_network(capacity: Capacity) -> list[Line]:
    options = capacity.options
    images = options.streams * options.fps
    kilobytes = {"images in": options.image_kb, "answers out": options.answer_kb}
    lines = [
        (name, f"{8e-6 * images * size:,.1f} Gbit/s", f"{size:g} kB each, assumed") for name, size in kilobytes.items()
    ]
    states = f"{8e-9 * capacity.states_per_second:,.1f} Gbit/s"
    return [*lines, ("states to stores", states, "each commit, to a store on another machine")]


def _list_replica(capacity: Capacity) -> list[Line]:
    options, steady = capacity.options, capacity.steady
    moved = options.streams * capacity.moved_share
    state = moved * capacity.sized.stored_bytes
    after = "step, commit" if options.durability == "answer" else "step"
    return [
        ("replicas", f"{capacity.replicas:,}", f"{_count(capacity.machines, 'machine')} x {options.gpus_per_machine}"),
        ("streams of one", f"{capacity.streams_per_replica:,.0f}",
         f"the busiest has {capacity.imbalance:.2f} x as many ({options.virtual_nodes} places on the hash ring)"),
        ("streams per step", f"{steady.batch_images / options.images_per_request:.1f}",
         "what comes while the batch before is served"),
        ("a step", f"{1000 * steady.step_seconds:.1f} ms", f"commit of it: {1000 * steady.commit_seconds:.1f} ms"),
        ("median latency", f"{1000 * steady.median_seconds:.0f} ms", f"queue, {after}; without chance"),
        ("one more replica", f"{moved:,.0f} streams", f"change hands, 1/(n+1); {_size(state)} of states to read"),
    ]  # fmt: skip


def _describe_resources(capacity: Capacity) -> str:
    rows = [("resource", "needed", "a machine has", "machines")]
    for one in capacity.resources:
        rows.append((one.name, _format_need(one), f"{one.limit:,.0f} {one.unit}", f"{one.machines:,}"))
    return format_table(rows)


def _format_need(one: Resource) -> str:
    return f"{one.needed:,.0f} {one.unit}"


def _format_work(one: Resource) -> str:
    return _FIRST[one.name][1].format(needed=_format_need(one))


def _list(title: str, lines: Sequence[Line]) -> str:
    left, middle = (max(len(line[k]) for line in lines) for k in (0, 1))
    return "\n".join([title, *(f"  {a:{left}}  {b:>{middle}}  {c}".rstrip() for a, b, c in lines)])


def _size(count: float) -> str:
    for unit, size in (("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}" if count < 1000 * size else f"{count / size:,.0f} {unit}"
    return f"{count:.0f} B"


def _rate(count: float) -> str:
    return f"{_size(count)}/s"


def _milli(seconds: float) -> str:
    return f"{1000 * seconds:,.0f} ms"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


# The figure.


def measure_loads(
    capacity: Capacity, plan: SimulationPlan, loads: Sequence[float] = LOADS, seconds: float = SECONDS
) -> dict[float, list[float]]:
    """Return the p50, p95 and p99 of the simulated latency of one replica at each load, in milliseconds.

    A load is a share of the capacity: that of the accelerator in full batches or of the disk, whichever is slower.
    """
    options = capacity.options
    per_request = options.images_per_request / capacity.images_per_accelerator
    if options.durability == "answer":
        per_request = max(per_request, make_times(capacity).commit(1) - options.commit_ms / 1000)
    rate = options.fps / options.images_per_request
    found = {}
    for load in loads:
        streams = [f"camera-{k}" for k in range(max(1, round(load / per_request / rate)))]
        chance = np.random.default_rng([plan.seed, round(1000 * load)])
        arrivals = draw_arrivals(streams, rate, dataclasses.replace(plan, seconds=seconds), chance)
        log = SimulatedReplica(options.make_settings(len(streams)), make_times(capacity), streams).run(
            arrivals, options.images_per_request
        )
        found[load] = [1000 * float(value) for value in np.percentile(log.latencies, [p for p, _ in _LINES])]
    return found


def draw_loads(found: dict[float, list[float]], title: str) -> Drawing:
    """Return the figure of the latencies over the loads."""

    def draw(axes: Axes) -> str:
        styles = [OURS, *({"color": PALETTE[k], "linestyle": DASHES[k + 1], "marker": "^sD"[k]} for k in range(2))]
        ends = []
        for k, (_, name) in enumerate(_LINES):
            values = [found[load][k] for load in found]
            axes.plot([100 * load for load in found], values, **styles[k])
            ends.append((name, 100 * max(found), values[-1], str(styles[k]["color"])))
        axes.set_xlabel("load of a replica (% of its capacity)")
        axes.set_ylabel("latency (ms)")
        axes.set_ylim(bottom=0)
        axes.set_title(title)
        label_ends(axes, ends)
        return "Simulated latency of one replica over its load."

    return render("scale-latency", "", draw, (4.2, 2.6))
