"""The text form of patterns and mechanisms, for configs and the command line.

'causal & (window(128) | global_tokens(2))' is a pattern, and as a mechanism softmax attention over it;
'sparsemax(causal & window(64))' is another distribution over a pattern's keys, and 'lsh(bucket_size=64, rounds=4)' and
'favor(features=256, causal=True)' are mechanisms without patterns. Arguments are whole numbers, but for those that are
numbers with a point by default: 'sinkhorn(64, 32, temperature=0.5)'. Texts are parsed into a syntax tree and matched
against known names; nothing is evaluated.
"""

import ast
import dataclasses
import difflib
import inspect
import warnings
from collections.abc import Callable
from typing import Any

from efficient_attention.attention.logits.definition import OverPattern
from efficient_attention.attention.mechanism import CAUSAL_OPTION, Mechanism
from efficient_attention.attention.patterns import (
    Block,
    Causal,
    Full,
    GlobalTokens,
    ListedTiles,
    Pattern,
    PerHead,
    Prefix,
    RandomTiles,
    Strided,
    Summary,
    Window,
)
from efficient_attention.attention.patterns.presets import bigbird, longformer, sparse_fixed, sparse_strided
from efficient_attention.attention.registry import NAMES, load_room
from efficient_attention.attention.softmax.definition import Softmax
from efficient_attention.errors import InputError

# A pattern's text stands for `Softmax`, which has no name of its own.
MECHANISMS = tuple(name for name in NAMES if name != Softmax.name)
PATTERNS: dict[str, Callable[..., Pattern]] = {
    'full': Full,
    'causal': Causal,
    'prefix': Prefix,
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
_TAKES_PATTERNS = ('per_head',)
_KINDS = {
    int: 'a whole number',
    float: 'a number, such as 0.75',
    bool: 'True or False',
    str: 'a name in quotes',
}


def model_needs(mechanism: Mechanism) -> str:
    """What a model's config sets for a mechanism, in words; '' where any model may have it."""
    needs = ['model.shared_qk=True'] if mechanism.needs.shared_qk else []
    needs += [] if mechanism.form.has_dropout else ['model.attention_dropout_rate=0.0']
    if mechanism.has_causal_option and not mechanism.is_causal:
        needs.append(f'{CAUSAL_OPTION} where it is in a language model')
    return ', '.join(needs)


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
    """What `build` makes of the text's syntax tree; raises an InputError where the text is nested too deeply."""
    try:
        return build(_parse(text), text)
    except (RecursionError, MemoryError):  # from Python's own parser, or from ours
        raise InputError(f'attention {text[:40]!r}...: nested too deeply') from None


def _build_mechanism(node: ast.expr, text: str) -> Mechanism:
    """The mechanism that a syntax tree stands for: one called by its name, or `Softmax` over a pattern."""
    name = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else getattr(node, 'id', '')
    if name not in MECHANISMS:
        return Softmax(_build(node, text))
    make = load_room(name).kind
    read = _pattern_or_constant if issubclass(make, OverPattern) else _constant
    arguments, options = _arguments(node, text, read) if isinstance(node, ast.Call) else ([], {})
    placed = [field for field in dataclasses.fields(make) if not field.kw_only]
    for field, value in [*zip(placed, arguments, strict=False), *_named_fields(make, options)]:
        if isinstance(field.default, Pattern) and not isinstance(value, Pattern):
            raise InputError(f'attention {text!r}: {name} {field.name} is {value!r}; it must be a pattern')
        if not isinstance(field.default, Pattern) and not _is_like(value, field.default):
            kind = _KINDS[type(field.default)]
            raise InputError(f'attention {text!r}: {name} {field.name} is {value!r}; it must be {kind}')
    return _call(name, make, arguments, options, text)


def _is_like(value: Any, default: Any) -> bool:
    """Whether a value is of the default's type; a whole number also stands for one with a point."""
    return type(value) is type(default) or (type(value) is int and type(default) is float)


def _named_fields(make: type[Mechanism], options: dict[str, Any]) -> list[tuple[Any, Any]]:
    """The options given by name that are fields of the class, each with its value."""
    return [(field, options[field.name]) for field in dataclasses.fields(make) if field.name in options]


def _parse(text: str) -> ast.expr:
    """The syntax tree of a text; raises an InputError that names the column where it cannot be read."""
    if not isinstance(text, str) or not text.strip():
        raise InputError(f"attention is {text!r}; it must be a text such as 'causal & window(128)'")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter('ignore', SyntaxWarning)  # Python's, about text such as '8lsh', which is refused
            return ast.parse(text.strip(), mode='eval').body
    except (SyntaxError, ValueError) as error:
        raise InputError(f'attention {text!r}{_fault(text, getattr(error, "offset", None))}') from None


def _fault(text: str, offset: int | None) -> str:
    """What keeps a text from being parsed: its brackets, or the column where Python stopped.
    `offset` is that column, from 1, in the text without spaces around it."""
    open_brackets: list[int] = []
    for place, letter in enumerate(text, start=1):
        if letter == '(':
            open_brackets.append(place)
        elif letter == ')' and not open_brackets:
            return f': the ) at column {place} has no (; leave it out'
        elif letter == ')':
            open_brackets.pop()
    if open_brackets:
        return f': missing ) for the ( at column {open_brackets[-1]}'
    column = (offset or 0) + len(text) - len(text.lstrip())
    if text.rstrip()[-1] in '&|-+,=' or column > len(text.rstrip()):
        return ' cannot be read: something is missing at its end'
    if not offset:
        return ' cannot be read'
    return f' cannot be read at column {column}, from {text[column - 1 :]!r} on'


def _build(node: ast.expr, text: str) -> Pattern:
    """The pattern that a syntax tree stands for: a name, a call, or two patterns with a sign between them."""
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
    """The function that makes the pattern of this name; a mechanism's name and unknown ones raise an InputError."""
    if name in MECHANISMS:
        make, whole = load_room(name).kind, _parse(text)
        if name == ast.unparse(whole.func if isinstance(whole, ast.Call) else whole):
            raise InputError(f'attention {text!r}: {name} is a mechanism of its own and no pattern')
        advice = f'write {name}(...) around the whole pattern' if issubclass(make, OverPattern) else 'write it alone'
        needs = model_needs(make())
        raise InputError(
            f'attention {text!r}: {name} is a mechanism of its own and no pattern, nor part of one; {advice}'
            f'{", with " if needs else ""}{needs}'
        )
    if name not in PATTERNS:
        known = sorted((*PATTERNS, *MECHANISMS))
        close = difflib.get_close_matches(name, known, n=1)
        advice = f'did you mean {close[0]}? ' if close else ''
        raise InputError(f'attention {text!r}: unknown name {name!r}; {advice}known: {", ".join(known)}')
    return PATTERNS[name]


def _arguments(node: ast.Call, text: str, read: Callable[[ast.expr, str], Any]) -> tuple[list, dict[str, Any]]:
    """A call's arguments in order and those by name, their values read by `read`; no name stands twice."""
    names = [option.arg or '**' for option in node.keywords]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f'attention {text!r}: {name} is given twice')
    options = {option.arg or '**': read(option.value, text) for option in node.keywords}
    return [read(argument, text) for argument in node.args], options


