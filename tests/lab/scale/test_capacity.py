"""The calculation: each number follows from those before it."""

from __future__ import annotations

import math
from typing import Any

import pytest

from lab.scale.capacity import Capacity, count_commits, measure_commit_bytes, predict_steady_state, work_out
from lab.scale.options import ScaleOptions

MILLION: dict[str, Any] = {"streams": 1_000_000, "fps": 0.2, "model": "ViT-B-16", "gpu_tflops": 400.0}


@pytest.fixture(scope="module")
def million() -> Capacity:
    return work_out(ScaleOptions(**MILLION))


def test_accelerators_follow_from_the_arithmetic(million: Capacity) -> None:
    sized, options = million.sized, million.options
    assert million.flops_per_second == 200_000 * sized.flops
    assert million.seconds_per_image == sized.flops / 160e12
    step = 0.010 + 64 * million.seconds_per_image
    assert million.batch_limit == 64
    assert million.images_per_accelerator == pytest.approx(64 / step)
    assert million.accelerators == math.ceil(200_000 / (options.load * 64 / step))


def test_machines_are_those_of_the_resource_that_binds(million: Capacity) -> None:
    needs = [one.needed / one.limit for one in million.resources]
    assert needs == sorted(needs, reverse=True)
    assert million.resources[0].name == "disk"
    assert million.machines == math.ceil(needs[0] / 0.7) == max(one.machines for one in million.resources)
    assert million.replicas == 8 * million.machines
    assert million.moved_share == 1 / (million.replicas + 1)
    named = {one.name: one for one in million.resources}
    assert million.states_per_second == 200_000 * million.sized.stored_bytes
    assert named["network"].needed == pytest.approx(8e-9 * (200_000 * 50e3 + million.states_per_second))
    assert named["memory"].needed == pytest.approx(1e6 * million.sized.memory_bytes / 1e9)
    assert named["disk"].needed == pytest.approx(million.find_written("answer") / 1e6)


def test_intervals_save_only_above_the_time_between_requests(million: Capacity) -> None:
    always = million.find_written("answer")
    assert always == 200_000 * million.commit_bytes
    assert million.find_written("interval", 0.0) == million.find_written("interval", 5.0) == always
    assert million.find_written("interval", 50.0) == pytest.approx(always / 10)
    eight = ScaleOptions(**MILLION, images_per_request=8)
    assert count_commits(eight, "answer") == 25_000
    assert count_commits(eight, "interval", 40.0) == 25_000


@pytest.mark.parametrize(
    ("values", "first"),
    [
        ({"durability": "interval", "interval": 60.0}, "accelerators"),
        ({"durability": "interval", "interval": 60.0, "image_kb": 1e4}, "network"),
        ({"durability": "interval", "interval": 60.0, "memory_gb": 0.1}, "memory"),
        ({"durability": "interval", "interval": 60.0, "memory_gb": 5.0, "watch": "on"}, "memory"),
        ({"durability": "interval", "interval": 60.0, "memory_gb": 5.0, "watch": "off"}, "accelerators"),
    ],
)
def test_every_resource_can_bind(values: dict[str, Any], first: str) -> None:
    options = ScaleOptions(**MILLION | values, virtual_nodes=2)  # few places on the ring, which are quick to hash
    assert work_out(options).resources[0].name == first


def test_steady_state_is_a_balance() -> None:
    """Where the accelerator is never idle, a batch is what arrives during a step."""
    options = ScaleOptions(**MILLION, durability="interval")
    busy = predict_steady_state(options, 0.001, 64, 1e6, 500.0)
    assert busy.batch_images == pytest.approx(500 * (0.010 + 0.001 * busy.batch_images))
    assert busy.busy == pytest.approx(1)
    assert busy.median_seconds == pytest.approx(1.5 * busy.step_seconds)
    idle = predict_steady_state(options, 0.001, 64, 1e6, 0.01)
    assert idle.batch_images == pytest.approx(1, rel=0.01)
    assert idle.median_seconds == pytest.approx(0.005 + 0.011, rel=0.01)
    over = predict_steady_state(options, 0.001, 64, 1e6, 5000.0)
    assert (over.batch_images, over.busy) == (64, 1)
    slow_disk = predict_steady_state(ScaleOptions(**MILLION, disk_mb_s=80.0), 0.001, 64, 1e6, 5.0)
    assert slow_disk.commit_seconds > slow_disk.step_seconds


def test_a_single_stream_has_a_plan() -> None:
    one = work_out(ScaleOptions(streams=1, fps=0.1, model="pocket", gpu_tflops=1.0, classes=2))
    assert (one.machines, one.replicas, one.imbalance) == (1, 1, pytest.approx(1))


@pytest.mark.parametrize("size", [20_000, 400_000])
def test_a_state_is_written_to_the_log_and_to_its_place(size: int) -> None:
    written = measure_commit_bytes(size)
    assert 2 * size < written < 2 * 1.03 * size + 20_000
    assert measure_commit_bytes(size) == written
