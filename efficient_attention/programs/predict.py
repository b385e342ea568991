"""Predicts whole files with a fine-tuned model, and writes the predictions in the official format of the task.

    efficient-attention predict --model runs/sst2 --output submission            # the run's own test files
    efficient-attention predict --model runs/sst2 --output out --split dev       # its dev files, with their metrics
    efficient-attention predict --model runs/mine --output out --files new.csv --set text=review --set id=number
    efficient-attention predict --model theirs --output out --files new.csv --set labels=negative,positive

`--set` sets a field of the config's `examples` group. Labels, separated by commas, name the outputs in their order. If
a checkpoint has no label names, the labels are LABEL_0, LABEL_1, ...

The last line of output is one JSON object: the files written and, if there are any, notes about rows and metrics.
"""

import json
import sys
from typing import Any

from absl import flags

from efficient_attention.commands.command_line import parse_flags
from efficient_attention.commands.flags import (
    checkpoint_from_flags,
    define_batch_size,
    define_checkpoint,
    define_length,
    define_model,
    define_output,
    define_split,
)
from efficient_attention.errors import InputError


def main() -> None:
    """Reads the flags, predicts the files, writes the predictions, and prints a summary."""
    options = define_flags()
    parse_flags(sys.argv, ('model', 'output'), options=options, about=__doc__)
    from efficient_attention.inference.predict_files import predict_files  # imported late, so that --help is fast

    fields: dict[str, Any] = dict(parse_field(text) for text in options.set)
    if options.files:
        fields[options.split] = options.files
    size = {'batch_size': options.batch_size, 'length': options.length}
    where = {'split': options.split, 'checkpoint': checkpoint_from_flags(options)}
    found = predict_files(options.model, options.output, **where, **size, **fields)
    print(json.dumps({name: value for name, value in found.items() if value}))


def define_flags() -> flags.FlagValues:
    """Defines the command-line flags of this program, and returns them."""
    options = flags.FlagValues()
    define_model(options)
    define_output('Folder for the predictions.', options=options)
    define_split(('dev', 'test'), 'test', 'Split whose files are predicted.', options)
    files = "Files instead of the run's own; a path or glob, or several separated by commas."
    flags.DEFINE_string('files', '', files, flag_values=options)
    flags.DEFINE_multi_string('set', [], 'FIELD=VALUE of the examples group.', flag_values=options)
    define_checkpoint('', '; best by default where the run names a metric, else last', options)
    define_batch_size(32, '', options)
    define_length(0, 'Most tokens per row; 0 = as in training.', options)
    return options


def parse_field(text: str) -> tuple[str, str | int | bool | tuple[str, ...]]:
    """Parses 'name=value', a field of the config's `examples` group; raises InputError for a wrong name or type."""
    from efficient_attention.config.examples import ExamplesConfig

    name, is_there, value = text.partition('=')
    known = {field: type(default) for field, default in vars(ExamplesConfig()).items()}
    known = {field: kind for field, kind in known.items() if kind in (str, int, bool) or field == 'labels'}
    if not is_there or name not in known:
        raise InputError(f'--set {text!r}: write FIELD=VALUE with one of {", ".join(known)}')
    if known[name] is bool and value in ('True', 'False'):
        return name, value == 'True'
    if known[name] is int and value.isdecimal():
        return name, int(value)
    if known[name] is str:
        return name, value
    if known[name] is tuple:
        return name, tuple(part.strip() for part in value.split(',') if part.strip())
    raise InputError(f'--set {text!r}: {name} is {"True or False" if known[name] is bool else "a whole number"}')
