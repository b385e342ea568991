"""Parses a command's flags, reports bad flags in one line, and exits with a code instead of a traceback."""

import logging
import os
import re
import select
import sys
from collections.abc import Callable, Collection
from typing import Any

from absl import flags

from efficient_attention.commands.config_files import find_config_arguments
from efficient_attention.errors import (
    InputError,
    RunError,
    RunStopped,
    advice_on_name,
    exit_code,
    one_line,
    show_error,
)
from efficient_attention.processes.signal_thread import current_signal_thread

HELP_FULL = '--helpfull'
HELP = {'--help', '-h', HELP_FULL}
EXHAUSTED = 'RESOURCE_EXHAUSTED'
CLOSED_OUTPUT = 128 + 13  # exit code that shells report for a process ended by SIGPIPE
EXAMPLES = {  # flag -> an example of its value
    'config': 'quickstart',
    'workdir': 'runs/quickstart',
    'model': 'runs/quickstart',
    'output': 'new_folder',
    'prompt': "'The history of '",
    'rows': 'listops,text',
    'topology': 'cpu:8',
}
OF_CONFIGS = """
config fields: efficient-attention configs show NAME, or --helpfull --config NAME
config names:  efficient-attention configs list, or --helpfull"""
# Python's message if a user adds an argument to a config that takes none, as in configs/quickstart.py:small
NO_ARGUMENT = 'get_config() takes 0 positional arguments'
# This pattern matches the start of the error that a config file raises if its argument is invalid.
KIND = r'(?:[\w.]+\.)?(?:ValueError|InputError): '
# Each pattern matches an error message of Python, absl or ml_collections; a plainer message follows it.
SAID: tuple[tuple[str, str], ...] = (
    (
        r'(?:flag )?--(?:model|workdir)=(.*): already defined as (.*)',
        r'--model and --workdir name one folder: \2 or \1',
    ),
    (r"invalid literal for int\(\) with base \d+: ''", 'the value is missing; it must be a whole number'),
    (r'invalid literal for int\(\) with base \d+: (.*)', r'\1 is not a whole number'),
    (r"could not convert string to float: ''", 'the value is missing; it must be a number'),
    (r'could not convert string to float: (.*)', r'\1 is not a number'),
    (r"\('Non-boolean argument to boolean flag', (.*)\)", r'\1 is neither true nor false'),
    (r'value should be one of <(.*)>', r'it must be one of \1'),
    (r'Error while parsing string: (.*) as tuple\. If you .*', r'\1 is not a list; write such as a,b or 1,2'),
    (r'Failed to parse (.*) as a ConfigDict: .*', r'\1 is given to a group; give a value to one field of the group'),
    (r"Attribute <class '.*'>\.\w+ does not exist .* lookup: (.*)\.(\w+)", r'\1 is a field, and has no field \2'),
    (r"Could not parse '(.*)': SyntaxError.*", r"'\1' is not the name of a field"),
    (rf'Error whilst parsing config file: {KIND}(.*)', r'\1'),
    (r'Error whilst parsing config file: (.*)', r'the config file fails: \1'),
)


def parse_flags(
    arguments: list[str],
    required: tuple[str, ...] = (),
    *,
    options: flags.FlagValues = flags.FLAGS,
    words: str = '',
    command: str = '',
    about: str | None = None,
) -> list[str]:
    """Parses a command line, stores the flags' values, and returns the other arguments; prints the help for --help.

    Args:
        arguments: the program and its arguments.
        required: names of flags that must have a value.
        options: the known flags, which receive the values.
        words: names of the positional arguments, such as 'METRIC WORKDIR...'; dots mean one or more, and brackets, as
            in '[PART]', mark an argument that may be left out.
        command: the subcommand or action to which the flags belong; each error line begins with it.
        about: the text before the flags in the help; by default the docstring of the script that runs.

    Raises:
        InputError: an unknown flag or config field, a value that does not parse, a missing flag, or too many or too
            few positional arguments.
    """
    if HELP & set(arguments[1:]):
        try:
            is_full = HELP_FULL in arguments
            given = [argument for argument in arguments if argument not in HELP]
            print_help(given, options, words, command, about, is_full=is_full)
            sys.stdout.flush()
        except BrokenPipeError:  # the program that reads this output has closed the pipe
            discard_output()
        sys.exit(0)
    try:
        values, found = parse_flag_values(arguments, required, options)
        for name, value in values.items():
            if value is None and found and not words:
                raise InputError(f'{found[0]!r} is no flag; did you mean --{name} {found[0]}?')
            if value is None:
                raise missing_flag_error(name)
        check_positional_args(found, words)
    except InputError as error:
        if not command:
            raise
        raise InputError(f'{command}: {error}') from None
    return found


