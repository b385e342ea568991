"""Parses the text form of patterns and mechanisms, such as 'causal & window(128)', for configs and the command line.

'causal & (window(128) | global_tokens(2))' is a pattern; as a mechanism this text means softmax attention over that
pattern.
'sparsemax(causal & window(64))' is another distribution over a pattern's keys. 'lsh(bucket_size=64, rounds=4)' and
'favor(features=256, causal=True)' are mechanisms without patterns. Arguments are whole numbers, except where the
default is a float: 'sinkhorn(64, 32, temperature=0.5)'. Texts are parsed into a syntax tree and matched against known
names; nothing is evaluated.
"""

import ast
import dataclasses
import inspect
import warnings
from collections.abc import Callable
from typing import Any

from efficient_attention.attention.implementation import Implementation
from efficient_attention.attention.logits.definition import PatternAttention
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
from efficient_attention.attention.registry import ADDED, NAMES, OWN_MODULES, is_added, load_implementation
from efficient_attention.attention.softmax.definition import Softmax
from efficient_attention.errors import InputError, nearest

# `Softmax` is not among these mechanisms, because its config text is only a pattern.
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


def add_mechanism(implementation: Implementation) -> None:
    """Adds your own mechanism, for `attend`, models and the texts in configs of this process.

    A later call with the same name replaces the mechanism, for example when a notebook runs a cell again. For commands,
    call this function in a module of your own, and name the module in the environment variable
    EFFICIENT_ATTENTION_MODULES (several with commas). The first unknown name in a config's text imports these modules.

    Args:
        implementation: the mechanism's class and functions; the class's `name` is its name in configs.

    Raises:
        InputError: the name is not an identifier, or a mechanism or pattern of this library has the name.
    """
    name = implementation.kind.name
    if not name.isidentifier() or name in (*NAMES, *PATTERNS, Mechanism.name, PatternAttention.name):
        raise InputError(f'{implementation.kind.__name__}.name is {name!r}; it must be an identifier that is not taken')
    ADDED[name] = implementation


def required_model_settings(mechanism: Mechanism) -> str:
    """Returns as text which settings of a model's config a mechanism requires,
    such as 'model.shared_qk=True'; '' if none.
    """
    needs = ['model.shared_qk=True'] if mechanism.requirements.shared_qk else []
    needs += [] if mechanism.capabilities.has_dropout else ['model.attention_dropout_rate=0.0']
    if mechanism.has_causal_option and not mechanism.is_causal:
        needs.append(f'{CAUSAL_OPTION} where it is in a language model')
    return ', '.join(needs)


def parse_pattern(text: str) -> Pattern:
    """Returns the attention pattern that a text such as 'causal & window(128)' describes;
    `&`, `|` and `-` combine patterns.

    Raises:
        InputError: the text is not an expression of known pattern names, `&`, `|`, `-` and whole numbers.
    """
    return _parse_and_build(text, _build_pattern)


def parse_mechanism(text: str) -> Mechanism:
    """Returns the mechanism that a config text describes; the text
    of a pattern means softmax attention over that pattern.

    Raises:
        InputError: the text has an unknown name (the message lists the known ones) or cannot be parsed.
    """
    return _parse_and_build(text, _build_mechanism)


def _parse_and_build(text: str, build: Callable[[ast.expr, str], Any]) -> Any:
    """Parses a text and returns what `build` makes of its syntax tree;
    raises an InputError if the text is nested too deeply.
    """
    try:
        return build(_parse(text), text)
    except (RecursionError, MemoryError):  # Python's parser or `build` raises these errors for deep nesting
        raise InputError(f'attention {text[:40]!r}...: nested too deeply') from None


