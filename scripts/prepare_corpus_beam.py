"""Prepares a pretraining corpus that is too large for one machine, with Apache Beam.

    make beam
    .venv-beam/bin/python scripts/prepare_corpus_beam.py --source 'dump:dumps/*.bz2' --tokenizer data/vocab.txt \
      --vocab_size 30522 --cache /shared/cache --direct_num_workers 8 --direct_running_mode multi_processing

It writes the same files as scripts/prepare_corpus.py. Unknown flags are passed to Beam: --runner (FlinkRunner,
SparkRunner, DataflowRunner; by default Beam runs on this machine) and the flags of the runner. This process and all
workers must see the files and the cache under the same paths. The tokenizer must be a file; train it on a part of the
corpus with scripts/prepare_corpus.py. A run with the same `data` fields finds the corpus in its cache. See
docs/large_corpora.md.
"""

from efficient_attention.processes.signal_thread import catch_stop_signals

if __name__ == '__main__':
    catch_stop_signals()  # Stop signals are handled from here on, so that Ctrl-C works during the slow imports.

import contextlib
import logging
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from absl import flags
from tokenizers import Tokenizer

from efficient_attention.commands.command_line import parse_flags, run_command
from efficient_attention.config.data import DataConfig
from efficient_attention.data.corpus.corpus_split_writer import SHARD_BYTES
from efficient_attention.data.corpus.distributed_split_writer import COUNTS, digest_split, write_split_index
from efficient_attention.data.corpus.prepare import (
    CorpusStatistics,
    corpus_folder,
    corpus_tokenizer,
    describe_counts,
    write_vocabulary_and_manifest,
)
from efficient_attention.data.corpus.prepared_corpus import SPLITS
from efficient_attention.data.preparation.cache_folder import MANIFEST, TOKENIZER, json_sha256, new_cache_folder
from efficient_attention.data.preparation.held_out_documents import held_out_threshold
from efficient_attention.data.sources.text_files import find_files
from efficient_attention.data.sources.text_source import open_source
from efficient_attention.errors import InputError, RunError, require

ROOT = Path(__file__).resolve().parent.parent
KINDS = ('dump', 'jsonl', 'parquet', 'text', 'arrayrecord')  # kinds of corpus sources that consist of files
RUNNER = 'FnApiRunner'  # this Beam runner runs in this process; 'DirectRunner' would download a program first
# This pattern finds an error of this project in Beam's traceback.
LINE = re.compile(r'(Input|Run)Error: (.*?)(?: \[while running|\n|\\n|$)')
FIELDS = ('source', 'held_out', 'cache', 'tokenizer', 'vocab_size', 'lowercase')


class FirstPassStatistics(NamedTuple):
    """The result of the first pass over a corpus: held-out threshold, characters, and document numbers."""

    threshold: int  # documents with a hash below this number are held out
    characters: int
    firsts: dict[int, int]  # {file number: number of the file's first document within the whole source}


def main() -> None:
    """Reads the flags, runs the two Beam pipelines, and prints the folder of the corpus."""
    options = define_flags()
    known = {f'--{name}' for name in options} | {f'--no{name}' for name in options}
    ours, beams = split_own_and_beam_flags(sys.argv[1:], known)
    parse_flags([sys.argv[0], *ours], options=options)
    config = DataConfig(**{name: options[name].value for name in FIELDS})
    sources = file_sources(config.source)
    tokenizer = corpus_tokenizer(config, is_text_to_text=options.sentinels is not None)
    if tokenizer is None:
        raise InputError(f'data.tokenizer is {config.tokenizer!r}; it must be a file here, so train it first')
    folder = corpus_folder(config, open_source(config.source).digest(), options.sentinels)
    if not (folder / MANIFEST).is_file():
        build_corpus(folder.absolute(), config, tokenizer, sources, beams, options.shard_bytes)
    print(folder)


def define_flags() -> flags.FlagValues:
    """Defines the flags of this script: fields of the config's `data` group, and the size of a shard; returns them."""
    from scripts.prepare_corpus import DEFINE, define_sentinels
    from scripts.prepare_corpus import FIELDS as MEANINGS

    options, defaults = flags.FlagValues(), DataConfig()
    for name in FIELDS:
        default = getattr(defaults, name)
        DEFINE[type(default)](name, default, MEANINGS[name], flag_values=options)
    define_sentinels(options)
    flags.DEFINE_integer('shard_bytes', SHARD_BYTES, 'bytes of ids after which a new shard begins', flag_values=options)
    return options


def split_own_and_beam_flags(arguments: list[str], known: set[str]) -> tuple[list[str], list[str]]:
    """Splits the command line into arguments of this script and arguments of Beam.

    Beam gets the flags that this script does not know, and the words that follow these flags.
    """
    ours: list[str] = []
    beams: list[str] = []
    chosen = ours
    for argument in arguments:
        if argument.startswith('--'):
            chosen = ours if argument.partition('=')[0] in known | {'--help'} else beams
        chosen.append(argument)
    return ours, beams


