"""Fields of the config group `data`: a run's texts or images, its tokenizer, and how they become training rows."""

import dataclasses
import math

from efficient_attention.config.field_metadata import CHANGEABLE, field_read_by_tasks
from efficient_attention.config.value_checks import check_in_interval, check_one_of
from efficient_attention.errors import InputError, require

MOST_AT_ONCE = 2**12  # limit on processes and on prefetched batches; more would not fit into the memory of any machine
# limit on vocabulary sizes, because training a tokenizer first allocates memory for its whole vocabulary
LARGEST_VOCABULARY = 2**22
PAIRS = ('none', 'nsp', 'sop')
MASK_UNITS = ('token', 'word', 'ngram')
UNITS = ('tokenizer', 'bytes', 'characters', 'words', 'pixels')
IMAGE_SOURCES = ('images', 'tfds')  # prefixes of data.source, before the colon
ARENA_SOURCE = 'arena:'  # prefix of data.source for datasets of Long Range Arena
SPLITTINGS = ('documents', 'end')
BATCHES = ('windows', 'streams')


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """Corpus, tokenizer, training rows and input pipeline of a run.

    Raises:
        InputError: a field is out of range; the message names the field, its value and the allowed values.
    """

    # source of text: 'stdlib' | text:<glob> | jsonl:<glob>#field | parquet:<glob>#field | arrow:<folder>#field | ...
    # More sources of text: dump:<glob> | arrayrecord:<glob> | tfds:<name>#field.
    # Generated rows of key-value pairs: recall:<rows>:<pairs>:<fewest>-<most keys of a row>.
    # Images come from images:<glob> or tfds:<name>#field.
    # Pretraining can also read arena:<dataset>;<dataset>, for training and evaluation, with one text per row.
    source: str = field_read_by_tasks('pretraining', 'language_modelling', 'text_to_text', default='stdlib')
    # share of the documents (with `splitting` 'end', share of the text) that is held out for evaluation
    held_out: float = field_read_by_tasks('pretraining', 'language_modelling', 'text_to_text', default=0.02)
    # what is held out: 'documents' (chosen by a hash of their text) | 'end' (the end of the text)
    splitting: str = field_read_by_tasks('language_modelling', default='documents')
    # share of the text, after the held-out part, that is kept for a final test; only with splitting 'end'
    test: float = field_read_by_tasks('pretraining', 'language_modelling', default=0.0)
    # folder of prepared corpora, with one subfolder per combination of content and settings
    cache: str = field_read_by_tasks(
        'pretraining', 'language_modelling', 'text_to_text', default='cache', marks=(CHANGEABLE,)
    )
    # processes that prepare the corpus; 0 = one process, or one per CPU core if the corpus is large
    processes: int = field_read_by_tasks('pretraining', 'text_to_text', default=0, marks=(CHANGEABLE,))

    # what one token of a language model is: a piece of the 'tokenizer' | 'bytes' | 'characters' | 'words' | 'pixels'
    units: str = field_read_by_tasks('language_modelling', default='tokenizer')
    # a tokenizer file, or a tokenizer to train: 'train:wordpiece' | 'train:unigram' | 'train:bpe'
    tokenizer: str = 'train:wordpiece'
    # vocabulary size of a trained tokenizer; a loaded tokenizer must have exactly this many tokens.
    # In text_to_text, a loaded tokenizer may have up to model.vocab_size tokens instead.
    vocab_size: int = field_read_by_tasks('pretraining', 'language_modelling', 'text_to_text', default=4096)
    # convert text to lower case before it is split into tokens or words; a tokenizer also strips accents
    lowercase: bool = True
    # a word that occurs less often than this in the training split becomes <unk>; only with units 'words'
    min_count: int = field_read_by_tasks('pretraining', 'language_modelling', default=1)
    # image size (height, width, channels) with units 'pixels'; 3 channels = RGB, 1 channel = grey
    image_shape: tuple[int, ...] = field_read_by_tasks('pretraining', 'language_modelling', default=())

    length: int = 128  # tokens per row, special tokens included
    # how a language model reads its text: 'windows' (at random places) | 'streams' (each row reads one part in order)
    batches: str = field_read_by_tasks('language_modelling', default='windows')
    # True = the tokens of a language model never attend to an earlier document
    cut_at_documents: bool = field_read_by_tasks('language_modelling', default=False)
    # sentence-pair loss: 'nsp' (next sentence prediction) | 'sop' (sentence order prediction) | 'none'.
    # Without sentence pairs, documents are packed into full rows.
    pairs: str = field_read_by_tasks('pretraining', default='none')
    # probability that a pass over a document makes shorter rows, of a random target length
    short_sequence_probability: float = field_read_by_tasks('pretraining', default=0.1)

    mask_rate: float = field_read_by_tasks('pretraining', default=0.15)  # share of a row's tokens that are predicted
    max_masked: int = field_read_by_tasks('pretraining', default=20)  # maximum number of predicted tokens per row
    # what is masked as one unit: a 'token', a whole 'word', or an 'ngram' of whole words.
    # The number n of words of an n-gram is from 1 to max_ngram, with a probability proportional to 1/n.
    mask_unit: str = field_read_by_tasks('pretraining', default='token')
    max_ngram: int = field_read_by_tasks('pretraining', default=3)  # maximum number of words per n-gram
    # share of the predicted tokens that become [MASK]
    mask_token_share: float = field_read_by_tasks('pretraining', default=0.8)
    # share of the predicted tokens that become a random id; all other predicted tokens are unchanged
    random_token_share: float = field_read_by_tasks('pretraining', default=0.1)
    # number of fixed versions of masks and sentence pairs, which epochs use in turn; 0 = new masks in every epoch
    static_copies: int = field_read_by_tasks('pretraining', default=0)

    # processes that build training rows; 0 = threads of the training process
    workers: int = field_read_by_tasks('pretraining', 'text_to_text', default=0, marks=(CHANGEABLE,))
    # number of prefetched batches; a language model does not prefetch
    prefetch: int = field_read_by_tasks('pretraining', 'text_to_text', default=4, marks=(CHANGEABLE,))

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
            check_in_interval(f'data.{name}', getattr(self, name), 0, 1)
        check_in_interval('data.vocab_size', self.vocab_size, 1, LARGEST_VOCABULARY)
        for name in ('min_count', 'max_masked', 'max_ngram', 'prefetch'):
            check_in_interval(f'data.{name}', getattr(self, name), 1)
        for name in ('processes', 'static_copies', 'workers'):
            check_in_interval(f'data.{name}', getattr(self, name), 0)
        for name in ('processes', 'workers', 'prefetch'):
            check_in_interval(f'data.{name}', getattr(self, name), 0, MOST_AT_ONCE)
        require(bool(self.cache), 'data.cache', self.cache, 'a folder')
        check_in_interval('data.length', self.length, 8)
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
