"""What do the heads of a model do? Measures them on texts and on sentences with dependencies, for one report."""

import copy
import dataclasses
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flax import nnx

from efficient_attention.data.sources.text_files import find_files, read_text
from efficient_attention.errors import InputError, counted, require_at_least
from efficient_attention.inference.attention_pipeline import (
    AttentionPipeline,
    EncoderRows,
    TokenRow,
    open_attention_pipeline,
)
from efficient_attention.inspection.dependencies import (
    LEAST_CASES,
    ReadSentence,
    RelationCounts,
    Sentence,
    best_heads,
    read_dependencies,
    read_weights,
)
from efficient_attention.inspection.head_comparison import compare_pictures
from efficient_attention.inspection.head_removal import measure_removal
from efficient_attention.inspection.head_statistics import HeadDistances, HeadStatistics, key_classes, map_of_heads
from efficient_attention.inspection.probes import attachment_score, offset_attachment_score, train_probe
from efficient_attention.models.unstacked_layers import lay_out_for_inference

LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class HeadOptions:
    """Options of `analyze_heads`.

    Attributes:
        text: files of plain text, or of images for a model of images; globs, comma-separated; '' = none.
        dependencies: two CoNLL-U files, dev and test; empty = none.
        checkpoint: a workdir's checkpoint; '' = the best if one is known, else the last.
        length: most tokens of a window; 0 = as many as the model reads.
        limit: at most this many windows per text file; 0 = all.
        compared: windows in which pictures are compared with leaving tokens out; 0 = none.
        least_cases: fewest test cases of a relation in the table.
        seed: random seed of the copy with random weights.
        removal: a metric of the run's evaluation, measured without some heads; '' = none.
    """

    text: str = ''
    dependencies: Sequence[str] = ()
    checkpoint: str = ''
    length: int = 0
    limit: int = 32
    compared: int = 20
    least_cases: int = LEAST_CASES
    seed: int = 0
    removal: str = ''

    def __post_init__(self) -> None:
        if not (self.text or self.dependencies or self.removal):
            raise InputError('there is nothing to measure: give --text, --dependencies or --removal')
        if len(self.dependencies) not in (0, 2):
            raise InputError(f'--dependencies names {counted(len(self.dependencies), "file")}; it must be DEV TEST')
        for name in ('length', 'limit', 'compared', 'seed'):
            require_at_least(0, f'--{name}', getattr(self, name))
        require_at_least(1, '--least_cases', self.least_cases)


def analyze_heads(model: Path, options: HeadOptions) -> dict[str, Any]:
    """Returns what the heads of a model do, as values for JSON.

    'heads' has the statistics of each head, 'map' a place in the plane for each, 'relations' the best head of each
    dependency, 'probe' the attachment scores, 'agreement' the rank correlations with leaving tokens out, and 'removal'
    a metric without some heads. Parts without data are missing.

    Args:
        model: a workdir or a Hugging Face folder.
        options: see `HeadOptions`.

    Raises:
        InputError: a file or a number is invalid, the model has no attention weights or no tokenizer.
    """
    files = find_files(options.text) if options.text else []
    dev, test = [read_dependencies(Path(path)) for path in options.dependencies] or ([], [])
    if dev and dev == test:
        LOG.warning('dev and test have the same sentences: heads are counted on the sentences that chose them')
    pipeline = open_attention_pipeline(model, options.checkpoint, {'length': options.length})
    found: dict[str, Any] = {'model': str(model), 'length': pipeline.rows.length}
    if dev and image_shape_of(pipeline):
        raise InputError(f'{model} reads images; --dependencies needs a model of texts')
    if files:
        texts = [rows for path in files if (rows := first_windows(pipeline, path, options.limit))]
        found |= measure_texts(pipeline, texts)
        if options.compared and isinstance(pipeline.rows, EncoderRows):
            found['agreement'] = compare_pictures(pipeline, [row for rows in texts for row in rows], options.compared)
    if dev:
        found |= measure_dependencies(pipeline, dev, test, options)
    if options.removal:
        found['removal'] = measure_removal(model, options.removal, options.checkpoint)
    return found


