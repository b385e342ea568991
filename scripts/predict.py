"""Predictions for whole files with a fine-tuned checkpoint, in the official form of the task.

    python scripts/predict.py --model runs/sst2 --output submission            # the run's own test files
    python scripts/predict.py --model runs/sst2 --output out --split dev       # its dev files, with their metrics
    python scripts/predict.py --model runs/mine --output out --files new.csv --set text=review id=number

The last line is one JSON object: files written, what happened to rows, metrics of dev files.
"""

import argparse
import json
from pathlib import Path

from efficient_attention.errors import InputError
from efficient_attention.training.command import run_command


def main() -> None:
    """Reads the arguments, predicts and prints what was written."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--model', type=Path, required=True, help='a workdir or a Hugging Face folder')
    parser.add_argument('--output', type=Path, required=True, help='folder for the predictions')
    parser.add_argument('--split', choices=['dev', 'test'], default='test')
    parser.add_argument('--files', default='', help="in place of the run's own; a path or glob, several with commas")
    parser.add_argument('--set', nargs='*', default=[], metavar='FIELD=VALUE', help='fields of the examples group')
    parser.add_argument('--batch_size', type=int, default=32, help='rows at a time')
    parser.add_argument('--length', type=int, default=0, help='most tokens a row; 0 = as in training')
    arguments = parser.parse_args()
    from efficient_attention.evaluation.predict_files import predict_files

    fields = dict(parse_field(text) for text in arguments.set)
    if arguments.files:
        fields[arguments.split] = arguments.files
    sizes = {'batch_size': arguments.batch_size, 'length': arguments.length}
    print(json.dumps(predict_files(arguments.model, arguments.output, split=arguments.split, **sizes, **fields)))


def parse_field(text: str) -> tuple[str, str]:
    """Name and value of 'name=value'; raises InputError where it is not of this form or names no text field."""
    from efficient_attention.data.examples_config import ExamplesConfig

    name, is_there, value = text.partition('=')
    known = [field for field, default in vars(ExamplesConfig()).items() if isinstance(default, str)]
    if not is_there or name not in known:
        raise InputError(f'--set {text!r}: write FIELD=VALUE with one of {", ".join(known)}')
    return name, value


if __name__ == '__main__':
    run_command(main)
