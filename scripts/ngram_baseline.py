"""Scores an n-gram baseline on a language model's data: python scripts/ngram_baseline.py --workdir runs/enwik8_full"""

from efficient_attention.processes.signal_thread import catch_stop_signals

if __name__ == '__main__':
    catch_stop_signals()  # Stop signals are handled from here on, so that Ctrl-C works during the slow imports.

import json
import math
import sys

from absl import flags

from efficient_attention.commands.command_line import parse_flags, run_command
from efficient_attention.commands.flags import define_split, define_workdir
from efficient_attention.errors import InputError


def main() -> None:
    """Reads the flags, and prints one JSON object with the scores of the n-gram models of all orders up to n."""
    options = define_flags()
    parse_flags(sys.argv, ('workdir',), options=options)
    if options.order < 1 or (options.train_tokens is not None and options.train_tokens < 1):
        raise InputError('--order and --train_tokens must be at least 1')
    print(json.dumps(score_ngrams(options)))


def define_flags() -> flags.FlagValues:
    """Defines the command-line flags of this script, and returns them."""
    options = flags.FlagValues()
    define_workdir('Workdir of the run whose text is scored.', options)
    flags.DEFINE_integer('order', 5, 'Highest order n.', flag_values=options)
    define_split(('held_out', 'test'), 'held_out', 'Split to score.', options)
    count = 'Count only this many tokens from the start of the training split.'
    flags.DEFINE_integer('train_tokens', None, count, flag_values=options)
    return options


def score_ngrams(options: flags.FlagValues) -> dict[str, object]:
    """Counts n-grams in the training split, and returns bits per token of the models of order 1 to n on another split.

    Every token except the first is predicted once.
    """
    from efficient_attention.data.text.prepare import prepare_text  # imported late, so that flag errors are fast
    from efficient_attention.inference.ngram_language_model import count_ngrams, token_bits
    from efficient_attention.workdir.config_file import read_config

    config = read_config(options.workdir)
    if config.task != 'language_modelling':
        raise InputError(f'{options.workdir} is a run of the task {config.task}; n-grams need language_modelling')
    if config.data.units == 'pixels':
        raise InputError(
            'the run has images; n-grams would cross from one image to the next, so this baseline is only for text'
        )
    text = prepare_text(config.data)
    train, held_out = text.splits['train'][: options.train_tokens], text.splits[options.split]
    if len(held_out) < 2:
        raise InputError(f'the {options.split} split has {len(held_out)} tokens; at least 2 are needed')
    orders = count_ngrams(train, text.units.size, options.order)
    bits = {
        f'{number}-gram': float(token_bits(orders[:number], held_out, text.units.size).mean())
        for number in range(1, options.order + 1)
    }
    return {
        'units': config.data.units,
        'split': options.split,
        'train_tokens': len(train),
        'predicted_tokens': len(held_out) - 1,
        'bits_per_token': bits,
        'perplexity': {name: 2**value for name, value in bits.items()},
        'uniform': math.log2(text.units.size),
    }


if __name__ == '__main__':
    run_command(main)