def first_windows(pipeline: AttentionPipeline, path: Path, limit: int) -> list[TokenRow]:
    """Returns the first windows of a file's text, or the one of an image; a line of the log says how many are read.

    Raises:
        InputError: the file has no text, or is no image of the model's size.
    """
    if image_shape_of(pipeline):
        return pipeline.rows.windows(str(path))
    text = read_text(path)
    if not text.strip():
        raise InputError(f'{path}: the file has no text')
    rows = pipeline.rows.windows(text)
    kept = rows[:limit] if limit else rows
    if len(rows) > 1:
        first = '' if len(kept) == len(rows) else f'; the first {len(kept)} are read (--limit)'
        LOG.warning('%s: %d windows of up to %d tokens%s', path, len(rows), pipeline.rows.length, first)
    return kept


def image_shape_of(pipeline: AttentionPipeline) -> tuple[int, ...] | None:
    """Returns the height, width and channels of the images that a language model of images reads; else None."""
    return getattr(pipeline.rows, 'image_shape', None) or None


def measure_texts(pipeline: AttentionPipeline, texts: Sequence[list[TokenRow]]) -> dict[str, Any]:
    """Returns the statistics and the map of all heads, over the windows of texts.

    Segment memory passes between the windows of a text, so the windows of one text must be in order.
    """
    statistics, distances, tokens = HeadStatistics(image_shape_of(pipeline)), HeadDistances(), 0
    for rows in texts:
        for row, window in zip(rows, pipeline.read(rows), strict=True):
            classes = key_classes(pipeline.rows, row, window['key_tokens'])
            tokens += len(row.names)
            for layer in window['layers']:
                statistics.add(layer, classes)
                distances.add(layer)
            distances.end_window()
    places = map_of_heads(distances.result())
    pairs = zip(distances.heads, places.tolist(), strict=True)
    return {
        'windows': sum(map(len, texts)),
        'tokens': tokens,
        'heads': statistics.result(),
        'map': [{'layer': layer, 'head': head, 'place': place} for (layer, head), place in pairs],
    }


def measure_dependencies(
    pipeline: AttentionPipeline, dev: Sequence[Sentence], test: Sequence[Sentence], options: HeadOptions
) -> dict[str, Any]:
    """Returns the best head per relation and the probe's attachment score, beside offsets and random weights."""
    read, relations, scores = [], [], []
    for one in (pipeline, with_random_weights(pipeline, options.seed)):
        (dev_read, heads), (test_read, _) = (read_weights(one, sentences) for sentences in (dev, test))
        read = [dev_read, test_read]
        dev_counts, test_counts = RelationCounts(dev_read), RelationCounts(test_read)
        relations.append(best_heads(dev_counts, test_counts, heads, options.least_cases))
        scores.append(attachment_score(train_probe(dev_read), test_read))
    for trained, random in zip(*relations, strict=True):
        trained['random_accuracy'] = random['accuracy']
    offset, of_offset = offset_attachment_score(*([one.sentence for one in sentences] for sentences in read))
    probe = {'attachment_score': scores[0], 'random_attachment_score': scores[1]}
    return {
        'sentences': {'dev': sentence_counts(dev, read[0]), 'test': sentence_counts(test, read[1])},
        'relations': relations[0],
        'probe': probe | {'offset': offset, 'offset_attachment_score': of_offset},
    }


def sentence_counts(given: Sequence[Sentence], read: Sequence[ReadSentence]) -> dict[str, int]:
    """Returns the number of sentences that were read, and of those of two or more words that fit no row."""
    left_out = sum(len(one.words) > 1 for one in given) - len(read)
    if left_out:
        LOG.warning('%s do not fit one row and are left out', counted(left_out, 'sentence'))
    return {'read': len(read), 'left_out': left_out}


def with_random_weights(pipeline: AttentionPipeline, seed: int) -> AttentionPipeline:
    """Returns a pipeline for the same model with newly drawn parameters."""
    rows = copy.copy(pipeline.rows)
    config = dataclasses.replace(rows.model.config, quantization='none')
    graph, state = nnx.split(type(rows.model)(config, rngs=nnx.Rngs(seed)))
    rows.model = nnx.merge(*lay_out_for_inference(graph, nnx.to_pure_dict(state)))
    return AttentionPipeline(rows, layers=pipeline.layers, heads=pipeline.heads)
