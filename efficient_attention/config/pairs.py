"""Fields of the config group `pairs`: sources and targets of a run of the task text_to_text."""

import dataclasses

from efficient_attention.config.checks import check_one_of, check_within
from efficient_attention.config.data import LARGEST_VOCABULARY
from efficient_attention.config.examples import BUCKETS
from efficient_attention.config.fields import EXPORTED, marked
from efficient_attention.errors import InputError

OVERLONG = ('truncate', 'skip', 'error')


@dataclasses.dataclass(frozen=True)
class PairsConfig:
    """Sets of pairs of texts, and how they become rows of tokens.

    A set is `lines:<source file>,<target file>`, `table:<file>#<source column>,<target column>`,
    `tfds:<name>:<split>#<source column>,<target column>` or
    `toy:<problem>:<rows>:<shortest>-<longest>[:<seed>]`; several are separated by ';'. `joined:<pairs>:<set>` makes so
    many pairs that follow one another into one.

    A set's share of what training reads is r^(1 / mixing_temperature), made to sum to 1, where r is the number of its
    pairs, or `mixing_limit` where it has more (Raffel et al. 2019, arXiv 1910.10683, section 3.5.2: K and T).

    Raises:
        InputError: a field is out of its range; names the field, its value and what is allowed.
    """

    mixing_limit: int = 0  # pairs that a set counts for at most, 65536 or the like; 0 = as many as it has
    mixing_temperature: float = 1.0  # 1 = shares by the numbers of pairs; the larger, the more equal the shares
    # several pairs in a row of `data.length` and `target_length` tokens, none of which reads another
    packed: bool = False

    train: str = ''  # sets to train on
    held_out: str = ''  # sets to evaluate on; '' = none
    test: str = ''  # sets for a last evaluation (`eval.split` 'test'); '' = none
    # of targets, with a token table of their own: 'train:...' or a file, as `data.tokenizer`, which is then of sources
    # alone; '' = one tokenizer for both sides
    target_tokenizer: str = ''
    target_vocab_size: int = 0  # tokens, of a trained tokenizer of targets; 0 = `data.vocab_size`
    prefix: tuple[str, ...] = ()  # before the sources of each set of `train`, held_out and test alike; () = nothing
    target_length: int = 128  # most tokens of a target, its end included; `data.length` is that of a source
    overlong: str = 'truncate'  # of pairs beyond a length: 'truncate' both sides | 'skip' the pair | 'error'
    begin: str = marked(EXPORTED, default='')  # the piece before every source and target, BART's '<s>'; '' = none
    # the piece that a decoder reads first, BART's '</s>'; '' = [CLS] or its like, else that of padding
    start: str = marked(EXPORTED, default='')
    buckets: tuple[int, ...] = BUCKETS  # row lengths to pad to
    # sources from their last token to their first (Sutskever et al. 2014, arXiv 1409.3215)
    reverse_source: bool = False

    def __post_init__(self) -> None:
        check_within('pairs.mixing_limit', self.mixing_limit, 0)
        check_within('pairs.mixing_temperature', self.mixing_temperature, 1, 1e6)
        check_one_of('pairs.overlong', self.overlong, OVERLONG)
        check_within('pairs.target_length', self.target_length, 2)
        check_within('pairs.target_vocab_size', self.target_vocab_size, 0, LARGEST_VOCABULARY)
        if self.target_vocab_size and not self.target_tokenizer:
            raise InputError(
                f'pairs.target_vocab_size is {self.target_vocab_size}; without pairs.target_tokenizer it must be 0'
            )
        if not self.buckets or list(self.buckets) != sorted(set(self.buckets)) or self.buckets[0] < 1:
            raise InputError(f'pairs.buckets is {self.buckets}; it must be rising lengths of at least 1')

    @property
    def is_mixed(self) -> bool:
        """Whether shares decide how often a set is read; else an epoch reads every pair of every set once."""
        return self.mixing_limit > 0 or self.mixing_temperature > 1
