"""Predictions for whole files with a fine-tuned checkpoint, in the official form of the task.

    python scripts/predict.py --model runs/sst2 --output submission            # the run's own test files
    python scripts/predict.py --model runs/sst2 --output out --split dev       # its dev files, with their metrics
    python scripts/predict.py --model runs/mine --output out --files new.csv --set text=review id=number
    python scripts/predict.py --model theirs --output out --files new.csv --set labels=negative,positive

`--set` gives fields of a config's examples group. Labels, with commas, name the outputs in their order; those of a
checkpoint without names are LABEL_0, LABEL_1, ...

The last line is one JSON object: files written, what happened to rows, metrics where there are
labels.
"""

import argparse
import json
from pathlib import Path

from efficient_attention.commands.flags import run_command
from efficient_attention.errors import InputError


def main() -> None:
    """Reads the arguments, predicts and prints what was written."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--model', type=Path, required=True, help='a workdir or a Hugging Face folder')
    parser.add_argument('--output', type=Path, required=True, help='folder for the predictions')
    parser.add_argument('--split', choices=['dev', 'test'], default='test')
    parser.add_argument('--files', default='', help="in place of the run's own; a path or glob, several with commas")
    parser.add_argument('--set', nargs='*', default=[], metavar='FIELD=VALUE', help='of the examples group')
    parser.add_argument('--checkpoint', default='', help='of a workdir: last, best (the default) or a step')
    parser.add_argument('--batch_size', type=int, default=32, help='rows at a time')
    parser.add_argument('--length', type=int, default=0, help='most tokens a row; 0 = as in training')
    arguments = parser.parse_args()
    from efficient_attention.inference.predict_files import predict_files

    fields = dict(parse_field(text) for text in arguments.set)
    if arguments.files:
        fields[arguments.split] = arguments.files
    options = {'batch_size': arguments.batch_size, 'length': arguments.length, 'checkpoint': arguments.checkpoint}
    print(json.dumps(predict_files(arguments.model, arguments.output, split=arguments.split, **options, **fields)))


def parse_field(text: str) -> tuple[str, str | int | bool | tuple[str, ...]]:
    """Name and value of 'name=value'; raises InputError where it is not of this form, or not of the field's type."""
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


if __name__ == '__main__':
    run_command(main)
