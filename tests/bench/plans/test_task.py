from __future__ import annotations

import itertools
import shlex
from pathlib import Path
from typing import Any

import pytest

import lmr
from lmr.bench.plans.plan import choose_plans, parse_plan, read_plan
from lmr.bench.plans.task import Task, list_tasks, make_latin_square
from lmr.cli.bench import read_overrides
from lmr.cli.parser import parse
from lmr.data.names import read_list
from set_maker import write_image


def test_plans_together_run_nothing_twice() -> None:
    """LMR with its defaults is in both plans, under one hash."""
    changes = {"corruptions": ["fog", "frost"], "images": 2000, "seeds": [1], "forgetting": 0}
    one, two = read_plan("photo-quick", changes | {"methods": ["tent", "lmr"]}), read_plan("photo-frontier", changes)
    assert len(list_tasks([one, two])) == len(list_tasks([two]))


def make_tasks(**table: Any) -> list[Task]:
    given = {
        "methods": "lmr",
        "datasets": "photo-c",
        "backbones": "photo",
        "corruptions": "fog",
        "images": 10,
    } | table
    return list_tasks([parse_plan("test", "", Path(), given)])


@pytest.mark.parametrize(
    "change",
    [
        {"methods": "lmr(lr=2e-3)"}, {"datasets": "photo", "corruptions": "clean"}, {"corruptions": "snow"},
        {"severities": 4}, {"prompts": "a picture of a {}."}, {"batch_sizes": 32}, {"seeds": 2}, {"images": 11},
        {"order": "file"}, {"forgetting": 5}, {"recovery": True}, {"order": "skew"}, {"onset": 3},
    ],
)  # fmt: skip
def test_hash_changes_with_everything_that_decides_the_numbers(change: dict[str, Any]) -> None:
    (before,), (after,) = make_tasks(), make_tasks(**change)
    assert before.run != after.run
    assert len(after.run) == 16


def test_hash_does_not_change_with_names() -> None:
    plain = make_tasks()
    assert plain[0].run == make_tasks(methods={"Ours": "lmr(lr=1e-3)"}, preset="cifar100-c")[0].run
    assert plain[0].run == make_tasks(batch_sizes=64)[0].run


@pytest.mark.parametrize(
    "table",
    [
        {},
        {"methods": "tent(optimizer='sgd')", "seeds": 3, "severities": 2, "batch_sizes": 7},
        {"corruptions": ["fog", "snow"], "reset": "never", "forgetting": 5},
        {"corruptions": ["fog", "snow"], "mix": True, "order": "dirichlet", "concentration": 0.5},
        {"prompts": [["a photo of a {}.", "a picture of a {}."]], "recovery": True},
        {"order": "classes", "corruptions": "clean"},
        {"order": "bursts", "images": 60},
        {"order": "shift", "seeds": 2},
        {"order": "skew", "dominant": "1>3", "majority": 0.6},
        {"order": "skew", "tail": 0.5, "onset": 4},
        {"onset": 3},
        {"corruptions": ["fog", "snow"], "reset": "never", "rounds": 3},
        {"reset": "never", "rounds": 2},
        {"order": "haul", "corruptions": "clean", "severities": 3, "datasets": "photo-c", "images": 70},
    ],
)
def test_command_of_a_task_makes_it_again(table: dict[str, Any]) -> None:
    (task,) = make_tasks(**table)
    words = shlex.split(task.command)
    assert words[:2] == ["lmr", "bench"]
    options = parse(words[1:])
    (again,) = list_tasks(choose_plans(options.plans, read_overrides(options)))
    assert again.run == task.run


