"""Starts the subcommand that the command line names, and imports only the module of this subcommand.

    efficient-attention train --config quickstart.py --workdir runs/x

`python -m efficient_attention` does the same. Until it catches stop signals, this file imports only the standard
library, and modules that import nothing else.
"""

import functools
import importlib
import os
import sys
from collections.abc import Callable, Collection
from types import ModuleType

from efficient_attention import _TRAIN as PACKAGES_OF_TRAIN
from efficient_attention import __version__
from efficient_attention.errors import InputError, advice_on_name, exit_code, missing_extra_error, show_error
from efficient_attention.processes.signal_thread import catch_stop_signals

PACKAGE = 'efficient_attention.programs'
COMMAND = 'efficient-attention'
COMPLETION = 'completion'
HELP = ('--help', '-h', 'help')
# Subcommand -> its line in --help. Its module has the same name, with '_' instead of '-'.
PROGRAMS = {
    'train': 'Trains the model of a config.',
    'eval': 'Evaluates a trained model on its held-out data.',
    'predict': 'Predicts whole files with a fine-tuned model.',
    'fill-mask': 'Predicts the masked tokens of texts.',
    'generate': 'Continues a text with a language model.',
    'score': 'Scores a model on questions by likelihood: choices, minimal pairs, last words.',
    'translate': 'Generates a target text for each source text with an encoder-decoder.',
    'convert': 'Converts a checkpoint to another file format, and optionally compresses the model.',
    'export': 'Writes a model as a JAX program or an ONNX file that runs without this package.',
    'seeds': 'Trains one config with several seeds.',
    'sweep': 'Searches config fields: random, Optuna or grid search over ranges of values.',
    'grid': 'Trains a table of runs: tasks by attention mechanisms.',
    'plan': 'Plans memory and time of a training step on devices that need not be present.',
    'visualize': 'Draws attention patterns, alignments, pooling weights and attention weights.',
    'analyze-heads': 'Measures what the attention heads of a model do: shares, distances, dependencies.',
    'report': 'Rewrites the HTML report of a run from its files.',
    'configs': 'Lists, shows and finds the configs of the package.',
    'completion': 'Prints a script that completes this command in bash or zsh.',
}
# These programs compute for long on CPUs, so they keep freed memory (efficient_attention/processes/allocator.py).
KEEP_FREED_MEMORY = ('train', 'eval', 'score', 'analyze-heads', 'translate', 'seeds', 'sweep', 'grid')


def main() -> None:
    """Runs the subcommand that `sys.argv` names; prints the list of subcommands for --help or without a subcommand."""
    name = sys.argv[1] if len(sys.argv) > 1 else '--help'
    if name in (*HELP, '--version'):
        try:
            print(__version__ if name == '--version' else list_programs(), flush=True)
        except BrokenPipeError:  # the program that reads this output has closed the pipe
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return
    if name not in PROGRAMS:
        error = InputError(f'{name!r} is no subcommand; {advice_on_name(name, PROGRAMS)}')
        show_error(error)
        sys.exit(exit_code(error))
    sys.argv = [f'{COMMAND} {name}', *sys.argv[2:]]
    run_program(name)


def run_program(name: str) -> None:
    """Runs a subcommand with the flags in `sys.argv`; after an error, exits with the error's exit code."""
    # Stop signals are handled from here on, so that Ctrl-C works during the slow imports.
    catch_stop_signals(keeps_freed_memory=name in KEEP_FREED_MEMORY)
    try:
        program = load_program(name)
        from efficient_attention.commands.command_line import run_command  # imported late, because it imports absl

        run_command(program.main if name != COMPLETION else lambda: program.main(words_of_programs()))
    except ModuleNotFoundError as error:
        if (error.name or '').partition('.')[0] not in PACKAGES_OF_TRAIN:
            raise
        missing = missing_extra_error(f'{COMMAND} {name}', 'train', error)
        show_error(missing)
        sys.exit(exit_code(missing))


def load_program(name: str) -> ModuleType:
    """Imports the module of a subcommand."""
    return importlib.import_module(f'{PACKAGE}.{name.replace("-", "_")}')


def words_of_programs() -> dict[str, Callable[[], list[str]]]:
    """Returns {subcommand: function that returns its actions and flags}, for completion."""
    found: dict[str, Callable[[], list[str]]] = {name: functools.partial(words_of_program, name) for name in PROGRAMS}
    return found | {COMPLETION: lambda: ['bash', 'zsh']}


def words_of_program(name: str) -> list[str]:
    """Returns the actions of a subcommand, such as 'list' of `configs`, and all its flags, such as '--workdir'."""
    program = load_program(name)
    commands: Collection[str] = getattr(program, 'WORDS', ())
    defined = [program.define_flags(one) for one in commands] or [program.define_flags()]
    return [*commands, *sorted({f'--{flag}' for options in defined for flag in options})]


def list_programs() -> str:
    """Returns the help text of the whole command: each subcommand with one line."""
    width = max(map(len, PROGRAMS))
    lines = [f'  {name.ljust(width)}  {line}' for name, line in PROGRAMS.items()]
    head = f'usage: {COMMAND} <subcommand> [flags]; each subcommand has its own --help'
    return '\n'.join([head, '', 'subcommands:', *lines])