def joined_lists(arguments: list[str], names: Collection[str]) -> list[str]:
    """Returns the arguments with the words after the named flags joined by commas, so that `--shots 0 1 8` is one list.

    So a shell may expand a glob. It is for commands that have no positional arguments.
    """
    joined: list[str] = []
    for argument in arguments:
        before, last = [None, None, *joined][-2:]
        follows = any(before == f'--{name}' or (last or '').startswith(f'--{name}=') for name in names)
        if follows and not argument.startswith('-'):
            joined[-1] = f'{joined[-1].removesuffix(",")},{argument}'
        else:
            joined.append(argument)
    return joined


def missing_flag_error(name: str) -> InputError:
    """Returns the error for a required flag that was not given; for common flags it names an example."""
    example = f', such as --{name} {EXAMPLES[name]}' if name in EXAMPLES else ''
    return InputError(f'--{name} is missing{example}; --help lists all flags')


def split_subcommand(
    arguments: list[str], commands: Collection[str], *, about: str | None = None
) -> tuple[str, list[str]]:
    """Returns the action, which is the first argument, and the other arguments; prints the help for --help.

    Raises:
        InputError: the action is missing or unknown.
    """
    program, *rest = arguments
    known = ', '.join(commands)
    if not rest:
        raise InputError(f'name a command: {known}')
    if rest[0] in HELP:
        print(about or sys.modules['__main__'].__doc__, f'commands, each with its own --help: {known}', sep='\n')
        sys.exit(0)
    if rest[0] not in commands:
        advice = f'known: {known}' if rest[0].startswith('-') else advice_on_name(rest[0], commands)
        raise InputError(f'{rest[0]!r} is no command; {advice}')
    return rest[0], [program, *rest[1:]]


def print_help(
    arguments: list[str],
    options: flags.FlagValues,
    words: str,
    command: str,
    about: str | None = None,
    *,
    is_full: bool = False,
) -> None:
    """Prints the help of a command: its flags, and for commands that read a config how to list configs and fields.

    With `is_full`, it also lists the config files, or with --config the fields of that config.
    """
    own = flags_of_command(options).get_help(prefix='  ', include_special_flags=False)
    own = re.sub(r"\n +\(default: '(None)?'\)", '', own)
    print(about or sys.modules['__main__'].__doc__)
    if words:
        print(f'\narguments: {words}')
    if own:
        print(f'\nflags of {command}:' if command else '\nflags:', own, sep='\n')
    if 'config' not in options:
        return
    if not is_full:
        print(OF_CONFIGS)
        return
    # This import is late, because it loads all config dataclasses, which is slow.
    from efficient_attention.commands.config_help import list_configs, list_fields

    config = parse_flag_values(arguments, ('config',), options)[0]['config']
    print()
    print(list_configs() if config is None else list_fields(config.to_dict()))


def flags_of_command(options: flags.FlagValues) -> flags.FlagValues:
    """Returns the flags that this command itself defines, without flags that libraries add to absl's shared list."""
    own = [options[name] for name in options]
    if options is flags.FLAGS:
        own = options.get_key_flags_for_module(sys.argv[0])
    found = flags.FlagValues()
    for flag in own:
        found[flag.name] = flag
    return found


def parse_flag_values(
    arguments: list[str], names: tuple[str, ...], options: flags.FlagValues
) -> tuple[dict[str, Any], list[str]]:
    """Parses a command line; returns the values of the named flags (None for a flag that is not given) and the
    positional arguments.

    Raises InputError for the same errors as `parse_flags`.
    """
    where = 'config: ' if 'config' in options else ''
    if where:
        arguments = [*find_config_arguments(arguments)]
    options.set_gnu_getopt(True)  # flags may also come after positional arguments
    try:
        words = options(arguments)[1:]
        values = {name: options[name].value for name in names}
        for value in values.values():
            # A config file that could not be opened raises its error only at the first access to the config.
            getattr(value, 'to_dict', None)
    except flags.Error as error:
        said, name = simplify_library_message(_without_traceback(str(error))), getattr(error, 'flagname', '')
        # Only errors about an unknown flag have a `flagname`. A dot in this name means a mistyped config field.
        is_field = 'config' in options and '.' in name
        raise InputError(
            f'{said}; fields begin with --config.: --config.{field_path(name)}' if is_field else said
        ) from None
    except (AttributeError, KeyError) as error:
        said, plain = one_line(error), simplify_library_message(one_line(error))
        raise InputError(plain if plain != said else unknown_field_message(said, arguments)) from None
    except SyntaxError as error:
        raise InputError(f'{where}not Python that can be read: {one_line(error)}') from None
    except (ImportError, TypeError, ValueError) as error:
        raise InputError(f'{where}{simplify_library_message(one_line(error))}') from None
    except OSError as error:
        reason = re.search(r'\[Errno \d+\] (.*)', one_line(error))
        raise InputError(f'{where}{reason[1] if reason else one_line(error)}') from None
    return values, words


