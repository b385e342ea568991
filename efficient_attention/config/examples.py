"""Fields of the config group `examples`: the labelled files of a fine-tuning run and how they become rows."""

import dataclasses

from efficient_attention.config.checks import check_one_of, check_within
from efficient_attention.config.fields import CHANGEABLE, CHANGEABLE_WITH_MORE_STEPS, EXPORTED, field_with_marks
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
# Each length is at most 1.5 times the one before it: little padding, and one compiled program per length.
_UP_TO_512 = (8, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128, 160, 192, 256, 320, 384, 512)
BUCKETS = (*_UP_TO_512, 768, 1024, 1536, 2048, 3072, 4096)


@dataclasses.dataclass(frozen=True)
class ExamplesConfig:
    """Labelled files of a fine-tuning run, and how their examples become rows of tokens.

    Raises:
        InputError: a field is out of range; the message names the field, its value and the allowed values.
    """

    # the task to learn: 'classification' | 'regression' | 'token_classification' | 'multiple_choice' |
    # 'question_answering' | 'multi_hop' | 'none'
    problem: str = 'none'
    # format of the files: 'table' | 'glue' | 'conll' | 'swag' | 'race' | 'squad' | 'hotpotqa' | 'arena'; with 'arena',
    # `train`, `dev` and `test` name datasets of Long Range Arena (data/arena/dataset_registry.py)
    format: str = 'table'
    # task of format 'glue': 'cola', 'sst2', 'mrpc', 'qqp', 'stsb', 'mnli', 'qnli', 'rte', 'wnli', 'ax'
    name: str = ''
    # training files: paths or globs, separated by commas, or tfds:<name>[/<config>]:<split>
    train: str = ''
    dev: str = ''  # files for evaluation, written like `train`
    test: str = ''  # files for predictions, and for `eval.py --split test` if they have labels; '' = none
    text: str = 'text'  # of format 'table': the column of the text (CSV, TSV, JSONL)
    text_pair: str = ''  # the column of a second text; '' = none
    label: str = 'label'  # the column of the label
    id: str = ''  # the column of an identifier that predictions repeat; '' = the row number
    labels: tuple[str, ...] = ()  # label names in the order of the outputs; () = sorted labels of the training files
    # the encoder reads each of two texts in a separate row; needs head.kind 'towers'
    towers: bool = False
    # folder of the prepared rows of format 'arena'
    cache: str = field_with_marks(CHANGEABLE, default='cache')
    # most sentences per text, each encoded as a row of data.length tokens; 0 = do not split texts into sentences
    sentences: int = 0
    # a text above data.length tokens: 'truncate' | 'error' | 'skip' | 'windows' = several overlapping rows
    overlong: str = 'truncate'
    # tokens by which a window moves (problem 'question_answering', or overlong 'windows')
    stride: int = field_with_marks(EXPORTED, default=128)
    question_length: int = field_with_marks(EXPORTED, default=64)  # most tokens of a question
    answer_length: int = field_with_marks(EXPORTED, default=30)  # most tokens of an answer
    best_count: int = field_with_marks(EXPORTED, default=20)  # most candidate answers per question
    has_no_answer: bool = field_with_marks(EXPORTED, default=False)  # questions may have no answer (SQuAD 2.0)
    # [CLS] and the tokens of a question attend to all tokens, and all tokens to them; needs model.global_tokens
    has_global: bool = False
    # passes over the training rows; read only where train.steps is open (None)
    epochs: float = field_with_marks(CHANGEABLE_WITH_MORE_STEPS, default=3.0)
    # share of the steps with learning-rate warm-up; read only where optimizer.warmup_steps is open (None)
    warmup_share: float = field_with_marks(CHANGEABLE_WITH_MORE_STEPS, default=0.1)
    buckets: tuple[int, ...] = BUCKETS  # row lengths to which rows are padded

    def __post_init__(self) -> None:
        check_one_of('examples.problem', self.problem, PROBLEMS)
        check_one_of('examples.format', self.format, FORMATS)
        check_one_of('examples.overlong', self.overlong, OVERLONG)
        is_read = self.format == 'arena' or self.cache == 'cache'
        require(is_read, 'examples.cache', self.cache, "'cache' without examples.format 'arena'")
        for name in ('stride', 'question_length', 'answer_length', 'best_count'):
            check_within(f'examples.{name}', getattr(self, name), 1)
        check_within('examples.sentences', self.sentences, 0, MOST_SENTENCES)
        check_within('examples.epochs', self.epochs, 0, low_is_open=True)
        check_within('examples.warmup_share', self.warmup_share, 0, 1)
        if not self.buckets or list(self.buckets) != sorted(set(self.buckets)) or self.buckets[0] < 1:
            raise InputError(f'examples.buckets is {self.buckets}; it must be rising lengths of at least 1')
        if len(set(self.labels)) < len(self.labels):
            raise InputError(f'examples.labels is {self.labels}; a label occurs twice')
