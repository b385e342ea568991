"""Fields of the config group `pairs`: source and target texts of a run of the task text_to_text."""

import dataclasses

from efficient_attention.config.data import LARGEST_VOCABULARY
from efficient_attention.config.examples import BUCKETS
from efficient_attention.config.field_metadata import EXPORTED, field_with_marks
from efficient_attention.config.value_checks import check_in_interval, check_one_of
from efficient_attention.errors import InputError

OVERLONG = ('truncate', 'skip', 'error')


@dataclasses.dataclass(frozen=True)
class PairsConfig:
    """Datasets of text pairs, and how pairs become rows of tokens.

    A dataset is `lines:<source file>,<target file>`, `table:<file>#<source column>,<target column>`,
    `tfds:<name>:<split>#<source column>,<target column>` or
    `toy:<problem>:<rows>:<shortest>-<longest>[:<seed>]`. Several datasets are separated by ';'. `joined:<n>:<dataset>`
    joins every n consecutive pairs of a dataset into one pair.

    The share of a dataset in training is proportional to r^(1 / mixing_temperature). r is the number of its pairs, at
    most `mixing_limit` (Raffel et al. 2019, arXiv 1910.10683, section 3.5.2: K and T).

    Raises:
        InputError: a field is out of range; the message names the field, its value and the allowed values.
    """

    # maximum number of a dataset's pairs that count for its share in training, for example 65536; 0 = no limit
    mixing_limit: int = 0
    # mixing temperature: 1 = shares proportional to the numbers of pairs; larger values = more equal shares
    mixing_temperature: float = 1.0
    # pack several pairs into one row of `data.length` and `target_length` tokens; pairs do not attend to each other
    packed: bool = False

    train: str = ''  # datasets for training
    held_out: str = ''  # datasets for evaluation; '' = none
    test: str = ''  # datasets for a final test (`eval.split` 'test'); '' = none
    # tokenizer of targets: 'train:...' or a file; targets then have their own embedding table
    # '' = one tokenizer and one embedding table for sources and targets.
    # With a target tokenizer, `data.tokenizer` tokenizes only sources.
    target_tokenizer: str = ''
    target_vocab_size: int = 0  # vocabulary size of a trained target tokenizer; 0 = `data.vocab_size`
    # text put before each source, one per dataset of `train`, also for `held_out` and `test`; () = no text
    prefix: tuple[str, ...] = ()
    # maximum number of tokens in a target, its end token included; `data.length` limits sources
    target_length: int = 128
    # how to handle a pair above a length limit: 'truncate' (source and target) | 'skip' (drop the pair) | 'error'
    overlong: str = 'truncate'
    # tokenizer piece before every source and target, such as BART's '<s>'; '' = none
    begin: str = field_with_marks(EXPORTED, default='')
    # first input piece of the decoder, such as BART's '</s>'; '' = [CLS] or its equivalent, else the padding piece
    start: str = field_with_marks(EXPORTED, default='')
    buckets: tuple[int, ...] = BUCKETS  # lengths to which rows are padded
    # reverse the tokens of each source (Sutskever et al. 2014, arXiv 1409.3215)
    reverse_source: bool = False

    def __post_init__(self) -> None:
        check_in_interval('pairs.mixing_limit', self.mixing_limit, 0)
        check_in_interval('pairs.mixing_temperature', self.mixing_temperature, 1, 1e6)
        check_one_of('pairs.overlong', self.overlong, OVERLONG)
        check_in_interval('pairs.target_length', self.target_length, 2)
        check_in_interval('pairs.target_vocab_size', self.target_vocab_size, 0, LARGEST_VOCABULARY)
        if self.target_vocab_size and not self.target_tokenizer:
            raise InputError(
                f'pairs.target_vocab_size is {self.target_vocab_size}; without pairs.target_tokenizer it must be 0'
            )
        if not self.buckets or list(self.buckets) != sorted(set(self.buckets)) or self.buckets[0] < 1:
            raise InputError(f'pairs.buckets is {self.buckets}; it must be rising lengths of at least 1')

    @property
    def is_weighted_mixture(self) -> bool:
        """Whether mixing shares decide how often training reads a dataset; otherwise an epoch reads every pair once."""
        return self.mixing_limit > 0 or self.mixing_temperature > 1
