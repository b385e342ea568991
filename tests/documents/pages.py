"""The pages that a reader has, their fenced blocks, and the commands in these."""

import dataclasses
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / 'README.md', ROOT / 'CONTRIBUTING.md', *sorted((ROOT / 'docs').rglob('*.md'))]
NAMES = [path.relative_to(ROOT).as_posix() for path in PAGES]


@dataclasses.dataclass(frozen=True)
class Block:
    """A fenced block; `line`: that of its first line of text, from 1."""

    page: str
    line: int
    language: str
    text: str


@dataclasses.dataclass(frozen=True)
class Command:
    """A command line of a bash block, without its comment, in one line; `words` as the shell would split it."""

    page: str
    line: int
    text: str

    @property
    def words(self) -> list[str]:
        """The command's name and arguments."""
        return shlex.split(self.text)


def read(page: str) -> str:
    """A page's text."""
    return (ROOT / page).read_text(encoding='utf-8')


def blocks(page: str, text: str) -> Iterator[Block]:
    """The fenced blocks of a page in their order."""
    for found in re.finditer(r'^```([^\n]*)\n(.*?)^```$', text, re.MULTILINE | re.DOTALL):
        yield Block(page, text[: found.start()].count('\n') + 2, found[1].strip(), found[2])


def commands(block: Block) -> Iterator[Command]:
    """The command lines of a bash block: a line that ends in a backslash goes on, `&&` ends a command."""
    line = block.line
    for text in re.split(r'(?<!\\)\n', block.text):
        joined = re.sub(r'\s*\\\n\s*', ' ', re.sub(r'(^|\s+)#(\s.*)?$', '', text)).strip()
        yield from (Command(block.page, line, one.strip()) for one in joined.split('&&') if one.strip())
        line += text.count('\n') + 1


def record_of(block: Block) -> str:
    """What the first line of a bash block says of when and where its figures were measured; '' without a date."""
    first = block.text.partition('\n')[0]
    return first if block.language == 'bash' and re.match(r'# .*\b\d{4}-\d\d-\d\d\b', first) else ''


def all_blocks(*languages: str) -> list[Block]:
    """The blocks of all pages in some languages, in the order of `PAGES`."""
    return [block for name in NAMES for block in blocks(name, read(name)) if block.language in languages]


def all_commands() -> list[Command]:
    """The commands of all pages, each text once, where it comes first."""
    found = [command for block in all_blocks('bash') for command in commands(block)]
    return list({command.text: command for command in reversed(found)}.values())[::-1]
