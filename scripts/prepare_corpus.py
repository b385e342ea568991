"""Prepares a corpus and says where it lies.

    python scripts/prepare_corpus.py --source 'text:books/*.txt' --vocab_size 8192

A run prepares its corpus by itself; this does it beforehand. The fields are those of a config's `data` group.
"""

import argparse

from efficient_attention.data.config import DataConfig
from efficient_attention.training.command import run_command

FIELDS = {
    'source': 'stdlib | text:<glob>[#paragraphs] | jsonl:<glob>#<field> | arrayrecord:<glob> | tfds:<name>#<field>',
    'held_out': 'share of the documents held out',
    'cache': 'folder of prepared corpora',
    'processes': '0 = one for each core',
    'tokenizer': 'train:wordpiece | train:unigram | train:bpe | path to vocab.txt, tokenizer.json or *.model',
    'vocab_size': 'pieces, special tokens included',
    'lowercase': 'lower-case and strip accents: true | false',
}


def main() -> None:
    """Reads the arguments, prepares and prints the folder and what is in it."""
    config = DataConfig(**vars(_parser().parse_args()))
    from efficient_attention.data.prepare import describe_counts, prepare  # after the arguments are known to be good

    prepared = prepare(config)
    print(describe_counts(prepared.manifest['counts']))
    print(prepared.folder)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    defaults = DataConfig()
    for name, meaning in FIELDS.items():
        default = getattr(defaults, name)
        kind = _boolean if isinstance(default, bool) else type(default)
        parser.add_argument(f'--{name}', type=kind, default=default, help=f'{meaning} (default: {default})')
    return parser


def _boolean(text: str) -> bool:
    if text.lower() not in ('true', 'false'):
        raise argparse.ArgumentTypeError(f'{text!r} is neither true nor false')
    return text.lower() == 'true'


if __name__ == '__main__':
    run_command(main)
