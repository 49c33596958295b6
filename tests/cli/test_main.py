from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lmr.cli import main
from lmr.version import __version__


def test_version_and_help_of_the_program() -> None:
    done = subprocess.run([sys.executable, "-m", "lmr", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"lmr {__version__}\n"


@pytest.mark.parametrize("command", [[], ["demo"], ["predict"], ["doctor"], ["cost"], ["list"]])
def test_help_teaches_with_an_example(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main([*command, "--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    assert "example" in text
    assert f"  lmr {' '.join(command)}".rstrip() in text


def test_list_prints_the_methods(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    assert "Local Margin Restoration" in capsys.readouterr().out
    assert main(["list", "lmr", "tent"]) == 0
    shown = capsys.readouterr().out
    assert "  lmr(lr=0.001" in shown
    assert "  tent(lr=" in shown
    assert main(["list", "tnt"]) == 2
    assert "Did you mean 'tent'?" in capsys.readouterr().err


def test_wrong_demo_gets_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--severity", "9"]) == 2
    assert capsys.readouterr().err.startswith("lmr: Expected at least one image")


def test_unknown_command_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["predit"])
    assert stop.value.code == 2
    assert "predict" in capsys.readouterr().err


def test_help_names_every_kind_of_model(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("predict", "doctor"):
        with pytest.raises(SystemExit):
            main([command, "--help"])
        text = " ".join(capsys.readouterr().out.split())
        for word in ("hub name", "a folder of weights", ".safetensors", "--architecture", "--dtype", "--prompts"):
            assert word in text, (command, word)


@pytest.mark.parametrize(
    "words", [["--dtype", "int8"], ["--memory", "thin"], ["--template", "a {}", "--prompts", "b.json"]]
)
def test_wrong_model_options_are_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["doctor", "pocket", *words])
    assert stop.value.code == 2
    assert words[-2] in capsys.readouterr().err


# Benchmarks: the commands are wired; what they do is tested beside the functions they call.


def test_plans_and_sets_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--list"]) == 0
    assert "cifar10-c" in capsys.readouterr().out
    assert main(["fetch"]) == 0
    assert "imagenet-v2" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["fetch", "cifar11"], "There is no set 'cifar11' to fetch. Did you mean"),
        (["bench", "pockets"], "pocket"),
        (["bench"], "Say what to run"),
        (["report", "nowhere"], "nowhere"),
        (["reproduce", "table-9"], "table-9"),
    ],
)
def test_benchmark_commands_say_what_is_wrong(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    assert sentence in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