def _call(name: str, make: Callable[..., Any], arguments: list, options: dict[str, Any], text: str) -> Any:
    """The pattern or mechanism that `make` returns for these arguments; its errors name the text as well."""
    try:
        inspect.signature(make).bind(*arguments, **options)
    except TypeError:
        asked = name in MECHANISMS and 'causal' in options and 'causal' not in inspect.signature(make).parameters
        if asked:  # faults of the other arguments are named first
            rest = {option: value for option, value in options.items() if option != 'causal'}
            advice = _call(name, make, arguments, rest, text).causal_form(text)
            raise InputError(f'attention {text!r}: {name} has no option causal; write {advice}') from None
        raise InputError(f'attention {text!r}: {name} takes ({_parameters(make)})') from None
    try:
        return make(*arguments, **options)
    except InputError as error:
        raise InputError(f'attention {text!r}: {error}') from None


def _parameters(make: Callable[..., Any]) -> str:
    """What a name takes, as one writes it: 'radius, dilation=1'."""
    parameters = inspect.signature(make).parameters.values()
    return ', '.join(
        f'{parameter.name}, ...'
        if parameter.kind is parameter.VAR_POSITIONAL
        else parameter.name
        if parameter.default is parameter.empty
        else f'{parameter.name}={parameter.default!r}'
        for parameter in parameters
    )


def _value(node: ast.expr) -> Any:
    """The constant that a node is, a sign before a number included; None for anything else."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and type(_value(node.operand)) in (int, float):
        return -_value(node.operand)
    return node.value if isinstance(node, ast.Constant) else None


def _whole_number(node: ast.expr, text: str) -> int:
    """The whole number that a node is; raises an InputError for anything else."""
    if type(_value(node)) is int:
        return _value(node)
    raise InputError(f'attention {text!r}: {ast.unparse(node)!r} is not a whole number')


def _pattern_or_constant(node: ast.expr, text: str) -> Pattern | int | float | bool | str:
    """The constant that a node is, or the pattern that it stands for."""
    return _build(node, text) if _value(node) is None else _constant(node, text)


def _constant(node: ast.expr, text: str) -> int | float | bool | str:
    """The number, truth value or name that a node is; raises an InputError for anything else."""
    if isinstance(_value(node), int | float | bool | str):
        return _value(node)
    raise InputError(f'attention {text!r}: {ast.unparse(node)!r} is neither a number, True, False nor a name')
