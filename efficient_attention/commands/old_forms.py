"""Command lines of the release before, put into the form of this one; each change is said on standard error."""

import sys
from collections.abc import Mapping

from absl import flags

from efficient_attention.commands.flags import ListParser


def in_new_form(arguments: list[str], options: flags.FlagValues, old_names: Mapping[str, str]) -> list[str]:
    """The arguments with new names, and with one word for the values of a flag; what follows '--' stays.

    Args:
        arguments: without the program.
        options: the flags of this release.
        old_names: old name of a flag -> its new one, without dashes in front.
    """
    new, rest = [], list(arguments)
    while rest and rest[0] != '--':
        word = with_new_name(rest.pop(0), old_names)
        name = word.removeprefix('--')
        if name == word or name not in options:  # no flag, a flag with its value, or one that is unknown
            new.append(word)
            continue
        count = count_values(options[name], rest)
        new += with_values(word, rest[:count], options[name])
        rest = rest[count:]
    return new + rest


def with_new_name(word: str, old_names: Mapping[str, str]) -> str:
    """The word, with its new name where it is a flag that has one."""
    old, equals, value = word.partition('=')
    new = old_names.get(old.removeprefix('--')) if old.startswith('--') else None
    if new is None:
        return word
    print(f'{old} is now --{new}; the old name goes with the next release', file=sys.stderr)
    return f'--{new}{equals}{value}'


def count_values(flag: flags.Flag, rest: list[str]) -> int:
    """How many of the words behind a flag are values of it: one, after true-or-false flags none, of lists several."""
    if flag.boolean:
        return int(bool(rest) and rest[0].lower() in ('true', 'false'))
    if not is_list(flag):
        return min(1, len(rest))
    return next((place for place, word in enumerate(rest) if word.startswith('--')), len(rest))


def with_values(word: str, values: list[str], flag: flags.Flag) -> list[str]:
    """A flag and the words behind it, in one word where they were several or say true or false."""
    if len(values) <= (0 if flag.boolean else 1):
        return [word, *values]
    is_repeated = isinstance(flag, flags.MultiFlag)
    new = [f'{word}={value}' for value in (values if is_repeated else [','.join(values)])]
    old = ' '.join([word, *values])
    print(f'{old} is now {" ".join(new)}; the old form goes with the next release', file=sys.stderr)
    return new


def is_list(flag: flags.Flag) -> bool:
    """Whether a flag has several values."""
    return isinstance(flag, flags.MultiFlag) or isinstance(flag.parser, ListParser)
