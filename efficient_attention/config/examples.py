"""Fields of the config group `examples`: the labelled files of a fine-tuning run."""

import dataclasses

from efficient_attention.config.checks import check_one_of, check_within
from efficient_attention.config.fields import CHANGEABLE, CHANGEABLE_WITH_MORE_STEPS, EXPORTED, marked
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
# Each at most 1.5 times the one before: a compiled program for each, and little padding.
_UP_TO_512 = (8, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128, 160, 192, 256, 320, 384, 512)
BUCKETS = (*_UP_TO_512, 768, 1024, 1536, 2048, 3072, 4096)


@dataclasses.dataclass(frozen=True)
class ExamplesConfig:
    """Files of labelled examples, and how they become rows of tokens.

    Raises:
        InputError: a field is out of its range; names the field, its value and what is allowed.
    """

    # What is learnt: 'classification' | 'regression' | 'token_classification' | 'multiple_choice' |
    # 'question_answering' | 'multi_hop' | 'none'.
    problem: str = 'none'
    # of the files: 'table' | 'glue' | 'conll' | 'swag' | 'race' | 'squad' | 'hotpotqa', or 'arena', where `train`,
    # `dev` and `test` are sets of long-range rows (data/arena/arena_set.py)
    format: str = 'table'
    name: str = ''  # of format 'glue': 'cola', 'sst2', 'mrpc', 'qqp', 'stsb', 'mnli', 'qnli', 'rte', 'wnli', 'ax'
    train: str = ''  # files: a path or glob, several with commas, or tfds:<name>[/<config>]:<split>
    dev: str = ''  # likewise, to evaluate on
    test: str = ''  # for predictions, and with labels for `eval.py --split test`; '' = none
    text: str = 'text'  # of format 'table': the column of the text (CSV, TSV, JSONL)
    text_pair: str = ''  # the column of a second text; '' = none
    label: str = 'label'  # the column of the label
    id: str = ''  # the column of an identifier, for predictions; '' = the row's number
    labels: tuple[str, ...] = ()  # names in the order of the outputs; () = those of the training files, sorted
    # of two texts each is a row of its own, which the encoder reads by itself; needs head.kind 'towers'
    towers: bool = False
    # folder where the rows of format 'arena' are kept
    cache: str = marked(CHANGEABLE, default='cache')
    # most sentences of a text, each a row of data.length tokens for the encoder; 0 = texts are not split into sentences
    sentences: int = 0
    overlong: str = 'truncate'  # text above data.length tokens: 'truncate' | 'error' | 'skip' | 'windows' of it
    # tokens by which a window moves on ('question_answering', or overlong 'windows')
    stride: int = marked(EXPORTED, default=128)
    question_length: int = marked(EXPORTED, default=64)  # most tokens of a question
    answer_length: int = marked(EXPORTED, default=30)  # most tokens of an answer
    best_count: int = marked(EXPORTED, default=20)  # candidates kept for each question
    has_no_answer: bool = marked(EXPORTED, default=False)  # questions may have no answer (SQuAD 2.0)
    has_global: bool = False  # [CLS], and a question's tokens, read all and are read by all; needs model.global_tokens
    # passes over the training rows, where train.steps is left open (None)
    epochs: float = marked(CHANGEABLE_WITH_MORE_STEPS, default=3.0)
    # of the steps, where optimizer.warmup_steps is left open (None)
    warmup_share: float = marked(CHANGEABLE_WITH_MORE_STEPS, default=0.1)
    buckets: tuple[int, ...] = BUCKETS  # row lengths to pad to

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
            raise InputError(f'examples.labels is {self.labels}; a label is named twice')
