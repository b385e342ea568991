"""Lists the documentation pages, their fenced blocks, and the commands in these blocks.

`make docs` writes the pages in docs/generated/ and runs the tutorials. The first page, docs/index.md, only lists pages.
"""

import dataclasses
import functools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from efficient_attention.programs.dispatch import COMMAND

ROOT = Path(__file__).resolve().parents[2]
GUIDES = [path for path in sorted((ROOT / 'docs').glob('*.md')) if path.name != 'index.md']
PAGES = [ROOT / 'README.md', ROOT / 'CONTRIBUTING.md', *GUIDES, *sorted((ROOT / 'docs' / 'results').glob('*.md'))]
TUTORIALS = sorted((ROOT / 'docs' / 'tutorials').glob('*.md'))
NAMES = [path.relative_to(ROOT).as_posix() for path in PAGES]


@dataclasses.dataclass(frozen=True)
class Block:
    """A fenced block; `line` is the number of its first line of text, counted from 1."""

    page: str
    line: int
    language: str
    text: str


@dataclasses.dataclass(frozen=True)
class Command:
    """A command of a bash block without its comment, joined into one line; `words` splits it as a shell does.

    Result pages show commands as they were run, some of them with a script that starts a program of the installed
    command. `installed` is the same text with the installed command.
    """

    page: str
    line: int
    text: str

    @property
    def words(self) -> list[str]:
        """Returns the command's name and arguments."""
        return shlex.split(self.text)

    @property
    def installed(self) -> str:
        """Returns the text with the installed command in place of a script that starts the same program."""
        text = re.sub(rf'\S+/bin/{COMMAND}\b', COMMAND, self.text)
        return re.sub(
            r'(?:\S+/)?python (\S+\.py)\b',
            lambda found: (
                f'{COMMAND} {programs_of_scripts()[found[1]]}' if found[1] in programs_of_scripts() else found[0]
            ),
            text,
        )

    @property
    def program(self) -> str:
        """Returns the subcommand of the installed command that is started; '' for other commands."""
        first, *rest = shlex.split(self.installed)
        return rest[0] if first == COMMAND and rest else ''


@functools.cache
def programs_of_scripts() -> dict[str, str]:
    """Returns {script: subcommand that it starts}, such as {'train.py': 'train'}."""
    paths = [ROOT / 'train.py', ROOT / 'eval.py', *sorted((ROOT / 'scripts').glob('*.py'))]
    found = {
        path.relative_to(ROOT).as_posix(): re.findall(r"run_program\('([\w-]+)'\)", path.read_text(encoding='utf-8'))
        for path in paths
    }
    return {script: names[0] for script, names in found.items() if names}


def read(page: str) -> str:
    """Returns a page's text."""
    return (ROOT / page).read_text(encoding='utf-8')


def blocks(page: str, text: str) -> Iterator[Block]:
    """Yields the fenced blocks of a page in their order."""
    for found in re.finditer(r'^```([^\n]*)\n(.*?)^```$', text, re.MULTILINE | re.DOTALL):
        yield Block(page, text[: found.start()].count('\n') + 2, found[1].strip(), found[2])


def commands(block: Block) -> Iterator[Command]:
    """Yields the commands of a bash block: a backslash at a line's end continues the command, `&&` ends it."""
    line = block.line
    for text in re.split(r'(?<!\\)\n', block.text):
        joined = re.sub(r'\s*\\\n\s*', ' ', re.sub(r'(^|\s+)#(\s.*)?$', '', text)).strip()
        yield from (Command(block.page, line, one.strip()) for one in joined.split('&&') if one.strip())
        line += text.count('\n') + 1


def record_of(block: Block) -> str:
    """Returns a bash block's first line if it is a comment with the date of a measurement; else ''."""
    first = block.text.partition('\n')[0]
    return first if block.language == 'bash' and re.match(r'# .*\b\d{4}-\d\d-\d\d\b', first) else ''


def all_blocks(*languages: str) -> list[Block]:
    """Returns the blocks of all pages in some languages, in the order of `PAGES`."""
    return [block for name in NAMES for block in blocks(name, read(name)) if block.language in languages]


def all_commands() -> list[Command]:
    """Returns the commands of all pages; a command that occurs several times is listed once, at its first place."""
    found = [command for block in all_blocks('bash') for command in commands(block)]
    return list({command.installed: command for command in reversed(found)}.values())[::-1]
