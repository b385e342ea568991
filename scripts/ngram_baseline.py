"""Scores an n-gram model on the text of a run: python scripts/ngram_baseline.py --workdir runs/enwik8_full"""

import argparse
import json
import math
from pathlib import Path

from efficient_attention.commands.flags import run_command
from efficient_attention.errors import InputError


def main() -> None:
    """Counts the n-grams of the train split and prints one JSON object with the score of every order up to n."""
    parser = argparse.ArgumentParser(description='Score an n-gram model on the text of a language-model run.')
    parser.add_argument('--workdir', type=Path, required=True, help='folder of the run; its data fields are read')
    parser.add_argument('--order', type=int, default=5, help='n (default: 5)')
    parser.add_argument('--split', choices=['held_out', 'test'], default='held_out')
    parser.add_argument('--train_tokens', type=int, help='count only so many tokens from the start of the train split')
    arguments = parser.parse_args()
    if arguments.order < 1 or (arguments.train_tokens is not None and arguments.train_tokens < 1):
        parser.error('--order and --train_tokens must be at least 1')
    print(json.dumps(score(arguments)))


def score(arguments: argparse.Namespace) -> dict[str, object]:
    """Bits per token of the models of order 1 to n, every token but the first predicted once with all its context."""
    from efficient_attention.data.text.prepare import prepare_text  # after the arguments are known to be good
    from efficient_attention.inference.ngram import count_ngrams, token_bits
    from efficient_attention.workdir.config_file import read_config

    config = read_config(arguments.workdir)
    if config.task != 'language_modelling':
        raise InputError(f'{arguments.workdir} is a run of the task {config.task}; n-grams need language_modelling')
    if config.data.units == 'pixels':
        raise InputError('n-grams would run from one image to the next; this baseline is for texts')
    text = prepare_text(config.data)
    train, held_out = text.splits['train'][: arguments.train_tokens], text.splits[arguments.split]
    if len(held_out) < 2:
        raise InputError(f'the {arguments.split} split has {len(held_out)} tokens; nothing can be predicted in it')
    orders = count_ngrams(train, text.units.size, arguments.order)
    bits = {
        f'{number}-gram': float(token_bits(orders[:number], held_out, text.units.size).mean())
        for number in range(1, arguments.order + 1)
    }
    return {
        'units': config.data.units,
        'split': arguments.split,
        'train_tokens': len(train),
        'predicted_tokens': len(held_out) - 1,
        'bits_per_token': bits,
        'perplexity': {name: 2**value for name, value in bits.items()},
        'uniform': math.log2(text.units.size),
    }


if __name__ == '__main__':
    run_command(main)
