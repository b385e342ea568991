"""Prepares a pretraining corpus before training: tokenizes its documents, and prints the folder of the result.

    python scripts/prepare_corpus.py --source 'text:books/*.txt' --vocab_size 8192
    python scripts/prepare_corpus.py --held_out 0.1 --training_documents cache/train.jsonl

A training run prepares its corpus itself; this command does it beforehand. The flags are the fields of the config's
`data` group.

With --training_documents it only writes the training documents, as JSON lines with the field 'text'. With a part of
these documents, you can choose settings (`data.source='jsonl:cache/train.jsonl#text'`) without touching the final
held-out documents.

    python scripts/prepare_corpus.py --source 'text:books/*.txt' --tokenizer train:unigram --sentinels 28

--sentinels is for denoising. For `noise.name` 'span_corruption' (T5), the run prints how many sentinels a text needs.
For 'bart' it is 0.
"""

from efficient_attention.processes.signal_thread import catch_stop_signals

if __name__ == '__main__':
    catch_stop_signals()  # Stop signals are handled from here on, so that Ctrl-C works during the slow imports.

import json
import sys
from pathlib import Path

from absl import flags

from efficient_attention.atomic_files import write_atomically
from efficient_attention.commands.command_line import parse_flags, run_command
from efficient_attention.commands.flags import define_path
from efficient_attention.config.data import DataConfig

FIELDS = {
    'source': 'stdlib | text:<glob>[#paragraphs] | jsonl:<glob>#<field> | parquet:<glob>#<field> | '
    'arrow:<folder>#<field> | dump:<glob> | arrayrecord:<glob> | tfds:<name>#<field>',
    'held_out': 'share of the documents held out',
    'cache': 'folder of prepared corpora',
    'processes': '0 = one per core',
    'tokenizer': 'train:wordpiece | train:unigram | train:bpe | path to vocab.txt, tokenizer.json or *.model',
    'vocab_size': 'pieces, special tokens included',
    'lowercase': 'lower-case and strip accents',
}
DEFINE = {str: flags.DEFINE_string, int: flags.DEFINE_integer, float: flags.DEFINE_float, bool: flags.DEFINE_bool}


def main() -> None:
    """Reads the flags, and prepares the corpus or, with --training_documents, only writes the training documents."""
    options = define_flags()
    parse_flags(sys.argv, options=options)
    config = DataConfig(**{name: options[name].value for name in FIELDS})
    if options.training_documents:
        write_training_documents(config, options.training_documents)
        return
    from efficient_attention.data.corpus.prepare import (  # imported late, so that flag errors are fast
        describe_counts,
        prepare_corpus,
    )

    prepared = prepare_corpus(config, sentinels=options.sentinels)
    print(describe_counts(prepared.manifest['counts']))
    print(prepared.folder)


def write_training_documents(config: DataConfig, output: Path) -> None:
    """Writes the documents of the training split as JSON lines, and prints their number."""
    from efficient_attention.data.corpus.prepare import training_documents

    lines = [json.dumps({'text': text}) for text in training_documents(config)]
    write_atomically(output, '\n'.join(lines) + '\n')
    print(f'{len(lines):,} documents to train on: {output}')


def define_flags() -> flags.FlagValues:
    """Defines the command-line flags of this script, mostly fields of the config's `data` group, and returns them."""
    options, defaults = flags.FlagValues(), DataConfig()
    for name, meaning in FIELDS.items():
        default = getattr(defaults, name)
        DEFINE[type(default)](name, default, meaning, flag_values=options)
    define_sentinels(options)
    define_path('training_documents', 'JSON lines to write the training documents into.', options=options)
    return options


def define_sentinels(options: flags.FlagValues) -> None:
    """Defines --sentinels, the number of sentinel tokens in a corpus for denoising."""
    meaning = (
        'for denoising: number of T5 sentinels in a trained tokenizer, 0 = none; a tokenizer file brings its own '
        "sentinels, and may lack an encoder's special tokens"
    )
    flags.DEFINE_integer('sentinels', None, meaning, lower_bound=0, flag_values=options)


if __name__ == '__main__':
    run_command(main)
