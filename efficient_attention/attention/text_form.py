"""The text form of patterns and mechanisms, for configs and the command line.

'causal & (window(128) | global_tokens(2))' is a pattern, and as a mechanism softmax attention over it;
'lsh(bucket_size=64, rounds=4)' and 'favor(features=256, causal=True)' are the other mechanisms. Texts are parsed into
a syntax tree and matched against known names; nothing is evaluated.
"""

import ast
import dataclasses
import inspect
import re
from collections.abc import Callable
from typing import Any

from efficient_attention.attention.mechanism import MECHANISMS, Mechanism, Softmax, model_needs
from efficient_attention.attention.patterns import (
    And,
    Block,
    Causal,
    Full,
    GlobalTokens,
    ListedTiles,
    Or,
    Pattern,
    PerHead,
    RandomTiles,
    Strided,
    Summary,
    Window,
    Without,
)
from efficient_attention.errors import InputError


def longformer(radius: int, tokens: int = 1, dilation: int = 1) -> Pattern:
    """A window and global tokens (Beltagy et al. 2020, arXiv 2004.05150); base: radius 256."""
    return Window(radius, dilation) | GlobalTokens(tokens)


def bigbird(block: int = 64, random: int = 3, seed: int = 0) -> Pattern:
    """Three blocks of window, first and last block global, random blocks (Zaheer et al. 2020, arXiv 2007.14062)."""
    return (
        Block(block, back=1, ahead=1)
        | GlobalTokens(block, last=block)
        | RandomTiles(random, block, seed=seed, near=1, ends=1)
    )


def sparse_fixed(block: int = 128, width: int = 8) -> Pattern:
    """Both fixed heads of the Sparse Transformer merged into one (Child et al. 2019, arXiv 1904.10509, section 4.3)."""
    return Causal() & (Block(block) | Summary(block, width))


def sparse_strided(stride: int = 128) -> Pattern:
    """Both strided heads merged into one: the last `stride` positions and the query, and every stride-th before it."""
    return Causal() & (Window(stride) | Strided(stride))


PATTERNS: dict[str, Callable[..., Pattern]] = {
    'full': Full,
    'causal': Causal,
    'window': Window,
    'block': Block,
    'strided': Strided,
    'summary': Summary,
    'global_tokens': lambda count, last=0: GlobalTokens(count, last),
    'random_tiles': lambda per_row, size, seed=0: RandomTiles(per_row, size, seed),
    'listed_tiles': lambda size, *pairs: ListedTiles(size, pairs),
    'per_head': PerHead,
    'longformer': longformer,
    'bigbird': bigbird,
    'sparse_fixed': sparse_fixed,
    'sparse_strided': sparse_strided,
}
_FILLED_IN = ('layer', 'head', 'keys')  # by `for_layer`, `for_head` and `for_keys`
_SIGNS: dict[type[Pattern], str] = {Without: '-', And: '&', Or: '|'}
_TAKES_PATTERNS = ('per_head',)
_KINDS = {int: 'a whole number', bool: 'True or False', str: 'a name in quotes'}


def parse_pattern(text: str) -> Pattern:
    """The pattern that a text such as 'causal & window(128)' names; `&`, `|` and `-` combine patterns.

    Raises:
        InputError: the text is no expression of known pattern names, `&`, `|`, `-` and whole numbers.
    """
    return _read(text, _build)


def parse_mechanism(text: str) -> Mechanism:
    """The mechanism that a config's text names: a pattern's text means softmax attention over that pattern.

    Raises:
        InputError: an unknown name; lists the known ones.
    """
    return _read(text, _build_mechanism)


def _read(text: str, build: Callable[[ast.expr, str], Any]) -> Any:
    try:
        return build(_parse(text), text)
    except (RecursionError, MemoryError):  # from Python's own parser, or from ours
        raise InputError(f'attention {text[:40]!r}...: nested too deeply') from None


def _build_mechanism(node: ast.expr, text: str) -> Mechanism:
    name = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else getattr(node, 'id', '')
    if name not in MECHANISMS:
        return Softmax(_build(node, text))
    arguments, options = _arguments(node, text, _constant) if isinstance(node, ast.Call) else ([], {})
    make = MECHANISMS[name]
    for field, value in [*zip(dataclasses.fields(make), arguments, strict=False), *_named_fields(make, options)]:
        if type(value) is not type(field.default):
            kind = _KINDS[type(field.default)]
            raise InputError(f'attention {text!r}: {name} {field.name} is {value!r}; it must be {kind}')
    return _call(name, make, arguments, options, text)


def _named_fields(make: type[Mechanism], options: dict[str, Any]) -> list[tuple[Any, Any]]:
    return [(field, options[field.name]) for field in dataclasses.fields(make) if field.name in options]


