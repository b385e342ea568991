"""Goes on with a text: python scripts/generate.py --workdir runs/enwik8_full --prompt 'The history of '"""

import argparse
from pathlib import Path

from efficient_attention.commands.flags import run_command


def main() -> None:
    """Prints the prompt and what the language model makes of it, while it is made."""
    parser = argparse.ArgumentParser(description='Go on with a text, with a trained language model.')
    parser.add_argument('--workdir', type=Path, required=True, help='folder of the run')
    parser.add_argument('--prompt', required=True, help='the text to go on with')
    parser.add_argument('--max_tokens', type=int, default=200, help='bytes, characters, words or pieces to add')
    parser.add_argument('--temperature', type=float, default=1.0, help='0 = always the most probable token')
    parser.add_argument('--top_k', type=int, default=0, help='draw among the k most probable tokens; 0 = all')
    parser.add_argument('--top_p', type=float, default=1.0, help='draw from the nucleus of this probability; 1 = all')
    parser.add_argument('--seed', type=int, default=0, help='another seed draws another text')
    parser.add_argument('--checkpoint', default='last', help='last (the default), best or a step')
    arguments = parser.parse_args()
    from efficient_attention.inference.generate import TextGenerator
    from efficient_attention.inference.sampling import Sampling

    sampling = Sampling(arguments.temperature, arguments.top_k, arguments.top_p)
    generate = TextGenerator(arguments.workdir, checkpoint=arguments.checkpoint)
    for part in generate(arguments.prompt, max_tokens=arguments.max_tokens, sampling=sampling, seed=arguments.seed):
        print(part, end='', flush=True)
    print()


if __name__ == '__main__':
    run_command(main)
