"""Fields of the config group `eval`: when a run is evaluated, on which rows, and with which beam search."""

import dataclasses

from efficient_attention.config.field_metadata import field_read_by_tasks
from efficient_attention.config.value_checks import check_in_interval, check_one_of
from efficient_attention.errors import InputError

PENALTIES = ('gnmt', 'length')
STOPS = ('exact', 'early', 'first')
SPLITS = ('held_out', 'test')


@dataclasses.dataclass(frozen=True)
class EvalConfig:
    """Settings of the evaluations of a run, on held-out or test data.

    Raises:
        InputError: a field is out of range; the message names the field, its value and the allowed values.
    """

    every_steps: int = 500  # steps between evaluations; the last step is always evaluated
    # rows per batch; with memory, the text is cut into this many parts, and each part starts with an empty memory
    batch_size: int = 32
    # number of held-out texts for which each evaluation prints and stores an output: filled masks, a continuation or a
    # target; 0 = none.
    # There are no samples if the parameters are sharded over several processes.
    samples: int = field_read_by_tasks('pretraining', 'language_modelling', 'text_to_text', default=3)
    # split to evaluate: 'held_out' | 'test'
    # Fine-tuning reads examples.dev for 'held_out'. For 'test' it reads examples.test, which needs labels.
    split: str = field_read_by_tasks('language_modelling', 'text_to_text', 'fine_tuning', default='held_out')
    # length of a language model's evaluation window, in tokens; 0 = data.length
    context: int = field_read_by_tasks('language_modelling', default=0)
    # number of tokens by which the evaluation window moves; the model predicts this many tokens per window.
    # The value 0 means `context`, so that windows do not overlap.
    stride: int = field_read_by_tasks('language_modelling', default=0)
    # tokens of memory before each segment of `context` tokens; -1 = model.memory_length
    memory_length: int = field_read_by_tasks('language_modelling', default=-1)
    # number of compressed positions before the memory; -1 = model.compressed_length, or 0 without memory
    compressed_length: int = field_read_by_tasks('language_modelling', default=-1)
    # in evaluations, relative distances above this number of positions count as this number; -1 = model.clamp_length
    clamp_length: int = field_read_by_tasks('language_modelling', default=-1)
    # True = evaluate with memory as if model.same_length were True; no effect if that field is already True
    same_length: bool = field_read_by_tasks('language_modelling', default=False)

    # number of beams in the beam search of text_to_text; see inference/beam_search.py
    beams: int = field_read_by_tasks('text_to_text', default=4)
    # formula of the length penalty: 'gnmt' | 'length'
    penalty: str = field_read_by_tasks('text_to_text', default='gnmt')
    alpha: float = field_read_by_tasks('text_to_text', default=0.6)  # exponent of the length penalty
    # when the beam search of a text ends: 'exact' | 'early' | 'first'; see inference/beam_search.py
    stop: str = field_read_by_tasks('text_to_text', default='exact')
    # penalty on repeated tokens; values above 1 make repetitions rarer
    repetition_penalty: float = field_read_by_tasks('text_to_text', default=1.0)
    # no sequence of this many tokens occurs twice in one output; 0 = no limit
    no_repeat_ngram_size: int = field_read_by_tasks('text_to_text', default=0)

    def __post_init__(self) -> None:
        check_in_interval('eval.every_steps', self.every_steps, 1)
        check_in_interval('eval.batch_size', self.batch_size, 1)
        check_in_interval('eval.samples', self.samples, 0, 100)
        check_one_of('eval.split', self.split, SPLITS)
        check_in_interval('eval.beams', self.beams, 1)
        check_one_of('eval.penalty', self.penalty, PENALTIES)
        check_in_interval('eval.alpha', self.alpha, -10, 10)
        check_one_of('eval.stop', self.stop, STOPS)
        check_in_interval('eval.repetition_penalty', self.repetition_penalty, 0, low_is_open=True)
        check_in_interval('eval.no_repeat_ngram_size', self.no_repeat_ngram_size, 0)
        check_in_interval('eval.context', self.context, 0)
        check_in_interval('eval.stride', self.stride, 0)
        check_in_interval('eval.memory_length', self.memory_length, -1)
        check_in_interval('eval.compressed_length', self.compressed_length, -1)
        check_in_interval('eval.clamp_length', self.clamp_length, -1)
        if self.context and self.stride > self.context:
            raise InputError(
                f'eval.stride is {self.stride}, above eval.context {self.context}: tokens would be left out'
            )


def has_held_out(held_out: float, split: str) -> bool:
    """Whether a run has data for its evaluations; always True for the test split.

    A missing test split is reported only when the split is read.

    Args:
        held_out: `data.held_out`, the held-out share of the documents.
        split: `eval.split`.
    """
    return split == 'test' or held_out > 0
