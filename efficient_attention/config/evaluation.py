"""Fields of the config group `eval`: the steps, batches and protocol of a run's evaluation."""

import dataclasses

from efficient_attention.config.checks import check_one_of, check_within
from efficient_attention.config.fields import read_by
from efficient_attention.errors import InputError

PENALTIES = ('gnmt', 'length')
STOPS = ('exact', 'early', 'first')
SPLITS = ('held_out', 'test')


@dataclasses.dataclass(frozen=True)
class EvalConfig:
    """Evaluation on held-out data.

    Raises:
        InputError: a field is out of range; names it, its value and what is allowed.
    """

    every_steps: int = 500  # steps between evaluations; the last step is evaluated, too
    batch_size: int = 32  # rows at a time; with memory the parts that the text is cut into, each without any at first
    # 'held_out' | 'test', of a fine-tuning run examples.dev | examples.test, whose rows then need labels
    split: str = read_by('language_modelling', 'text_to_text', 'fine_tuning', default='held_out')
    # tokens of text that a language model sees at once; 0 = data.length
    context: int = read_by('language_modelling', default=0)
    # tokens by which its window moves on, those that it predicts; 0 = the context: no overlap
    stride: int = read_by('language_modelling', default=0)
    # tokens of memory before a segment of `context` tokens; -1 = model.memory_length
    memory_length: int = read_by('language_modelling', default=-1)
    # slots of compressed memory before it; -1 = model.compressed_length, or none where there is no memory
    compressed_length: int = read_by('language_modelling', default=-1)
    clamp_length: int = read_by('language_modelling', default=-1)  # as model.clamp_length, which -1 stands for
    # as model.same_length; either turns it on, where there is memory
    same_length: bool = read_by('language_modelling', default=False)

    # of text to text: how what a model makes of the sources is searched, see inference/beam_search.py
    beams: int = read_by('text_to_text', default=4)
    penalty: str = read_by('text_to_text', default='gnmt')  # 'gnmt' | 'length'
    alpha: float = read_by('text_to_text', default=0.6)  # exponent of the length penalty
    stop: str = read_by('text_to_text', default='exact')  # 'exact' | 'early' | 'first', when the search of a text ends
    repetition_penalty: float = read_by('text_to_text', default=1.0)  # above 1 repetitions become rarer
    # tokens of a sequence that no text has twice; 0 = any may repeat
    no_repeat_ngram_size: int = read_by('text_to_text', default=0)

    def __post_init__(self) -> None:
        check_within('eval.every_steps', self.every_steps, 1)
        check_within('eval.batch_size', self.batch_size, 1)
        check_one_of('eval.split', self.split, SPLITS)
        check_within('eval.beams', self.beams, 1)
        check_one_of('eval.penalty', self.penalty, PENALTIES)
        check_within('eval.alpha', self.alpha, -10, 10)
        check_one_of('eval.stop', self.stop, STOPS)
        check_within('eval.repetition_penalty', self.repetition_penalty, 0, low_is_open=True)
        check_within('eval.no_repeat_ngram_size', self.no_repeat_ngram_size, 0)
        check_within('eval.context', self.context, 0)
        check_within('eval.stride', self.stride, 0)
        check_within('eval.memory_length', self.memory_length, -1)
        check_within('eval.compressed_length', self.compressed_length, -1)
        check_within('eval.clamp_length', self.clamp_length, -1)
        if self.context and self.stride > self.context:
            raise InputError(
                f'eval.stride is {self.stride}, above eval.context {self.context}: tokens would be left out'
            )


def has_held_out(held_out: float, split: str) -> bool:
    """Whether a run has anything to be evaluated on; a test split that is asked for is checked when it is read.

    Args:
        held_out: `data.held_out`, the share of the documents.
        split: `eval.split`.
    """
    return split == 'test' or held_out > 0
