"""Prepares a corpus and says where it lies.

    python scripts/prepare_corpus.py --source 'text:books/*.txt' --vocab_size 8192
    python scripts/prepare_corpus.py --held_out 0.1 --training_documents cache/train.jsonl

A run prepares its corpus by itself; this does it beforehand. The fields are those of a config's `data` group. With
--training_documents it writes the documents to train on instead, as JSON lines with the field 'text': to choose
settings on a part of them (`data.source='jsonl:cache/train.jsonl#text'`) that the final figure does not use.
"""

import argparse
import json
from pathlib import Path

from efficient_attention.commands.flags import run_command
from efficient_attention.config.data import DataConfig

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
    """Reads the arguments, prepares and prints the folder and what is in it; or writes the training documents."""
    arguments = vars(_parser().parse_args())
    output: Path | None = arguments.pop('training_documents')
    config = DataConfig(**arguments)
    if output:
        write_training_documents(config, output)
        return
    from efficient_attention.data.corpus.prepare import (  # after the arguments are known to be good
        describe_counts,
        prepare_corpus,
    )

    prepared = prepare_corpus(config)
    print(describe_counts(prepared.manifest['counts']))
    print(prepared.folder)


def write_training_documents(config: DataConfig, output: Path) -> None:
    """Writes the documents of the train split as JSON lines and prints how many there are."""
    from efficient_attention.data.corpus.prepare import training_documents

    lines = [json.dumps({'text': text}) for text in training_documents(config)]
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text('\n'.join(lines) + '\n', encoding='utf-8')
    print(f'{len(lines):,} documents to train on: {output}')


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    defaults = DataConfig()
    for name, meaning in FIELDS.items():
        default = getattr(defaults, name)
        kind = _boolean if isinstance(default, bool) else type(default)
        parser.add_argument(f'--{name}', type=kind, default=default, help=f'{meaning} (default: {default})')
    parser.add_argument('--training_documents', type=Path, help='JSON lines to write the training documents into')
    return parser


def _boolean(text: str) -> bool:
    if text.lower() not in ('true', 'false'):
        raise argparse.ArgumentTypeError(f'{text!r} is neither true nor false')
    return text.lower() == 'true'


if __name__ == '__main__':
    run_command(main)
