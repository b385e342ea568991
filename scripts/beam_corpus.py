"""The Apache Beam pipeline of `scripts/prepare_corpus_beam.py`: what runs on the workers.

Files are read, and their documents tokenised, wherever there is a worker. One worker sees the sizes of all documents of
a split and says which records a shard holds; each shard is then written by one worker, at most 256 MB at a time.
"""

import bisect
import dataclasses
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam

from efficient_attention.data.corpus.prepared_corpus import SPLITS
from efficient_attention.data.corpus.split_parts import (
    COUNTS,
    DocumentSizes,
    Place,
    RecordPlace,
    document_parts,
    shard_starts,
    write_shard,
    write_split_index,
)
from efficient_attention.data.preparation.held_out_documents import document_hash
from efficient_attention.data.sources.source import open_source

TRAIN, HELD_OUT = SPLITS


class Survey(beam.CombineFn):
    """(lowest, highest hash of a document, documents, characters) of texts."""

    def create_accumulator(self) -> tuple[int, int, int, int]:
        """Of no text."""
        return 2**64, -1, 0, 0

    def add_input(self, found: tuple[int, int, int, int], text: str) -> tuple[int, int, int, int]:
        """Of one more."""
        number = document_hash(text)
        return min(found[0], number), max(found[1], number), found[2] + 1, found[3] + len(text)

    def merge_accumulators(self, parts: Iterable[tuple[int, int, int, int]]) -> tuple[int, int, int, int]:
        """Of several workers'."""
        lows, highs, counts, characters = zip(*parts, strict=True)
        return min(lows), max(highs), sum(counts), sum(characters)

    def extract_output(self, found: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
        """As it is."""
        return found


def read_file(numbered: tuple[int, str]) -> Iterator[tuple[Place, str]]:
    """(place, text) of every document of a source of one file."""
    file, source = numbered
    for number, text in enumerate(open_source(source).documents()):
        yield (file, number), text


def documents_of(pipeline: beam.Pipeline, sources: list[str]) -> beam.PCollection:
    """(place, text) of every document, spread over the workers."""
    return (
        pipeline
        | 'files' >> beam.Create(list(enumerate(sources)))
        | 'spread files' >> beam.Reshuffle()
        | 'read' >> beam.FlatMap(read_file)
        | 'spread documents' >> beam.Reshuffle()
    )


def survey_corpus(pipeline: beam.Pipeline, sources: list[str], output: str) -> None:
    """The first pass: writes one line of text, 'file documents', for each file, and one 'survey' line, to `output`."""
    documents = documents_of(pipeline, sources)
    survey = documents | beam.Values() | beam.CombineGlobally(Survey())
    counts = documents | beam.Map(lambda document: (document[0][0], 1)) | beam.CombinePerKey(sum)
    lines = (
        survey | 'survey line' >> beam.Map(lambda found: ' '.join(map(str, ('survey', *found)))),
        counts | 'count line' >> beam.Map(lambda count: f'{count[0]} {count[1]}'),
    )
    lines | beam.Flatten() | 'write survey' >> beam.io.WriteToText(output, shard_name_template='')


def tokenise(document: tuple[Place, str], threshold: int, tokenizer_file: str, size: int) -> Iterator[Any]:
    """Gives a document's sizes and, under their places, its records; each with the split's name."""
    place, text = document
    split = HELD_OUT if document_hash(text) < threshold else TRAIN
    parts = document_parts(text, tokenizer_file, size)
    if not parts.sections:
        return
    sizes = DocumentSizes(place, parts.sections, [len(record) for record in parts.records])
    yield beam.pvalue.TaggedOutput('sizes', (split, sizes))
    for number, record in enumerate(parts.records):
        yield split, (*place, number), record


def plan_split(split: tuple[str, Iterable[DocumentSizes]], shard_bytes: int) -> tuple[str, list[RecordPlace]]:
    """The first record of each shard of a split."""
    name, documents = split
    ordered = sorted(documents, key=lambda document: document.place)
    return name, shard_starts(((document.place, document.record_bytes) for document in ordered), shard_bytes)


def in_shard(
    record: tuple[str, RecordPlace, bytes], plan: dict[str, list[RecordPlace]]
) -> tuple[tuple[str, int], tuple[RecordPlace, bytes]]:
    """A record under the split and the number of its shard."""
    split, place, content = record
    return (split, bisect.bisect_right(plan[split], place) - 1), (place, content)


def write_records(shard: tuple[tuple[str, int], Iterable[tuple[RecordPlace, bytes]]], folder: str) -> None:
    """Writes one shard."""
    (split, number), records = shard
    write_shard(Path(folder), split, number, (content for _, content in sorted(records)))


def write_index(
    split: tuple[str, Iterable[DocumentSizes]], plan: dict[str, list[RecordPlace]], folder: str, firsts: dict[int, int]
) -> str:
    """Writes the index files of a split; returns its name and counts as a line."""
    name, documents = split
    ordered = sorted(documents, key=lambda document: document.place)
    counts = write_split_index(Path(folder) / name, ordered, plan[name], firsts)
    return ' '.join(map(str, (name, *counts.values())))


@dataclasses.dataclass(frozen=True)
class Target:
    """What the second pass writes, and with what.

    Attributes:
        folder: of the corpus, with a folder for each split.
        tokenizer_file: of the tokenizer, which every worker opens.
        vocabulary_size: of the tokenizer.
        threshold: documents with a lower hash are held out.
        firsts: number of the first document of each file.
        shard_bytes: of a shard, about.
    """

    folder: Path
    tokenizer_file: Path
    vocabulary_size: int
    threshold: int
    firsts: dict[int, int]
    shard_bytes: int


def write_corpus(pipeline: beam.Pipeline, sources: list[str], target: Target) -> None:
    """The second pass: writes shards and index files of both splits, and a line of counts for each to COUNTS."""
    folder, documents = str(target.folder), documents_of(pipeline, sources)
    tokenised = documents | 'tokenise' >> beam.FlatMap(
        tokenise, target.threshold, str(target.tokenizer_file), target.vocabulary_size
    ).with_outputs('sizes', main='records')
    sizes = tokenised.sizes | 'sizes of a split' >> beam.GroupByKey()
    plan = beam.pvalue.AsDict(sizes | 'plan' >> beam.Map(plan_split, target.shard_bytes))
    (
        tokenised.records
        | 'find shard' >> beam.Map(in_shard, plan)
        | 'records of a shard' >> beam.GroupByKey()
        | 'write shard' >> beam.Map(write_records, folder)
    )
    lines = sizes | 'write index' >> beam.Map(write_index, plan, folder, target.firsts)
    lines | 'write counts' >> beam.io.WriteToText(str(target.folder / COUNTS), shard_name_template='')
