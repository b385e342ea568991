"""Fields of the config group `data`: the text or images that a run reads, and how they become rows."""

import dataclasses
import math

from efficient_attention.config.checks import check_one_of, check_within
from efficient_attention.config.fields import CHANGEABLE, read_by
from efficient_attention.errors import InputError, require

MOST_AT_ONCE = 2**12  # processes, and batches kept ready; far above what any machine has room for
LARGEST_VOCABULARY = 2**22  # room for it is taken before a tokenizer is trained
PAIRS = ('none', 'nsp', 'sop')
MASK_UNITS = ('token', 'word', 'ngram')
UNITS = ('tokenizer', 'bytes', 'characters', 'words', 'pixels')
IMAGE_SOURCES = ('images', 'tfds')  # the word before the colon of data.source
ARENA_SOURCE = 'arena:'  # what data.source begins with where it names sets of long-range rows
SPLITTINGS = ('documents', 'end')
BATCHES = ('windows', 'streams')


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """Corpus, tokenizer, examples and input pipeline of a run.

    Raises:
        InputError: a field is out of its range; names the field, its value and what is allowed.
    """

    # or text:<glob>, jsonl:<glob>#field, dump:<glob>, arrayrecord:<glob>, tfds:<name>#field, images:<glob>; of
    # pretraining also arena:<set>;<set>, rows to train and to be evaluated on, each a row of its own
    source: str = read_by('pretraining', 'language_modelling', 'text_to_text', default='stdlib')
    # share held out for evaluation, of the documents or, with splitting 'end', of the text
    held_out: float = read_by('pretraining', 'language_modelling', 'text_to_text', default=0.02)
    # 'documents' = held-out ones by a hash of their text | 'end' = the end of the text
    splitting: str = read_by('language_modelling', default='documents')
    # share of the text after the held-out part, kept for a last evaluation; with splitting 'end'
    test: float = read_by('pretraining', 'language_modelling', default=0.0)
    # folder of prepared corpora, one sub-folder for each content and setting
    cache: str = read_by('pretraining', 'language_modelling', 'text_to_text', default='cache', marks=(CHANGEABLE,))
    # processes that prepare the corpus; 0 = one, or one for each core if the corpus is large
    processes: int = read_by('pretraining', 'text_to_text', default=0, marks=(CHANGEABLE,))

    # What a language model predicts: pieces of the 'tokenizer' | 'bytes' | 'characters' | 'words' | 'pixels'.
    units: str = read_by('language_modelling', default='tokenizer')
    tokenizer: str = 'train:wordpiece'  # 'train:wordpiece', 'train:unigram', 'train:bpe', or a tokenizer's file
    # tokens, of a trained tokenizer; a loaded one must have exactly this many, but in text_to_text, where
    # model.vocab_size says how many ids there may be
    vocab_size: int = read_by('pretraining', 'language_modelling', 'text_to_text', default=4096)
    lowercase: bool = True  # of a tokenizer and of words: lower-case first; a tokenizer strips accents, too
    # of words: rarer ones in the train split are <unk>
    min_count: int = read_by('pretraining', 'language_modelling', default=1)
    # of pixels: (height, width, channels); channels 3 = RGB, 1 = grey
    image_shape: tuple[int, ...] = read_by('pretraining', 'language_modelling', default=())

    length: int = 128  # tokens a row, special tokens included
    # of a language model: random 'windows' | 'streams', a part of the text for each row
    batches: str = read_by('language_modelling', default='windows')
    # of a language model: no token reads one of a document before its own
    cut_at_documents: bool = read_by('language_modelling', default=False)
    # 'none' = documents packed into full rows | 'nsp' next sentence | 'sop' sentence order
    pairs: str = read_by('pretraining', default='none')
    # share of document passes with a random shorter target length
    short_sequence_probability: float = read_by('pretraining', default=0.1)

    mask_rate: float = read_by('pretraining', default=0.15)  # share of a row's tokens to predict
    max_masked: int = read_by('pretraining', default=20)  # predictions a row, at most
    # 'token' | 'word' (whole words) | 'ngram' (1 to max_ngram whole words, p(n) ~ 1/n)
    mask_unit: str = read_by('pretraining', default='token')
    max_ngram: int = read_by('pretraining', default=3)  # words
    mask_token_share: float = read_by('pretraining', default=0.8)  # of the predicted tokens: replaced by [MASK]
    # of the predicted tokens: replaced by a random id; the rest stays
    random_token_share: float = read_by('pretraining', default=0.1)
    # 0 = new masks every epoch (dynamic); n = n fixed sets of masks and pairs, used in turn
    static_copies: int = read_by('pretraining', default=0)

    # processes that build examples; 0 = threads of the training process
    workers: int = read_by('pretraining', 'text_to_text', default=0, marks=(CHANGEABLE,))
    # batches kept ready; a language model's are read as they are asked for
    prefetch: int = read_by('pretraining', 'text_to_text', default=4, marks=(CHANGEABLE,))

    def __post_init__(self) -> None:
        check_one_of('data.pairs', self.pairs, PAIRS)
        check_one_of('data.mask_unit', self.mask_unit, MASK_UNITS)
        check_one_of('data.units', self.units, UNITS)
        check_one_of('data.splitting', self.splitting, SPLITTINGS)
        check_one_of('data.batches', self.batches, BATCHES)
        for name in (
            'held_out',
            'test',
            'short_sequence_probability',
            'mask_rate',
            'mask_token_share',
            'random_token_share',
        ):
            check_within(f'data.{name}', getattr(self, name), 0, 1)
        check_within('data.vocab_size', self.vocab_size, 1, LARGEST_VOCABULARY)
        for name in ('min_count', 'max_masked', 'max_ngram', 'prefetch'):
            check_within(f'data.{name}', getattr(self, name), 1)
        for name in ('processes', 'static_copies', 'workers'):
            check_within(f'data.{name}', getattr(self, name), 0)
        for name in ('processes', 'workers', 'prefetch'):
            check_within(f'data.{name}', getattr(self, name), 0, MOST_AT_ONCE)
        require(bool(self.cache), 'data.cache', self.cache, 'a folder')
        check_within('data.length', self.length, 8)
        if self.mask_token_share + self.random_token_share > 1:
            raise InputError('data.mask_token_share + data.random_token_share is above 1')
        if self.test and self.splitting != 'end':
            raise InputError(f'data.test is {self.test}; with data.splitting {self.splitting!r} it must be 0')
        if self.splitting == 'end' and self.held_out + self.test >= 1:
            raise InputError(f'data.held_out {self.held_out} and data.test {self.test} leave nothing to train on')
        if self.min_count > 1 and self.units != 'words':
            raise InputError(f'data.min_count is {self.min_count}; with data.units {self.units!r} it must be 1')
        self._check_images()

    def _check_images(self) -> None:
        kind = self.source.partition(':')[0]
        if self.units != 'pixels':
            for name, found in (('image_shape', self.image_shape), ('source', kind == 'images' and self.source)):
                if found:
                    raise InputError(f'data.{name} is {found!r}; with data.units {self.units!r} there are no images')
            return
        if kind not in IMAGE_SOURCES:
            known = 'images:<glob> and tfds:<name>#<field>'
            raise InputError(f"data.source is {self.source!r}; with data.units 'pixels' there are {known}")
        if len(self.image_shape) != 3 or min(self.image_shape) < 1 or self.image_shape[2] not in (1, 3):
            raise InputError(
                f'data.image_shape is {self.image_shape}; it must be (height, width, channels), 1 or 3 channels'
            )
        if self.length != math.prod(self.image_shape):
            height, width, channels = self.image_shape
            raise InputError(
                f'data.length is {self.length}; a row is an image of data.image_shape, '
                f'{height} x {width} x {channels} = {math.prod(self.image_shape)} bytes'
            )
