"""``lmr completion``: shell completion of commands, options and their choices."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

DESCRIPTION = "Print a completion script for a shell: commands, options, and the choices of options."

EXAMPLES = """\
examples:
  bash, for this terminal:       eval "$(lmr completion bash)"
  bash, for good:                lmr completion bash >> ~/.bashrc
  zsh, in a folder of $fpath:    lmr completion zsh > ~/.zfunc/_lmr
  fish:                          lmr completion fish > ~/.config/fish/completions/lmr.fish"""

SHELLS = ("bash", "zsh", "fish")

Options = Mapping[str, tuple[str, ...]]  # of a command: option -> its choices; "" -> those of the positional argument


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of ``lmr completion``."""
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help=f"one of: {', '.join(SHELLS)}")


def run(options: argparse.Namespace) -> None:
    """Print the script."""
    write = {"bash": write_bash, "zsh": write_zsh, "fish": write_fish}[options.shell]
    print(write(list_options()))


def list_options() -> dict[str, Options]:
    """Every command with its options, as the parser has them."""
    from lmr.cli.parser import COMMANDS, build_command

    return {name: _list_actions(build_command(name)) for name in COMMANDS}


def _list_actions(parser: argparse.ArgumentParser) -> Options:
    found: dict[str, tuple[str, ...]] = {}
    for action in parser._actions:  # argparse has no public way to list them
        if action.help != argparse.SUPPRESS:
            choices = tuple(map(str, action.choices or ()))
            found |= {name: choices for name in action.option_strings if name.startswith("--")}
            if not action.option_strings and choices:
                found[""] = choices
    return found


def _write_cases(commands: Mapping[str, Options], indent: str, template: str) -> str:
    """The branches of a shell's ``case "COMMAND PREVIOUS-WORD"`` that offer choices."""
    lines = []
    for name, options in commands.items():
        for option, choices in options.items():
            if choices:
                pattern = f'"{name} {option or name}"'
                lines.append(f"{indent}{pattern}) {template.format(' '.join(choices))} ;;")
    return "\n".join(lines)


def _write_options(commands: Mapping[str, Options], indent: str, template: str) -> str:
    """The branches of a shell's ``case COMMAND`` that offer options."""
    offered = ((name, " ".join(filter(None, options))) for name, options in commands.items())
    return "\n".join(f"{indent}{name}) {template.format(words)} ;;" for name, words in offered)


def write_bash(commands: Mapping[str, Options]) -> str:
    """A function for ``complete``; where it offers nothing, bash completes file names."""
    return f"""\
_lmr() {{
    local current="${{COMP_WORDS[COMP_CWORD]}}" previous="${{COMP_WORDS[COMP_CWORD-1]}}" offered=""
    if [ "$COMP_CWORD" -eq 1 ]; then
        offered="{" ".join(commands)} --help --version"
    else
        case "${{COMP_WORDS[1]}} $previous" in
{_write_cases(commands, " " * 12, 'offered="{}"')}
        esac
        case "$current" in -*)
            case "${{COMP_WORDS[1]}}" in
{_write_options(commands, " " * 16, 'offered="{}"')}
            esac
        esac
    fi
    COMPREPLY=($(compgen -W "$offered" -- "$current"))
}}
complete -o default -F _lmr lmr"""


def write_zsh(commands: Mapping[str, Options]) -> str:
    """A function for ``compdef``; it serves as a file of ``fpath`` and with ``eval``."""
    return f"""\
#compdef lmr
_lmr() {{
    if (( CURRENT == 2 )); then
        compadd -- {" ".join(commands)} --help --version
        return
    fi
    case "${{words[2]}} ${{words[CURRENT-1]}}" in
{_write_cases(commands, " " * 8, "compadd -- {}; return")}
    esac
    if [[ "${{words[CURRENT]}}" != -* ]]; then
        _files
        return
    fi
    case "${{words[2]}}" in
{_write_options(commands, " " * 8, "compadd -- {}")}
    esac
}}
if [[ "${{funcstack[1]}}" == _lmr ]]; then _lmr "$@"; else compdef _lmr lmr; fi"""


def write_fish(commands: Mapping[str, Options]) -> str:
    """One ``complete`` line per command and option."""
    from lmr.cli.parser import COMMANDS

    lines = [f"complete -c lmr -n __fish_use_subcommand -f -a {name} -d '{COMMANDS[name].help}'" for name in commands]
    for name, options in commands.items():
        for option, choices in options.items():
            offered = f" -x -a '{' '.join(choices)}'" if choices else ""
            named = f" -l {option.removeprefix('--')}" if option else ""
            lines.append(f"complete -c lmr -n '__fish_seen_subcommand_from {name}'{named}{offered}")
    return "\n".join(lines)