def test_a_row_can_say_what_its_order_depends_on() -> None:
    (strong,) = make_tasks(order="dirichlet", concentration=0.05)
    assert strong.order_facts == {"kind": "dirichlet", "concentration": "0.05", "hash": strong.order_hash}
    (rounds,) = make_tasks(corruptions=["fog", "snow"], reset="never", rounds=3)
    assert rounds.order_facts == {"kind": "shuffle", "rounds": "3 rounds", "hash": rounds.order_hash}
    assert (rounds.domain, rounds.images) == ("continual", 60)
    first, _ = make_tasks(order="skew", dominant=[1, "3+4>2"], onset=3)
    assert first.order_facts == {
        "kind": "skew", "majority": "0.8", "dominant": "1", "onset": "3", "hash": first.order_hash,
    }  # fmt: skip
    assert first.order_text == "skew majority 0.8 dominant 1 onset 3"
    assert (first.domain, first.images) == ("fog", 10)
    (tail,) = make_tasks(order="skew", tail=0.6)
    assert tail.order_text == "skew tail 0.6"
    (haul,) = make_tasks(order="haul", corruptions="clean", severities=4)
    assert (haul.domain, haul.severity, haul.order_facts["kind"]) == ("blend", 4, "haul")
    (plain,) = make_tasks()
    assert plain.order_facts == {"kind": "shuffle", "hash": plain.order_hash}


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ({"concentration": 0.5}, "The order 'shuffle' has no concentration; .*order = 'dirichlet'"),
        ({"order": "skew", "majority": 0.5, "tail": 0.5}, "a majority or a long tail, not both"),
        ({"order": "skew", "majority": 1}, "below 1 for majority"),
        ({"order": "skew", "dominant": [1, 1]}, "none twice in dominant"),
        ({"order": "skew", "dominant": "one"}, "Cannot read the dominant classes 'one'"),
        ({"order": "skew", "dominant": "3+3"}, "each dominant class once"),
        ({"order": "skew", "dominant": 100}, "no images of the dominant class 100; .* 0 to 9"),
        ({"rounds": 0}, "from 1 for rounds"),
        ({"device": "foo"}, "There is no device 'foo'"),
        ({"datasets": "photo", "corruptions": "clean", "forgetting": 5}, "remove 'forgetting' there"),
    ],
)
def test_what_would_change_nothing_or_cannot_be_is_refused(table: dict[str, Any], sentence: str) -> None:
    with pytest.raises(lmr.LmrError, match=sentence):
        make_tasks(**table)


def test_another_order_has_no_use_for_what_belongs_to_the_plans_own() -> None:
    text = "methods = 'lmr'\ndatasets = 'photo-c'\norder = 'dirichlet'\nconcentration = 0.5"
    (part,) = parse_plan("test", text, Path(), {"order": "shuffle"}).parts
    assert (part.order, part.concentration) == ("shuffle", 0.1)
    (part,) = parse_plan("test", text, Path(), {"order": "dirichlet"}).parts
    assert (part.order, part.concentration) == ("dirichlet", 0.5)
    with pytest.raises(lmr.LmrError, match="has no tail"):
        parse_plan("test", text, Path(), {"tail": 0.5})


def test_everything_is_combined_with_everything() -> None:
    tasks = make_tasks(
        methods=["lmr", "tent"], corruptions=["fog", "snow"], severities=[3, 5], seeds=[1, 2], batch_sizes=[8, 64],
        prompts=["a photo of a {}.", "a picture of a {}."],
    )  # fmt: skip
    assert len(tasks) == len({task.run for task in tasks}) == 2**6
    assert len(make_tasks(corruptions=["fog", "clean"], severities=[3, 5])) == 3  # clean has no severity


def test_auto_takes_the_values_for_the_classes_of_each_dataset(tmp_path: Path) -> None:
    """The row of a run shows the values that were used, and the run is that of these values."""
    for name in read_list("cifar100"):
        write_image(tmp_path / name / "0.png", 9)
    given = {"datasets": [f"folder:{tmp_path}", "photo"], "corruptions": "clean", "backbones": "photo"}
    few, many = (
        list_tasks([parse_plan("p", "", Path(), given | {"methods": f"lmr(preset={preset!r})"})])
        for preset in ("cifar10-c", "cifar100-c")
    )
    chosen = list_tasks([parse_plan("p", "", Path(), given | {"methods": 'lmr(preset="auto")'})])
    by_preset = list_tasks([parse_plan("p", "", Path(), given | {"methods": "lmr", "preset": "auto"})])
    assert [task.run for task in chosen] == [task.run for task in by_preset] == [many[0].run, few[1].run]
    assert [task.entry.spec for task in chosen] == [many[0].entry.spec, few[1].entry.spec]
    assert chosen[0].command == many[0].command


@pytest.mark.parametrize("count", [3, 6])
def test_latin_square_has_every_domain_once_at_every_place(count: int) -> None:
    square = make_latin_square([str(k) for k in range(count)])
    for lines in (square, list(zip(*square, strict=True))):
        assert len(lines) == count
        assert all(sorted(line) == [str(k) for k in range(count)] for line in lines)
    if count % 2 == 0:
        pairs = [pair for line in square for pair in itertools.pairwise(line)]
        assert len(set(pairs)) == len(pairs) == count * (count - 1)


def test_latin_square_of_domains_is_a_stream_for_each_order() -> None:
    domains = ["fog", "frost", "snow"]
    tasks = make_tasks(corruptions=domains, reset="never", latin=True)
    assert [task.domains for task in tasks] == make_latin_square(domains)
    assert len({task.run for task in tasks}) == 3
    assert "--corruptions fog frost snow" in tasks[0].command
    assert "--set reset=never" in tasks[0].command
