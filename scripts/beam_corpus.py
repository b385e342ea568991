"""Defines the Apache Beam pipelines of `scripts/prepare_corpus_beam.py`: the code that runs on the workers.

All workers read files and tokenise documents. One worker per split gets the sizes of all documents and assigns their
records to shards. Each shard is then written by one worker, which holds at most 256 MB at a time.
"""

import bisect
import dataclasses
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam

from efficient_attention.data.corpus.distributed_split_writer import (
    COUNTS,
    DocumentSizes,
    Place,
    RecordPlace,
    encode_document,
    shard_starts,
    write_shard,
    write_split_index,
)
from efficient_attention.data.corpus.prepared_corpus import SPLITS
from efficient_attention.data.preparation.held_out_documents import document_hash
from efficient_attention.data.sources.text_source import open_source

TRAIN, HELD_OUT = SPLITS


class CorpusStatisticsFn(beam.CombineFn):
    """A Beam combiner that computes statistics of texts: lowest and highest document hash, and counts."""

    def create_accumulator(self) -> tuple[int, int, int, int]:
        """Returns the statistics of an empty set of texts."""
        return 2**64, -1, 0, 0

    def add_input(self, found: tuple[int, int, int, int], text: str) -> tuple[int, int, int, int]:
        """Returns the statistics, updated by one more text."""
        number = document_hash(text)
        return min(found[0], number), max(found[1], number), found[2] + 1, found[3] + len(text)

    def merge_accumulators(self, parts: Iterable[tuple[int, int, int, int]]) -> tuple[int, int, int, int]:
        """Returns the statistics of all texts, merged from the statistics of several workers."""
        lows, highs, counts, characters = zip(*parts, strict=True)
        return min(lows), max(highs), sum(counts), sum(characters)

    def extract_output(self, found: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
        """Returns the statistics unchanged, as the result of this combiner."""
        return found


def read_documents_of_file(numbered: tuple[int, str]) -> Iterator[tuple[Place, str]]:
    """Reads one file of the corpus source; yields (file number, document number) and the text of each document."""
    file, source = numbered
    for number, text in enumerate(open_source(source).documents()):
        yield (file, number), text


def read_all_documents(pipeline: beam.Pipeline, sources: list[str]) -> beam.PCollection:
    """Returns the Beam collection of all documents and their positions in the source, distributed over the workers."""
    return (
        pipeline
        | 'files' >> beam.Create(list(enumerate(sources)))
        | 'spread files' >> beam.Reshuffle()
        | 'read' >> beam.FlatMap(read_documents_of_file)
        | 'spread documents' >> beam.Reshuffle()
    )


def compute_corpus_statistics(pipeline: beam.Pipeline, sources: list[str], output: str) -> None:
    """Runs the first pass over a corpus: writes the number of documents per file, and statistics of all documents.

    The file `output` gets one line 'file documents' per file, and one line that begins with 'survey'.
    """
    documents = read_all_documents(pipeline, sources)
    survey = documents | beam.Values() | beam.CombineGlobally(CorpusStatisticsFn())
    counts = documents | beam.Map(lambda document: (document[0][0], 1)) | beam.CombinePerKey(sum)
    lines = (
        survey | 'survey line' >> beam.Map(lambda found: ' '.join(map(str, ('survey', *found)))),
        counts | 'count line' >> beam.Map(lambda count: f'{count[0]} {count[1]}'),
    )
    lines | beam.Flatten() | 'write survey' >> beam.io.WriteToText(output, shard_name_template='')


def tokenise(document: tuple[Place, str], threshold: int, tokenizer_file: str, size: int) -> Iterator[Any]:
    """Tokenises one document; yields its records with their positions in the corpus, and the sizes of the records.

    The sizes are a Beam output with the tag 'sizes'. All outputs contain the name of the document's split.
    """
    place, text = document
    split = HELD_OUT if document_hash(text) < threshold else TRAIN
    parts = encode_document(text, tokenizer_file, size)
    if not parts.sections:
        return
    sizes = DocumentSizes(place, parts.sections, [len(record) for record in parts.records])
    yield beam.pvalue.TaggedOutput('sizes', (split, sizes))
    for number, record in enumerate(parts.records):
        yield split, (*place, number), record


def plan_shards_of_split(split: tuple[str, Iterable[DocumentSizes]], shard_bytes: int) -> tuple[str, list[RecordPlace]]:
    """Divides the records of one split into shards; returns the split's name and the first record of each shard."""
    name, documents = split
    ordered = sorted(documents, key=lambda document: document.place)
    return name, shard_starts(((document.place, document.record_bytes) for document in ordered), shard_bytes)


def assign_to_shard(
    record: tuple[str, RecordPlace, bytes], plan: dict[str, list[RecordPlace]]
) -> tuple[tuple[str, int], tuple[RecordPlace, bytes]]:
    """Returns a record with the key (split, shard number), by which Beam groups the records of a shard."""
    split, place, content = record
    return (split, bisect.bisect_right(plan[split], place) - 1), (place, content)


def write_records(shard: tuple[tuple[str, int], Iterable[tuple[RecordPlace, bytes]]], folder: str) -> None:
    """Writes one shard file with the given records, in their order in the corpus."""
    (split, number), records = shard
    write_shard(Path(folder), split, number, (content for _, content in sorted(records)))


def write_index(
    split: tuple[str, Iterable[DocumentSizes]], plan: dict[str, list[RecordPlace]], folder: str, firsts: dict[int, int]
) -> str:
    """Writes the index files of one split; returns a text line with the split's name and counts."""
    name, documents = split
    ordered = sorted(documents, key=lambda document: document.place)
    counts = write_split_index(Path(folder) / name, ordered, plan[name], firsts)
    return ' '.join(map(str, (name, *counts.values())))


@dataclasses.dataclass(frozen=True)
class CorpusWriteSettings:
    """Settings of the second pass over a corpus: output folder, tokenizer, held-out threshold and shard size.

    Attributes:
        folder: the corpus folder, with one subfolder per split.
        tokenizer_file: the file of the tokenizer, which every worker opens.
        vocabulary_size: the tokenizer's number of pieces.
        threshold: documents with a lower hash are held out.
        firsts: for each file, the number of its first document.
        shard_bytes: approximate size of a shard.
    """

    folder: Path
    tokenizer_file: Path
    vocabulary_size: int
    threshold: int
    firsts: dict[int, int]
    shard_bytes: int


def write_corpus(pipeline: beam.Pipeline, sources: list[str], target: CorpusWriteSettings) -> None:
    """Runs the second pass over a corpus: tokenises all documents, and writes shards and index files of both splits.

    The file COUNTS in the output folder gets one line of counts per split.
    """
    folder, documents = str(target.folder), read_all_documents(pipeline, sources)
    tokenised = documents | 'tokenise' >> beam.FlatMap(
        tokenise, target.threshold, str(target.tokenizer_file), target.vocabulary_size
    ).with_outputs('sizes', main='records')
    sizes = tokenised.sizes | 'sizes of a split' >> beam.GroupByKey()
    plan = beam.pvalue.AsDict(sizes | 'plan' >> beam.Map(plan_shards_of_split, target.shard_bytes))
    (
        tokenised.records
        | 'find shard' >> beam.Map(assign_to_shard, plan)
        | 'records of a shard' >> beam.GroupByKey()
        | 'write shard' >> beam.Map(write_records, folder)
    )
    lines = sizes | 'write index' >> beam.Map(write_index, plan, folder, target.firsts)
    lines | 'write counts' >> beam.io.WriteToText(str(target.folder / COUNTS), shard_name_template='')
