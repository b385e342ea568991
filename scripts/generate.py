"""Goes on with a text: python scripts/generate.py --workdir runs/enwik8_full --prompt 'The history of '

With --beams the most probable texts that a beam search finds, each with its log-probability, in place of drawn ones.
"""

from efficient_attention.processes.stopping import catch_stop_signals

if __name__ == '__main__':
    catch_stop_signals()  # before the imports, which take a while

import sys

from absl import flags

from efficient_attention.commands.command_line import parse_flags, run_command
from efficient_attention.commands.flags import chosen_checkpoint, define_checkpoint, define_run
from efficient_attention.errors import InputError, require_at_least

DRAWING = ('temperature', 'top_k', 'top_p', 'seed')


def main() -> None:
    """Prints the prompt and what the language model makes of it, while it is made."""
    options = define_flags()
    parse_flags(sys.argv, ('workdir', 'prompt'), options=options)
    check_choice(options)
    from efficient_attention.inference.generate import TextGenerator  # after --help and refusals
    from efficient_attention.inference.sampling import Sampling

    sampling = Sampling(options.temperature, options.top_k, options.top_p)
    generate = TextGenerator(options.workdir, checkpoint=chosen_checkpoint(options))
    if options.beams:
        search = {name: options[name].value for name in ('max_tokens', 'beams', 'best')}
        for found in generate.best(options.prompt, **search):
            print(f'{found.log_prob:.3f}\t{found.text}')
        return
    for part in generate(options.prompt, max_tokens=options.max_tokens, sampling=sampling, seed=options.seed):
        print(part, end='', flush=True)
    print()


def define_flags() -> flags.FlagValues:
    """The flags of this command."""
    options = flags.FlagValues()
    define_run(options=options)
    flags.DEFINE_string('prompt', None, 'The text to go on with.', flag_values=options)
    flags.DEFINE_integer('max_tokens', 200, 'Bytes, characters, words or pieces to add.', flag_values=options)
    flags.DEFINE_float('temperature', 1.0, '0 = always the most probable token.', flag_values=options)
    flags.DEFINE_integer('top_k', 0, 'Draw among the k most probable tokens; 0 = all.', flag_values=options)
    flags.DEFINE_float('top_p', 1.0, 'Draw from the nucleus of this probability; 1 = all.', flag_values=options)
    flags.DEFINE_integer('seed', 0, 'Another seed draws another text.', flag_values=options)
    flags.DEFINE_integer('beams', 0, 'Open hypotheses of a beam search; 0 = draw.', flag_values=options)
    flags.DEFINE_integer('best', 1, 'Texts that a beam search prints.', flag_values=options)
    define_checkpoint('last', options=options)
    return options


def check_choice(options: flags.FlagValues) -> None:
    """Raises InputError where a flag of drawing stands beside --beams, or --best without it."""
    require_at_least(0, '--beams', options.beams)
    others = DRAWING if options.beams else ('best',)
    for name in others:
        if options[name].value != options[name].default:
            line = 'nothing is drawn with --beams' if options.beams else 'it needs --beams'
            raise InputError(f'--{name} is {options[name].value}; {line}')


if __name__ == '__main__':
    run_command(main)
