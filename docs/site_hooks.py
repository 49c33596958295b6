"""Generated pages of the site: those of files outside docs/, and those of the commands from their parsers."""

from __future__ import annotations

import argparse
import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from lmr.cli.parser import COMMANDS, DESCRIPTION, EXAMPLES, build_command

ROOT = Path(__file__).parent.parent
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "lab/README.md": "lab.md",
}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the pages of the commands into the navigation."""
    reference = next(part["Reference"] for part in config.nav or [] if "Reference" in part)
    entry = next(part for part in reference if "Command line" in part)
    entry["Command line"] = ["cli/index.md", *({f"lmr {name}": f"cli/{name}.md"} for name in COMMANDS)]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    made = {page: re.sub(r"\]\((\.\./)?docs/", "](", (ROOT / name).read_text("utf-8")) for name, page in PAGES.items()}
    made["index.md"] = "---\nhide: [navigation]\n---\n\n" + made["index.md"]  # it would be this page alone
    made["cli/index.md"] = describe_commands()
    made |= {f"cli/{name}.md": describe_command(build_command(name)) for name in COMMANDS}
    for path, text in made.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links to files of the repository to their pages, and show titles where GitHub shows file names."""
    folder = posixpath.dirname(page.file.src_uri)

    def change(match: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join("docs", folder, match["path"])).removeprefix("docs/")
        target = files.get_file_from_path(PAGES.get(path, path))
        if target is None:
            return match[0]  # mkdocs will complain
        text = target.page.title if target.page and match["text"].endswith(".md") else match["text"]
        return f"[{text}]({posixpath.relpath(target.src_uri, folder or '.')}{match['anchor']})"

    return re.sub(r"\[(?P<text>[^]\n]+)\]\((?P<path>[^):#]+\.md)(?P<anchor>[^)]*)\)", change, markdown)


def describe_commands() -> str:
    """Return the page of ``lmr --help``."""
    rows = [f"| [`lmr {name}`]({name}.md) | {escape(command.help)} |" for name, command in COMMANDS.items()]
    table = "\n".join(["| command | what it does |", "|---|---|", *rows])
    return f"# Command line\n\n{escape(DESCRIPTION)}\n\n{table}\n\n{fence(EXAMPLES)}\n"


def describe_command(parser: argparse.ArgumentParser) -> str:
    """Return the page of one command: its ``--help``, with a list of its options."""
    parts = [f"# {parser.prog}", *map(describe_paragraph, (parser.description or "").split("\n\n"))]
    usage = parser.format_usage().removeprefix("usage: ").replace("\n" + " " * len("usage: "), "\n")
    parts.append(fence(usage.strip()))
    for group in parser._action_groups:  # argparse has no public way to list them
        actions = [action for action in group._group_actions if action.help != argparse.SUPPRESS]
        if actions:
            parts.append(f"## {(group.title or '').capitalize()}")
            parts += [describe_option(parser, action) for action in actions]
    if parser.epilog:
        parts += ["## More", fence(parser.epilog.removeprefix("examples:\n"))]
    return "\n\n".join(parts) + "\n"


def describe_paragraph(text: str) -> str:
    """Return a paragraph, in a block of its own if its lines are aligned."""
    return fence(text) if "\n  " in text else escape(text)


def describe_option(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    """Return an option and its help as an entry of a definition list."""
    formatter = parser._get_formatter()
    written = formatter._format_action_invocation(action)
    explained = formatter._expand_help(action) if action.help else ""
    return f"<code>{escape(written)}</code>\n:   {escape(explained)}"


def escape(text: str) -> str:
    """Return a text with the special characters of Markdown and HTML escaped."""
    return re.sub(r"[&<>|*_`\[\]\\{}]", lambda match: f"&#{ord(match[0])};", text)


def fence(text: str) -> str:
    """Return a text as a code block."""
    return f"```text\n{text}\n```"
