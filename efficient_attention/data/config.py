"""What a run reads: the fields of a config's `data` group, checked once."""

import dataclasses

from efficient_attention.errors import InputError
from efficient_attention.field_checks import check_one_of, check_within

PAIRS = ('none', 'nsp', 'sop')
MASK_UNITS = ('token', 'word', 'ngram')


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """Corpus, tokenizer, examples and input pipeline of a run.

    Raises:
        InputError: a field is out of its range; names the field, its value and what is allowed.
    """

    source: str = 'stdlib'  # or 'text:<glob>', 'jsonl:<glob>#field', 'arrayrecord:<glob>', 'tfds:<name>#field'
    held_out: float = 0.02  # share of the documents held out for evaluation, chosen by a hash of their text
    cache: str = 'cache'  # folder of prepared corpora, one sub-folder for each content and setting
    processes: int = 0  # processes that prepare the corpus; 0 = one, or one for each core if the corpus is large

    tokenizer: str = 'train:wordpiece'  # 'train:wordpiece', 'train:unigram', 'train:bpe', or a tokenizer's file
    vocab_size: int = 4096  # tokens, of a trained tokenizer; a loaded one must have exactly this many
    lowercase: bool = True  # lower-case and strip accents before tokenising

    length: int = 128  # tokens a row, special tokens included
    pairs: str = 'none'  # 'none' = documents packed into full rows | 'nsp' next sentence | 'sop' sentence order
    short_sequence_probability: float = 0.1  # share of document passes with a random shorter target length

    mask_rate: float = 0.15  # share of a row's tokens to predict
    max_masked: int = 20  # predictions a row, at most
    mask_unit: str = 'token'  # 'token' | 'word' (whole words) | 'ngram' (1 to max_ngram whole words, p(n) ~ 1/n)
    max_ngram: int = 3  # words
    mask_token_share: float = 0.8  # of the predicted tokens: replaced by [MASK]
    random_token_share: float = 0.1  # of the predicted tokens: replaced by a random id; the rest stays
    static_copies: int = 0  # 0 = new masks every epoch (dynamic); n = n fixed sets of masks and pairs, used in turn

    workers: int = 0  # processes that build examples; 0 = threads of the training process
    prefetch: int = 4  # batches kept ready

    def __post_init__(self) -> None:
        check_one_of('data.pairs', self.pairs, PAIRS)
        check_one_of('data.mask_unit', self.mask_unit, MASK_UNITS)
        for name in ('held_out', 'short_sequence_probability', 'mask_rate', 'mask_token_share', 'random_token_share'):
            check_within(f'data.{name}', getattr(self, name), 0, 1)
        for name in ('vocab_size', 'max_masked', 'max_ngram', 'prefetch'):
            check_within(f'data.{name}', getattr(self, name), 1)
        for name in ('processes', 'static_copies', 'workers'):
            check_within(f'data.{name}', getattr(self, name), 0)
        check_within('data.length', self.length, 8)
        if self.mask_token_share + self.random_token_share > 1:
            raise InputError('data.mask_token_share + data.random_token_share is above 1')