def _build_mechanism(node: ast.expr, text: str) -> Mechanism:
    """Returns the mechanism that a syntax tree describes: a call of a mechanism's name, or `Softmax` over a pattern."""
    name = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else getattr(node, 'id', '')
    if name not in MECHANISMS and (not name or name in PATTERNS or not is_added(name)):
        return Softmax(_build_pattern(node, text))
    make = load_implementation(name).kind
    read = _pattern_or_constant if issubclass(make, PatternAttention) else _constant
    arguments, options = _arguments(node, text, read) if isinstance(node, ast.Call) else ([], {})
    placed = [field for field in dataclasses.fields(make) if not field.kw_only]
    for field, value in [*zip(placed, arguments, strict=False), *_named_fields(make, options)]:
        if isinstance(field.default, Pattern) and not isinstance(value, Pattern):
            raise InputError(f'attention {text!r}: {name} {field.name} is {value!r}; it must be a pattern')
        if not isinstance(field.default, Pattern) and not _is_same_type(value, field.default):
            kind = _KINDS[type(field.default)]
            raise InputError(f'attention {text!r}: {name} {field.name} is {value!r}; it must be {kind}')
    return _call_maker(name, make, arguments, options, text)


def _is_same_type(value: Any, default: Any) -> bool:
    """Returns whether a value has the same type as an option's default; a whole number is also accepted for a float."""
    return type(value) is type(default) or (type(value) is int and type(default) is float)


def _named_fields(make: type[Mechanism], options: dict[str, Any]) -> list[tuple[Any, Any]]:
    """Returns, for each option given by name, the field of the mechanism's class
    with this name and the option's value.
    """
    return [(field, options[field.name]) for field in dataclasses.fields(make) if field.name in options]


def _parse(text: str) -> ast.expr:
    """Returns the syntax tree of a text; raises an InputError that names the column if the text cannot be parsed."""
    if not isinstance(text, str) or not text.strip():
        raise InputError(f"attention is {text!r}; it must be a text such as 'causal & window(128)'")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter('ignore', SyntaxWarning)  # a text such as '8lsh' causes a warning, then an error
            return ast.parse(text.strip(), mode='eval').body
    except (SyntaxError, ValueError) as error:
        raise InputError(f'attention {text!r}{_syntax_error_message(text, getattr(error, "offset", None))}') from None


def _syntax_error_message(text: str, offset: int | None) -> str:
    """Returns a message why a text cannot be parsed: an unmatched bracket,
    or the column at which Python's parser stopped.

    `offset` is the column of the error, counted from 1 in the text without surrounding spaces.
    """
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


def _build_pattern(node: ast.expr, text: str) -> Pattern:
    """Returns the pattern that a syntax tree describes: a pattern's name, a call,
    or two patterns with an operator between them.
    """
    match node:
        case ast.BinOp(left=left, op=ast.BitAnd(), right=right):
            return _build_pattern(left, text) & _build_pattern(right, text)
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _build_pattern(left, text) | _build_pattern(right, text)
        case ast.BinOp(left=left, op=ast.Sub(), right=right):
            return _build_pattern(left, text) - _build_pattern(right, text)
        case ast.Name(id=name):
            return _call_maker(name, _find_pattern_maker(name, text), [], {}, text)
        case ast.Call(func=ast.Name(id=name)):
            make = _find_pattern_maker(name, text)
            read = _build_pattern if name in _TAKES_PATTERNS else _whole_number
            return _call_maker(name, make, *_arguments(node, text, read), text)
    raise InputError(f'attention {text!r}: {ast.unparse(node)!r} is neither a pattern nor a combination of patterns')


def _find_pattern_maker(name: str, text: str) -> Callable[..., Pattern]:
    """Returns the function that makes the pattern of this name; raises an InputError if no pattern has this name."""
    if name not in PATTERNS and (name in MECHANISMS or is_added(name)):
        make, whole = load_implementation(name).kind, _parse(text)
        if name == ast.unparse(whole.func if isinstance(whole, ast.Call) else whole):
            raise InputError(f'attention {text!r}: {name} is a mechanism, not a pattern')
        advice = (
            f'write {name}(...) around the whole pattern' if issubclass(make, PatternAttention) else 'write it alone'
        )
        needs = required_model_settings(make())
        raise InputError(
            f'attention {text!r}: {name} is a mechanism, not a pattern or part of one; {advice}'
            f'{", with " if needs else ""}{needs}'
        )
    if name not in PATTERNS:
        known = sorted((*PATTERNS, *MECHANISMS, *ADDED))
        close = nearest(name, known)
        advice = f'did you mean {close[0]}? ' if close else ''
        own = f'; for your own mechanism, set the environment variable {OWN_MODULES} to its module'
        raise InputError(f'attention {text!r}: unknown name {name!r}; {advice}known: {", ".join(known)}{own}')
    return PATTERNS[name]


