"""Writes the help texts about configs: a list of all configs, and the fields of one config with values and comments.

The comments are read from the source of the config dataclasses.
"""

import ast
import dataclasses
import functools
import importlib.util
import inspect
import io
import textwrap
import tokenize
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from efficient_attention.commands.config_files import CONFIGS, config_files, has_get_config, make_configs_importable
from efficient_attention.config.run import RunConfig
from efficient_attention.errors import one_line

WIDTH = 100  # characters per line of help
INDENT = '  '
COMMENTS_AT = 44  # column at which comments begin; after a longer field, the comment starts on the next line


def list_configs(folder: Path = CONFIGS) -> str:
    """Returns the list of config files: path, first line of the docstring, and the argument of each config.

    Files are parsed, not run, except to find the values of an argument. A file that fails is listed with what is known.
    """
    make_configs_importable(is_first=True)
    entries = [_describe_config(path, folder) for path in config_files(folder).values()]
    return '\n'.join(['configs (--helpfull --config <file> lists its fields):', *filter(None, entries)])


def list_fields(values: Mapping[str, Any]) -> str:
    """Returns the list of a config's fields: each as a command-line flag, with its value and comment.

    Args:
        values: nested dicts with the fields of `RunConfig`; None = open, set when the run starts.
    """
    lines = ['fields of the config, with their values:']
    for name, comment in field_comments(RunConfig).items():
        group, kind = values[name], typing.get_type_hints(RunConfig)[name]
        if not isinstance(group, Mapping):
            lines += _format_field_lines(f'--config.{name}={_format_value(group)}', comment)
            continue
        lines += ['', *_wrapped(f'{name}: {_first_line(inspect.getdoc(kind))}')]
        for field, beside in field_comments(kind).items():
            lines += _format_field_lines(f'--config.{name}.{field}={_format_value(group[field])}', beside)
    return '\n'.join(lines)


def field_comments(kind: type) -> dict[str, str]:
    """Reads the comment of each dataclass field from the source code; returns {field: comment}, '' without a comment.

    The comment stands at the end of the field's line or on the lines above.
    """
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if dataclasses.is_dataclass(base):
            found |= _comments_of_class(base)
    return found


@functools.cache
def _comments_of_class(kind: type) -> dict[str, str]:
    source = textwrap.dedent(inspect.getsource(kind))
    comments, alone = _comments_by_line(source)
    body = typing.cast(ast.ClassDef, ast.parse(source).body[0]).body
    found = {}
    for statement in body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            lines = range(statement.lineno, (statement.end_lineno or statement.lineno) + 1)
            beside = [comments[line] for line in lines if line in comments]
            found[statement.target.id] = ' '.join(beside or _comment_above(statement.lineno, comments, alone))
    return found


def _comments_by_line(source: str) -> tuple[dict[int, str], set[int]]:
    """Returns the comments of a source text as {line number: comment}, and the numbers of lines with only a comment."""
    comments, alone = {}, set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            comments[token.start[0]] = token.string.lstrip('# ')
            if token.line.lstrip().startswith('#'):
                alone.add(token.start[0])
    return comments, alone


def _comment_above(line: int, comments: Mapping[int, str], alone: set[int]) -> list[str]:
    first = line
    while first - 1 in alone:
        first -= 1
    return [comments[number] for number in range(first, line)]


def _describe_config(path: Path, folder: Path) -> str:
    """Returns the help text about one config file; '' if the file is not a config, and a notice if it is damaged."""
    name = f'{INDENT}{path.relative_to(folder.parent)}'
    try:
        tree = ast.parse(path.read_bytes(), path.name)
    except (OSError, SyntaxError, ValueError) as error:
        return '\n'.join([name, *_wrapped(f'cannot be read: {one_line(error)}', 3 * INDENT)])
    if not has_get_config(tree):
        return ''
    lines = [name, *_wrapped(_first_line(ast.get_docstring(tree)), 3 * INDENT)]
    argument = _get_config_argument(tree)
    if argument:
        known = _accepted_argument_values(path)
        lines += _wrapped(f':{argument}; known: {known}' if known else f':{argument}', 3 * INDENT)
    return '\n'.join(lines)


def _get_config_argument(tree: ast.Module) -> str:
    """Returns the name and default of a config's argument, the text after the colon in --config; '' if the config takes
    no argument."""
    defined = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == 'get_config']
    if not defined:
        return ''
    given = defined[-1].args
    positional = [*given.posonlyargs, *given.args]
    if not positional:
        return given.vararg.arg if given.vararg else ''
    if len(given.defaults) < len(positional):
        return positional[0].arg
    return f'<{positional[0].arg}>, by default :{_default_text(given.defaults[0])}'


def _default_text(default: ast.expr) -> str:
    """Returns the default of a config's argument as a user would type it; a default that is not a string appears as in
    the source code."""
    if isinstance(default, ast.Constant) and isinstance(default.value, str) and default.value:
        return default.value
    return ast.unparse(default)


def _accepted_argument_values(path: Path) -> str:
    """Returns the allowed values of a config's argument, taken from the config's own error message; '' if the message
    lists none.

    The config raises this error for the argument '?'.

    This function runs the config file. After any other error in the file, the values are not known, and it returns ''.
    """
    spec = importlib.util.spec_from_file_location(f'config_{path.stem}', path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        module.get_config('?')
    except (Exception, SystemExit) as error:
        return one_line(error).partition('known: ')[2]
    return ''


def _format_field_lines(field: str, comment: str) -> Iterator[str]:
    """Yields the help lines of one config field: the field on the left, its wrapped comment in a right column."""
    start = f'{INDENT}{field}'
    if not comment:
        yield start
        return
    lines = textwrap.wrap(comment, WIDTH - COMMENTS_AT, break_long_words=False, break_on_hyphens=False)
    if len(start) + 1 < COMMENTS_AT:
        yield start.ljust(COMMENTS_AT) + lines.pop(0)
    else:
        yield from textwrap.wrap(field, WIDTH, initial_indent=INDENT, subsequent_indent=3 * INDENT)
    yield from (' ' * COMMENTS_AT + line for line in lines)


def _format_value(value: Any) -> str:
    """Returns a config value as Python text; None becomes '(open)', because such a value is set when the run starts."""
    return '(open)' if value is None else repr(value)


def _first_line(text: str | None) -> str:
    return (text or '').partition('\n')[0]


def _wrapped(text: str, indent: str = '') -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)