def pattern_text(pattern: Pattern) -> str:
    """A pattern as one writes it, such as 'causal & window(128)'; without what a layer, head or length fills in."""
    if sign := _SIGNS.get(type(pattern)):
        left, right = (
            f'({pattern_text(part)})' if needs_brackets else pattern_text(part)
            for part, needs_brackets in _operands(pattern)
        )
        return f'{left} {sign} {right}'
    name = re.sub('(?<=[a-z])(?=[A-Z])', '_', type(pattern).__name__).lower()
    values = [pattern_text(part) for part in pattern.parts()] or _written_fields(pattern)
    return f'{name}({", ".join(values)})' if values else name


def _operands(pattern: Pattern) -> list[tuple[Pattern, bool]]:
    """Both parts of a combination, and whether each stands in brackets: signs of one kind are read from the left."""
    left, right = pattern.parts()
    return [(left, type(left) in _SIGNS and type(left) is not type(pattern)), (right, type(right) in _SIGNS)]


def _written_fields(pattern: Pattern) -> list[str]:
    """The fields of a pattern that are no defaults: those without a default as they are, the others by name."""
    written: list[str] = []
    for field in dataclasses.fields(pattern):
        value = getattr(pattern, field.name)
        if field.default is dataclasses.MISSING:
            written += map(str, value) if isinstance(value, tuple) else [str(value)]
        elif field.name not in _FILLED_IN and value != field.default:
            written.append(f'{field.name}={value}')
    return written


def _parse(text: str) -> ast.expr:
    if not isinstance(text, str) or not text.strip():
        raise InputError(f"attention is {text!r}; it must be a text such as 'causal & window(128)'")
    try:
        return ast.parse(text.strip(), mode='eval').body
    except (SyntaxError, ValueError) as error:
        column = getattr(error, 'offset', None)
        raise InputError(f'attention {text!r} cannot be read' + (f' at column {column}' if column else '')) from None


def _build(node: ast.expr, text: str) -> Pattern:
    match node:
        case ast.BinOp(left=left, op=ast.BitAnd(), right=right):
            return _build(left, text) & _build(right, text)
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _build(left, text) | _build(right, text)
        case ast.BinOp(left=left, op=ast.Sub(), right=right):
            return _build(left, text) - _build(right, text)
        case ast.Name(id=name):
            return _call(name, _known(name, text), [], {}, text)
        case ast.Call(func=ast.Name(id=name)):
            make = _known(name, text)
            read = _build if name in _TAKES_PATTERNS else _whole_number
            return _call(name, make, *_arguments(node, text, read), text)
    raise InputError(f'attention {text!r}: {ast.unparse(node)!r} is neither a pattern nor a combination of patterns')


def _known(name: str, text: str) -> Callable[..., Pattern]:
    if name in MECHANISMS:
        raise InputError(
            f'attention {text!r}: {name} is a mechanism of its own and no pattern, nor part of one; write it alone, '
            f'with {model_needs(MECHANISMS[name]())}'
        )
    if name not in PATTERNS:
        known = ', '.join(sorted((*PATTERNS, *MECHANISMS)))
        raise InputError(f'attention {text!r}: unknown name {name!r}; known: {known}')
    return PATTERNS[name]


def _arguments(node: ast.Call, text: str, read: Callable[[ast.expr, str], Any]) -> tuple[list, dict[str, Any]]:
    names = [option.arg or '**' for option in node.keywords]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f'attention {text!r}: {name} is given twice')
    options = {option.arg or '**': read(option.value, text) for option in node.keywords}
    return [read(argument, text) for argument in node.args], options


def _call(name: str, make: Callable[..., Any], arguments: list, options: dict[str, Any], text: str) -> Any:
    try:
        inspect.signature(make).bind(*arguments, **options)
    except TypeError:
        raise InputError(f'attention {text!r}: {name} takes ({_parameters(make)})') from None
    try:
        return make(*arguments, **options)
    except InputError as error:
        raise InputError(f'attention {text!r}: {error}') from None


def _parameters(make: Callable[..., Any]) -> str:
    """What a name takes, as one writes it: 'radius, dilation=1'."""
    parameters = inspect.signature(make).parameters.values()
    return ', '.join(
        f'{own.name}, ...'
        if own.kind is own.VAR_POSITIONAL
        else own.name
        if own.default is own.empty
        else f'{own.name}={own.default!r}'
        for own in parameters
    )


def _value(node: ast.expr) -> Any:
    """The constant that a node is, a sign before a number included; None for anything else."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and type(_value(node.operand)) is int:
        return -_value(node.operand)
    return node.value if isinstance(node, ast.Constant) else None


def _whole_number(node: ast.expr, text: str) -> int:
    if type(_value(node)) is int:
        return _value(node)
    raise InputError(f'attention {text!r}: {ast.unparse(node)!r} is not a whole number')


def _constant(node: ast.expr, text: str) -> int | bool | str:
    if isinstance(_value(node), int | bool | str):
        return _value(node)
    raise InputError(f'attention {text!r}: {ast.unparse(node)!r} is neither a whole number, True, False nor a name')
