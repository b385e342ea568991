"""Provides a text corpus that needs no download: English documentation topics and docstrings of the running Python's
standard library.

Nothing is downloaded and no module is executed: the files are parsed. Another Python version has another corpus.
"""

import ast
import functools
import inspect
import os
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path

TOPICS = 'pydoc_data/topics.py'  # the file behind `help('topics')`, with the language reference as plain text
SKIPPED_FOLDERS = frozenset({'test', 'tests', 'idle_test', 'site-packages', 'dist-packages', '__pycache__'})
MIN_WORDS = 8  # Docstrings with fewer words, such as 'Return self.', teach a model nothing.

Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def stdlib_files(root: Path | None = None) -> tuple[Path, ...]:
    """Returns the .py files of the standard library (or below `root`), without tests, sorted by path."""
    root = root or Path(sysconfig.get_path('stdlib'))
    found: list[Path] = []
    for folder, folders, files in os.walk(root):
        # `os.walk` enters only the folders that remain in this list.
        folders[:] = [name for name in folders if name not in SKIPPED_FOLDERS]
        found += [Path(folder, name) for name in files if name.endswith('.py')]
    return tuple(sorted(found))


@functools.lru_cache(maxsize=1)  # Parsing takes seconds, and each split reads all files. The cached texts take 2 MB.
def stdlib_documents(files: tuple[Path, ...]) -> tuple[str, ...]:
    """Returns all documentation topics and docstrings of the files in order, without repeated texts and very short
    texts."""
    texts = (_topics if path.as_posix().endswith(TOPICS) else _docstrings for path in files)
    found = dict.fromkeys(text for read, path in zip(texts, files, strict=True) for text in read(_parse_module(path)))
    return tuple(text for text in found if _word_count(text) >= MIN_WORDS)


def _parse_module(path: Path) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')  # Old files contain invalid escapes, which cause warnings.
        try:
            return ast.parse(path.read_bytes())
        except (SyntaxError, ValueError):  # Some Python versions ship files that are broken on purpose.
            return ast.Module(body=[], type_ignores=[])


def _topics(module: ast.Module) -> Iterator[str]:
    for node in module.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            topics = ast.literal_eval(node.value)
            yield from (inspect.cleandoc(topics[name]) for name in sorted(topics))


def _docstrings(module: ast.Module) -> Iterator[str]:
    return (ast.get_docstring(node) or '' for node in _definitions(module))


def _definitions(node: ast.AST) -> Iterator[Documented]:
    """Yields the definitions (modules, classes and functions) at or below a syntax node, in source order."""
    if isinstance(node, Documented):
        yield node
    for block in (
        'body',
        'handlers',
        'cases',
        'orelse',
        'finalbody',
    ):  # This loop visits only statements, because `ast.walk` takes 5 times as long.
        for inner in getattr(node, block, ()):
            yield from _definitions(inner)


def _word_count(text: str) -> int:
    return sum(any(map(str.isalpha, word)) for word in text.split())
