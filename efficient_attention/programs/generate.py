"""Continues a text: efficient-attention generate --workdir runs/enwik8_full --prompt 'The history of '

By default each token is sampled. With --beams, beam search prints the most probable texts with their log-probabilities.
"""

import sys
from typing import Any

from absl import flags

from efficient_attention.commands.command_line import parse_flags
from efficient_attention.commands.flags import checkpoint_from_flags, define_checkpoint, define_workdir
from efficient_attention.errors import InputError, require_at_least

DRAWING = ('temperature', 'top_k', 'top_p', 'seed')


def main() -> None:
    """Reads the flags, and prints the prompt and its continuation by the language model, token by token."""
    options = define_flags()
    parse_flags(sys.argv, ('workdir', 'prompt'), options=options, about=__doc__)
    check_sampling_flags(options)
    # This import is late, so that --help and flag errors are fast.
    from efficient_attention.inference.generate import TextGenerator
    from efficient_attention.inference.sampling import Sampling

    sampling = Sampling(options.temperature, options.top_k, options.top_p)
    generate = TextGenerator(options.workdir, checkpoint=checkpoint_from_flags(options))
    if options.beams:
        search: dict[str, Any] = {name: options[name].value for name in ('max_tokens', 'beams', 'best')}
        for found in generate.beam_search(options.prompt, **search):
            print(f'{found.log_prob:.3f}\t{found.text}')
        return
    for part in generate(options.prompt, max_tokens=options.max_tokens, sampling=sampling, seed=options.seed):
        print(part, end='', flush=True)
    print()


def define_flags() -> flags.FlagValues:
    """Defines the command-line flags of this program, and returns them."""
    options = flags.FlagValues()
    define_workdir('Folder of a language model: a run, or a Hugging Face folder.', options=options)
    flags.DEFINE_string('prompt', None, 'The text to continue.', flag_values=options)
    flags.DEFINE_integer('max_tokens', 200, 'Bytes, characters, words or pieces to add.', flag_values=options)
    flags.DEFINE_float('temperature', 1.0, '0 = always the most probable token.', flag_values=options)
    flags.DEFINE_integer('top_k', 0, 'Sample from the k most probable tokens; 0 = all.', flag_values=options)
    flags.DEFINE_float('top_p', 1.0, 'Sample from the nucleus of this probability; 1 = all.', flag_values=options)
    flags.DEFINE_integer('seed', 0, 'Random seed of sampling.', flag_values=options)
    flags.DEFINE_integer('beams', 0, 'Beams of the search; 0 = sample instead.', flag_values=options)
    flags.DEFINE_integer('best', 1, 'Texts that beam search prints.', flag_values=options)
    define_checkpoint('last', options=options)
    return options


def check_sampling_flags(options: flags.FlagValues) -> None:
    """Raises InputError if a sampling flag is given with --beams, or if --best is given without --beams."""
    require_at_least(0, '--beams', options.beams)
    others = DRAWING if options.beams else ('best',)
    for name in others:
        if options[name].value != options[name].default:
            line = 'nothing is sampled with --beams' if options.beams else 'it needs --beams'
            raise InputError(f'--{name} is {options[name].value}; {line}')
