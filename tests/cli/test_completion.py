"""The completion scripts: bash's is run, all have every command and option."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from lmr.cli import main
from lmr.cli.completion import SHELLS, list_options
from lmr.cli.parser import COMMANDS
from lmr.data.names import ORDERS


def write(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["completion", shell]) == 0
    return capsys.readouterr().out


def complete(script: str, *words: str) -> list[str]:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("bash is not installed")
    quoted = " ".join(f"'{word}'" for word in words)
    program = f'{script}\nCOMP_WORDS=(lmr {quoted}); COMP_CWORD={len(words)}; _lmr; printf "%s\\n" "${{COMPREPLY[@]}}"'
    done = subprocess.run([bash, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.split()


def test_bash_completes_commands_options_and_choices(capsys: pytest.CaptureFixture[str]) -> None:
    script = write("bash", capsys)
    assert complete(script, "") == [*COMMANDS, "--help", "--version"]
    assert complete(script, "co") == ["cost", "cost-text", "cost-ray", "corruptions", "completion"]
    assert complete(script, "predict", "--mo") == ["--model"]
    assert complete(script, "predict", "photos", "--re") == ["--resume"]
    assert complete(script, "bench", "pocket", "--order", "") == list(ORDERS)
    assert complete(script, "completion", "") == list(SHELLS)
    assert complete(script, "predict", "pho") == []  # bash itself offers files
    assert "--measure" not in script  # for the program alone


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_knows_every_command_and_option(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    script = write(shell, capsys)
    for command, options in list_options().items():
        assert command in script
        for option, choices in options.items():
            assert (option.removeprefix("--") if shell == "fish" else option) in script
            assert " ".join(choices) in script


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_is_one_that_the_shell_reads(shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    (tmp_path / "script").write_text(write(shell, capsys))
    subprocess.run([shell, "-n", str(tmp_path / "script")], check=True)


def test_lines_of_help_can_be_quoted() -> None:
    assert not [name for name, command in COMMANDS.items() if "'" in command.help]


def test_an_unknown_shell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["completion", "tcsh"])
    assert "bash" in capsys.readouterr().err