def file_sources(source: str) -> list[str]:
    """Splits a corpus source into one source per file; raises InputError if the source does not consist of files."""
    kind, _, rest = source.partition(':')
    require(kind in KINDS, 'data.source', source, f'made of files: {", ".join(f"{known}:<glob>" for known in KINDS)}')
    globs, hash_sign, suffix = rest.partition('#')
    files = [str(path.absolute()) for path in find_files(globs)]
    for path in files:
        require(not set(path) & set(',#*?['), 'a file of data.source', path, 'without , # * ? and [ in its name')
    return [f'{kind}:{path}{hash_sign}{suffix}' for path in files]


def build_corpus(
    folder: Path, config: DataConfig, tokenizer: Tokenizer, sources: list[str], beams: list[str], shard_bytes: int
) -> None:
    """Runs both Beam passes and writes the corpus; its folder appears only when the corpus is complete."""
    from scripts.beam_corpus import CorpusWriteSettings, write_corpus

    started = time.monotonic()
    survey = compute_statistics(config, folder.parent, sources, beams)
    with new_cache_folder(folder) as partial:
        partial.chmod(0o755)  # workers may run as other users, and must be able to open the folder
        tokenizer.save(str(partial / TOKENIZER))
        for split in SPLITS:
            (partial / split).mkdir()
        size = tokenizer.get_vocab_size()
        target = CorpusWriteSettings(partial, partial / TOKENIZER, size, survey.threshold, survey.firsts, shard_bytes)
        with run_beam_pipeline(beams) as pipeline:
            write_corpus(pipeline, sources, target)
        counts, unigram_counts, content = summarize_splits(partial, size)
        digest = open_source(config.source).digest()
        parts = CorpusStatistics(digest, content, survey.characters, counts, time.monotonic() - started)
        write_vocabulary_and_manifest(partial, config, tokenizer, unigram_counts, parts)
    print(f'{describe_counts(counts)}, in {time.monotonic() - started:.1f} s')


def compute_statistics(config: DataConfig, cache: Path, sources: list[str], beams: list[str]) -> FirstPassStatistics:
    """Runs the first Beam pass: counts and hashes all documents, and computes the threshold of held-out documents.

    Raises:
        InputError: there are no documents, or too few to hold some out.
    """
    from scripts.beam_corpus import compute_corpus_statistics

    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix='.survey-', dir=cache) as folder:
        Path(folder).chmod(0o755)
        with run_beam_pipeline(beams) as pipeline:
            compute_corpus_statistics(pipeline, sources, f'{folder}/survey.txt')
        lines = [line.split() for line in Path(folder, 'survey.txt').read_text(encoding='utf-8').splitlines()]
    found = {words[0]: [int(word) for word in words[1:]] for words in lines}
    lowest, highest, documents, characters = found.pop('survey')
    if not documents:
        raise InputError(f'data.source {config.source!r}: no text in it')
    counts = [found.get(str(file), [0])[0] for file in range(len(sources))]
    firsts = {file: sum(counts[:file]) for file in range(len(sources))}
    return FirstPassStatistics(held_out_threshold([lowest, highest], config.held_out), characters, firsts)


@contextlib.contextmanager
def run_beam_pipeline(beams: list[str]) -> Iterator[Any]:
    """Context with a Beam pipeline, which runs when the block ends.

    Raises:
        InputError, RunError: a worker raised this error.
        RunError: the pipeline ended with any other error.
    """
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions

    # below this level, Beam logs every channel that it opens
    logging.getLogger('apache_beam').setLevel(logging.WARNING)
    try:
        with beam.Pipeline(options=PipelineOptions([f'--runner={RUNNER}', *beams])) as pipeline:
            yield pipeline
    except (InputError, RunError):
        raise
    except Exception as error:
        raise unwrap_worker_error(error) from None


def unwrap_worker_error(error: Exception) -> InputError | RunError:
    """Returns the error that a Beam worker raised, extracted from the text of Beam's exception."""
    found = LINE.search(str(error))
    if found:
        return {'Input': InputError, 'Run': RunError}[found[1]](found[2])
    return RunError(f'{type(error).__name__}: {"".join(str(error).splitlines()[:1])}')


def summarize_splits(folder: Path, size: int) -> tuple[dict[str, dict[str, int]], np.ndarray, str]:
    """Counts and hashes the tokens of the training split and of the held-out split.

    Returns:
        The counts of each split, how often each token id occurs in the training split, and one hash of both splits.
    """
    lines = (folder / COUNTS).read_text(encoding='utf-8').splitlines()
    (folder / COUNTS).unlink()
    named = {words[0]: [int(word) for word in words[1:]] for words in (line.split() for line in lines)}
    counts, digests, unigram_counts = {}, [], np.zeros(size, np.int64)
    for split in SPLITS:
        numbers = named.get(split)
        if numbers is None:
            write_split_index(folder / split, [], [], {})
            numbers = [0, 0, 0, 0]
        digest, occurrences = digest_split(folder, split, size)
        digests.append(digest)
        unigram_counts = occurrences if split == 'train' else unigram_counts
        documents, sentences, records, shards = numbers
        tokens = int(occurrences.sum())
        counts[split] = {
            'documents': documents,
            'sentences': sentences,
            'tokens': tokens,
            'records': records,
            'shards': shards,
        }
    return counts, unigram_counts, json_sha256(digests)


if __name__ == '__main__':
    run_command(main)
