"""Fields of the config group `examples`: the labelled files of a fine-tuning run and how they become token rows."""

import dataclasses

from efficient_attention.config.field_metadata import (
    CHANGEABLE,
    CHANGEABLE_WITH_MORE_STEPS,
    COMMA_LIST,
    EXPORTED,
    field_with_marks,
)
from efficient_attention.config.value_checks import check_in_interval, check_one_of
from efficient_attention.errors import InputError, require

PROBLEMS = (
    'none',
    'classification',
    'regression',
    'token_classification',
    'multiple_choice',
    'question_answering',
    'multi_hop',
)
FORMATS = ('table', 'glue', 'arena', 'conll', 'swag', 'race', 'squad', 'hotpotqa')
MOST_SENTENCES = 2**12
OVERLONG = ('truncate', 'error', 'skip', 'windows')
# Each length is at most 1.5 times the length before it, which gives little padding and few lengths to compile for.
_UP_TO_512 = (8, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128, 160, 192, 256, 320, 384, 512)
BUCKETS = (*_UP_TO_512, 768, 1024, 1536, 2048, 3072, 4096)


@dataclasses.dataclass(frozen=True)
class ExamplesConfig:
    """Labelled files of a fine-tuning run, and how their examples become rows of tokens.

    Raises:
        InputError: a field is out of range; the message names the field, its value and the allowed values.
    """

    # problem to learn: 'classification' | 'regression' | 'token_classification' | 'multiple_choice' | ...
    # More values of `problem`: 'question_answering' | 'multi_hop' | 'none'.
    problem: str = 'none'
    # format of the files: 'table' | 'glue' | 'conll' | 'swag' | 'race' | 'squad' | 'hotpotqa' | 'arena'.
    # With format 'arena', `train`, `dev` and `test` name datasets of Long Range Arena (data/arena/dataset_registry.py).
    format: str = 'table'
    # GLUE task, for format 'glue': 'cola', 'sst2', 'mrpc', 'qqp', 'stsb', 'mnli', 'qnli', 'rte', 'wnli', 'ax'
    name: str = ''
    # training files: paths or globs, separated by commas, or tfds:<name>[/<config>]:<split>
    train: str = field_with_marks(COMMA_LIST, default='')
    dev: str = field_with_marks(COMMA_LIST, default='')  # files for evaluation, in the same syntax as `train`
    # files for predictions, and for `eval --split test` if they have labels; '' = none
    test: str = field_with_marks(COMMA_LIST, default='')
    text: str = 'text'  # column of the text in files of format 'table' (CSV, TSV, JSONL, Parquet, ...)
    text_pair: str = ''  # column of a second text in format 'table'; '' = no second text
    label: str = 'label'  # column of the label in format 'table'
    id: str = ''  # column of each example's identifier, which predictions repeat; '' = the row number
    labels: tuple[str, ...] = ()  # label names in the order of the outputs; () = sorted labels of the training files
    # True = the encoder reads the two texts of an example as separate rows; needs head.kind 'towers'
    towers: bool = False
    # folder of the prepared rows of datasets of format 'arena'
    cache: str = field_with_marks(CHANGEABLE, default='cache')
    # maximum number of sentences per text, each encoded as a row of data.length tokens; 0 = do not split into sentences
    sentences: int = 0
    # how to handle a text above data.length tokens: 'truncate' | 'error' | 'skip' | 'windows' (overlapping rows)
    overlong: str = 'truncate'
    # tokens between the starts of two windows (problem 'question_answering', or overlong 'windows')
    stride: int = field_with_marks(EXPORTED, default=128)
    question_length: int = field_with_marks(EXPORTED, default=64)  # maximum number of tokens in a question
    answer_length: int = field_with_marks(EXPORTED, default=30)  # maximum number of tokens in an answer
    best_count: int = field_with_marks(EXPORTED, default=20)  # maximum number of candidate answers per question
    has_no_answer: bool = field_with_marks(EXPORTED, default=False)  # True = questions may have no answer (SQuAD 2.0)
    # True = [CLS] and the question's tokens are global: they attend to all tokens, and all tokens attend to them.
    # The model must then allow global tokens (model.global_tokens above 0).
    has_global: bool = False
    # passes over the training rows; read only if train.steps is None
    epochs: float = field_with_marks(CHANGEABLE_WITH_MORE_STEPS, default=3.0)
    # share of the training steps in which the learning rate warms up; read only if optimizer.warmup_steps is None
    warmup_share: float = field_with_marks(CHANGEABLE_WITH_MORE_STEPS, default=0.1)
    buckets: tuple[int, ...] = BUCKETS  # lengths to which rows are padded

    def __post_init__(self) -> None:
        check_one_of('examples.problem', self.problem, PROBLEMS)
        check_one_of('examples.format', self.format, FORMATS)
        check_one_of('examples.overlong', self.overlong, OVERLONG)
        is_read = self.format == 'arena' or self.cache == 'cache'
        require(is_read, 'examples.cache', self.cache, "'cache' without examples.format 'arena'")
        for name in ('stride', 'question_length', 'answer_length', 'best_count'):
            check_in_interval(f'examples.{name}', getattr(self, name), 1)
        check_in_interval('examples.sentences', self.sentences, 0, MOST_SENTENCES)
        check_in_interval('examples.epochs', self.epochs, 0, low_is_open=True)
        check_in_interval('examples.warmup_share', self.warmup_share, 0, 1)
        if not self.buckets or list(self.buckets) != sorted(set(self.buckets)) or self.buckets[0] < 1:
            raise InputError(f'examples.buckets is {self.buckets}; it must be rising lengths of at least 1')
        if len(set(self.labels)) < len(self.labels):
            raise InputError(f'examples.labels is {self.labels}; a label occurs twice')