def _arguments(node: ast.Call, text: str, read: Callable[[ast.expr, str], Any]) -> tuple[list, dict[str, Any]]:
    """Returns the positional and the named arguments of a call, converted by `read`;
    raises an InputError if a name occurs twice.
    """
    names = [option.arg or '**' for option in node.keywords]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f'attention {text!r}: {name} is given twice')
    options = {option.arg or '**': read(option.value, text) for option in node.keywords}
    return [read(argument, text) for argument in node.args], options


def _call_maker(name: str, make: Callable[..., Any], arguments: list, options: dict[str, Any], text: str) -> Any:
    """Returns the pattern or mechanism that `make` builds from these arguments; adds the whole config text to the error
    messages of `make`.
    """
    try:
        inspect.signature(make).bind(*arguments, **options)
    except TypeError:
        asked = name in MECHANISMS and 'causal' in options and 'causal' not in inspect.signature(make).parameters
        if asked:  # errors in the arguments other than `causal` are reported first
            rest = {option: value for option, value in options.items() if option != 'causal'}
            advice = _call_maker(name, make, arguments, rest, text).causal_alternative_text(text)
            raise InputError(f'attention {text!r}: {name} has no option causal; write {advice}') from None
        raise InputError(f'attention {text!r}: {name} takes ({_parameters(make)})') from None
    try:
        return make(*arguments, **options)
    except InputError as error:
        raise InputError(f'attention {text!r}: {error}') from None


def _parameters(make: Callable[..., Any]) -> str:
    """Returns the parameters of a pattern or mechanism as a user writes them, such as 'radius, dilation=1'."""
    parameters = inspect.signature(make).parameters.values()
    return ', '.join(
        f'{parameter.name}, ...'
        if parameter.kind is parameter.VAR_POSITIONAL
        else parameter.name
        if parameter.default is parameter.empty
        else f'{parameter.name}={parameter.default!r}'
        for parameter in parameters
    )


def _constant_value(node: ast.expr) -> Any:
    """Returns the constant in a syntax tree node, including a minus sign before a number;
    None if the node is not a constant.
    """
    if (
        isinstance(node, ast.UnaryOp)
        and isinstance(node.op, ast.USub)
        and type(_constant_value(node.operand)) in (int, float)
    ):
        return -_constant_value(node.operand)
    return node.value if isinstance(node, ast.Constant) else None


def _whole_number(node: ast.expr, text: str) -> int:
    """Returns the whole number in a syntax tree node; raises an InputError if the node is anything else."""
    if type(_constant_value(node)) is int:
        return _constant_value(node)
    raise InputError(f'attention {text!r}: {ast.unparse(node)!r} is not a whole number')


def _pattern_or_constant(node: ast.expr, text: str) -> Pattern | int | float | bool | str:
    """Returns the value of a syntax tree node: a constant, or the attention pattern that the node describes."""
    return _build_pattern(node, text) if _constant_value(node) is None else _constant(node, text)


def _constant(node: ast.expr, text: str) -> int | float | bool | str:
    """Returns the number, truth value or string in a syntax tree node;
    raises an InputError if the node is anything else.
    """
    if isinstance(_constant_value(node), int | float | bool | str):
        return _constant_value(node)
    raise InputError(f'attention {text!r}: {ast.unparse(node)!r} is neither a number, True, False nor a name')
