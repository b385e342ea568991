"""Defines the types of the keyword options of `pipeline`, `evaluate_workdir` and `predict_files`.

Every option is optional. The dataclass with the fields defines defaults and ranges.
"""

from collections.abc import Sequence
from typing import TypedDict


class EvalOptions(TypedDict, total=False):
    """Keyword options of an evaluation: each replaces the field of the same name in a run's `EvalConfig`.

    The fields `batch_size` and `samples` are not among them.
    """

    every_steps: int
    split: str
    context: int
    stride: int
    memory_length: int
    compressed_length: int
    clamp_length: int
    same_length: bool
    beams: int
    penalty: str
    alpha: float
    stop: str
    repetition_penalty: float
    no_repeat_ngram_size: int


class ExampleOptions(TypedDict, total=False):
    """Keyword options about example files: each replaces the field of the same name in a run's `ExamplesConfig`."""

    problem: str
    format: str
    name: str
    train: str
    dev: str
    test: str
    text: str
    text_pair: str
    label: str
    id: str
    labels: tuple[str, ...]
    towers: bool
    cache: str
    sentences: int
    overlong: str
    stride: int
    question_length: int
    answer_length: int
    best_count: int
    has_no_answer: bool
    has_global: bool
    epochs: float
    warmup_share: float
    buckets: tuple[int, ...]


class SearchOptions(TypedDict, total=False):
    """Keyword options of text generation: the fields of `DecodingOptions`, except `batch_size`."""

    beams: int
    best: int
    penalty: str
    alpha: float
    max_tokens: int
    min_tokens: int
    ratio: float
    extra: int
    stop: str
    repetition_penalty: float
    no_repeat_ngram_size: int
    bad_words_ids: Sequence[Sequence[int]]
    suppress_tokens: Sequence[int]
    begin_suppress_tokens: Sequence[int]
    ends: Sequence[int]
    do_sample: bool
    temperature: float
    top_k: int
    top_p: float
    seed: int


class PipelineOptions(ExampleOptions, SearchOptions, total=False):
    """The keyword options of all pipelines together; each pipeline accepts only the options that it uses."""

    top: int  # 'fill-mask': number of tokens returned per mask
    pooling: str  # 'feature-extraction': pooling of token vectors, 'none', 'first' or 'mean'
    prefix: str | None  # text-to-text: prefix of each text; None = the checkpoint's prefix
    alignments: bool  # text-to-text: whether cross-attention weights are returned
    layers: Sequence[int] | None  # 'attention': numbers of the layers to return, from 0
    heads: Sequence[int] | None  # 'attention': numbers of the heads to return, from 0
