"""Prepares a corpus and says where it lies.

    python scripts/prepare_corpus.py --source 'text:books/*.txt' --vocab_size 8192
    python scripts/prepare_corpus.py --held_out 0.1 --training_documents cache/train.jsonl

A run prepares its corpus by itself; this does it beforehand. The fields are those of a config's `data` group. With
--training_documents it writes the documents to train on instead, as JSON lines with the field 'text': to choose
settings on a part of them (`data.source='jsonl:cache/train.jsonl#text'`) that the final figure does not use.

    python scripts/prepare_corpus.py --source 'text:books/*.txt' --tokenizer train:unigram --sentinels 28

With --sentinels it is for a run whose `noise.name` is 'span_corruption' (T5), which prints how many a text needs, or
'bart' (0).
"""

from efficient_attention.processes.stopping import catch_stop_signals

if __name__ == '__main__':
    catch_stop_signals()  # before the imports, which take a while

import json
import sys
from pathlib import Path

from absl import flags

from efficient_attention.commands.command_line import parse_flags, run_command
from efficient_attention.commands.flags import define_path
from efficient_attention.config.data import DataConfig
from efficient_attention.whole_files import write_atomically

FIELDS = {
    'source': 'stdlib | text:<glob>[#paragraphs] | jsonl:<glob>#<field> | dump:<glob> | '
    'arrayrecord:<glob> | tfds:<name>#<field>',
    'held_out': 'share of the documents held out',
    'cache': 'folder of prepared corpora',
    'processes': '0 = one for each core',
    'tokenizer': 'train:wordpiece | train:unigram | train:bpe | path to vocab.txt, tokenizer.json or *.model',
    'vocab_size': 'pieces, special tokens included',
    'lowercase': 'lower-case and strip accents',
}
DEFINE = {str: flags.DEFINE_string, int: flags.DEFINE_integer, float: flags.DEFINE_float, bool: flags.DEFINE_bool}


def main() -> None:
    """Reads the flags, prepares and prints the folder and what is in it; or writes the training documents."""
    options = define_flags()
    parse_flags(sys.argv, options=options)
    config = DataConfig(**{name: options[name].value for name in FIELDS})
    if options.training_documents:
        write_training_documents(config, options.training_documents)
        return
    from efficient_attention.data.corpus.prepare import (  # after the arguments are known to be good
        describe_counts,
        prepare_corpus,
    )

    prepared = prepare_corpus(config, sentinels=options.sentinels)
    print(describe_counts(prepared.manifest['counts']))
    print(prepared.folder)


def write_training_documents(config: DataConfig, output: Path) -> None:
    """Writes the documents of the train split as JSON lines and prints how many there are."""
    from efficient_attention.data.corpus.prepare import training_documents

    lines = [json.dumps({'text': text}) for text in training_documents(config)]
    write_atomically(output, '\n'.join(lines) + '\n')
    print(f'{len(lines):,} documents to train on: {output}')


def define_flags() -> flags.FlagValues:
    """The flags of this command: fields of the data group with their defaults."""
    options, defaults = flags.FlagValues(), DataConfig()
    for name, meaning in FIELDS.items():
        default = getattr(defaults, name)
        DEFINE[type(default)](name, default, meaning, flag_values=options)
    define_sentinels(options)
    define_path('training_documents', 'JSON lines to write the training documents into.', options=options)
    return options


def define_sentinels(options: flags.FlagValues) -> None:
    """The flag of a corpus for text to text."""
    meaning = (
        "of a corpus for noise: T5's sentinels among the pieces of a trained tokenizer, 0 = none; one of a file has "
        "its own, and may lack an encoder's special tokens"
    )
    flags.DEFINE_integer('sentinels', None, meaning, lower_bound=0, flag_values=options)


if __name__ == '__main__':
    run_command(main)
