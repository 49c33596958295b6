"""The completion scripts: bash's is run, all have every command and option."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from lmr.cli import main
from lmr.cli.completion import SHELLS
from lmr.cli.parser import COMMANDS, build_command


def write(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["completion", shell]) == 0
    return capsys.readouterr().out


def complete(script: str, *words: str) -> list[str]:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("bash is not installed")
    quoted = " ".join(f"'{word}'" for word in words)
    begin = f"COMP_WORDS=(lmr {quoted}); COMP_CWORD={len(words)}"
    program = f'{script}\n{begin}; _shtab_lmr lmr "{words[-1]}"; printf "%s\\n" "${{COMPREPLY[@]}}"'
    done = subprocess.run([bash, "-c", program], capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_bash_completes_commands_options_choices_and_files(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    script = write("bash", capsys)
    assert complete(script, "") == [*COMMANDS]
    assert complete(script, "co") == ["completion"]
    assert complete(script, "predict", "--mo") == ["--model"]
    assert complete(script, "predict", "photos", "--res") == ["--resume"]
    types = ["auto", "float32", "bfloat16", "float16", "float64"]
    assert complete(script, "predict", "photos", "--dtype", "") == types
    assert complete(script, "completion", "") == list(SHELLS)
    assert complete(script, "predict", "pho") == ["photos"]


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_knows_every_command_and_option(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    script = write(shell, capsys)
    for name in COMMANDS:
        assert name in script
        if shell == "tcsh":  # shtab has no options of commands there
            continue
        for action in build_command(name)._actions:
            for option in action.option_strings:
                assert (option.lstrip("-") if shell == "fish" else option) in script
            for choice in action.choices or ():
                assert str(choice) in script


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_is_one_that_the_shell_reads(shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    (tmp_path / "script").write_text(write(shell, capsys))
    subprocess.run([shell, "-n", str(tmp_path / "script")], check=True)


def test_an_unknown_shell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["completion", "nu"])
    assert "bash" in capsys.readouterr().err