def field_path(name: str) -> str:
    """Returns the path of a config field without a mistyped `config.`: 'train.steps' for 'confg.train.steps'."""
    from efficient_attention.config.dict_conversion import default_fields
    from efficient_attention.config.run import RunConfig

    first, _, rest = name.partition('.')
    return name if first in default_fields(RunConfig) or '.' not in rest else rest


def unknown_field_message(said: str, arguments: Collection[str]) -> str:
    """Returns the error message for an unknown config field of a command line: its full name, and the nearest
    fields."""
    name = said.strip("'").split("'")[0]
    paths = [argument.partition('=')[0].removeprefix('--config.') for argument in arguments]
    path = next((path for path in paths if path.split('.')[-1] == name), name)
    # These imports are late, because the config dataclasses load slowly.
    from efficient_attention.config.dict_conversion import field_names, unknown_field_error
    from efficient_attention.config.run import RunConfig

    return str(unknown_field_error(path, field_names(RunConfig)))


def check_positional_args(found: list[str], words: str) -> None:
    """Raises InputError if the command line has too few or too many positional arguments."""
    names = words.split()
    needed = [name for name in names if not name.startswith('[')]
    if found and not names:
        raise InputError(f'{found[0]!r} is no flag; flags and config fields begin with --')
    if len(found) < len(needed):
        raise InputError(f'{needed[len(found)].removesuffix("...")} is missing')
    if len(found) > len(names) and not words.endswith('...'):
        raise InputError(f'{found[len(names)]!r} is one word too many; expected: {words}')


def run_command(main: Callable[[], None]) -> None:
    """Runs a command's main function; if it raises, prints the error and exits with the error's exit code.

    If the program that reads the output has ended, such as `head`, the command ends silently with exit code 141, as
    SIGPIPE ends other commands.
    """
    logging.basicConfig(level=logging.INFO, format='%(message)s')
    for noisy in ('absl', 'jax'):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    try:
        main()
        sys.stdout.flush()
    except BaseException as error:
        if isinstance(error, BrokenPipeError) and is_output_closed():
            discard_output()
            sys.exit(CLOSED_OUTPUT)
        # A stop signal may surface as any error inside a library; the process then ends as stopped, not as failed.
        if (watch := current_signal_thread()) and watch.is_ending:
            watch.end_process()
        code = print_error_get_exit_code(error)
        if code is None:
            raise
        sys.exit(code)


def is_output_closed() -> bool:
    """Returns whether standard output is a pipe that its reader has closed."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def discard_output() -> None:
    """Discards standard output from now on, so that Python's last flush does not fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def print_error_get_exit_code(error: BaseException) -> int | None:
    """Prints an error as one line and returns its exit code; returns None if the error is a bug in the program.

    NotImplementedError counts as bad input: the named backend does not support the request.
    """
    if isinstance(error, KeyboardInterrupt):
        print('interrupted', file=sys.stderr)
    elif isinstance(error, (InputError, NotImplementedError, RunError)):
        show_error(error)
    elif EXHAUSTED in str(error):  # JAX's error class is not available, because this file does not import JAX
        found = re.search(r'[Oo]ut of memory[^.]*', str(error))
        which = found[0] if found else EXHAUSTED
        show_error(RunError(f'the device has not enough memory ({which}); take fewer rows or beams at a time'))
    elif not isinstance(error, RunStopped):  # a stopped run has already printed its own message
        return None
    return exit_code(error)


def _without_traceback(text: str) -> str:
    """Shortens an error message of ml_collections: keeps only the last line of the traceback that the message
    contains."""
    if NO_ARGUMENT in text:
        return f'{text.partition(": Error")[0]}: this config takes no argument; leave out the colon and what follows'
    before, found, lines = text.partition('Traceback (most recent call last):')
    return ' '.join([*before.split(), lines.strip().splitlines()[-1]]) if found else text


def simplify_library_message(text: str) -> str:
    """Replaces a library's error message, which ends a line about a flag, by plain words."""
    for said, plain in SAID:
        if match := re.search(f'{said}$', text, re.DOTALL):
            return text[: match.start()] + match.expand(plain)
    return text
