"""Provides fixed vocabularies that need no training, such as 'fixed:bytes': bytes, and the word lists of Long Range
Arena tasks.

    fixed:bytes      the 256 bytes of UTF-8
    fixed:listops    ListOps' digits, operators and closing bracket; the parentheses of published files are ignored
    fixed:grey       the 256 values of a grey pixel, as numbers separated by spaces
    fixed:recall     pairs of a key and a value k0=v0, k0=v1, ..., keys k0, k1, ... and filler f0, f1, ...

The special tokens have the first ids, then the words follow in this order. A text gets no special tokens; with ':cls'
after the name, a row begins with [CLS]. Two texts in one row are separated by [SEP].
"""

from collections.abc import Mapping
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from efficient_attention.data.tokenizers.special_tokens import BERT_SPECIALS
from efficient_attention.errors import InputError

PREFIX = 'fixed:'
FIRST_WORD = len(BERT_SPECIALS)  # id of the first word of each vocabulary, after the special tokens
OPERATORS = ('[MIN', '[MAX', '[MED', '[SM')
# numbers of keys, of values and of filler words in associative recall
RECALL_KEYS, RECALL_VALUES, RECALL_FILLERS = 64, 16, 64
WORDS: dict[str, tuple[str, ...]] = {
    'listops': (*map(str, range(10)), *OPERATORS, ']'),
    'grey': tuple(map(str, range(256))),
    'recall': (
        *(f'k{key}=v{value}' for key in range(RECALL_KEYS) for value in range(RECALL_VALUES)),
        *(f'k{key}' for key in range(RECALL_KEYS)),
        *(f'f{filler}' for filler in range(RECALL_FILLERS)),
    ),
}
BYTES = 'bytes'
CLS = 'cls'


def is_fixed_vocabulary(path: str | Path) -> bool:
    """Whether a tokenizer's name denotes a fixed vocabulary, not a file."""
    return str(path).startswith(PREFIX)


def fixed_tokenizer(name: str) -> Tokenizer:
    """Returns the tokenizer of 'fixed:<vocabulary>[:cls]'; for another vocabulary, raises an InputError with the known
    ones."""
    vocabulary, _, form = name.removeprefix(PREFIX).partition(':')
    if vocabulary not in (BYTES, *WORDS) or form not in ('', CLS):
        known = ', '.join(PREFIX + word for word in (BYTES, *WORDS))
        raise InputError(f'tokenizer {name}: known fixed vocabularies: {known}, each also with :{CLS}')
    tokenizer = _byte_pieces() if vocabulary == BYTES else _word_level_tokenizer(vocabulary)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in BERT_SPECIALS])
    first = '[CLS] ' if form else ''
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f'{first}$A',
        pair=f'{first}$A [SEP] $B:1',
        special_tokens=[(token, BERT_SPECIALS.index(token)) for token in ('[CLS]', '[SEP]')],
    )
    return tokenizer


def check_fixed_vocabulary(tokenizer: Tokenizer, kind: str, vocabulary: str) -> None:
    """Raises InputError if a tokenizer has another vocabulary than the fixed vocabulary that a dataset needs.

    Args:
        tokenizer: the tokenizer of the config.
        kind: the kind of dataset, such as 'pathfinder', for the message.
        vocabulary: the name of the fixed vocabulary that the dataset needs, such as 'grey'.
    """
    if tokenizer.get_vocab() != fixed_tokenizer(f'{PREFIX}{vocabulary}').get_vocab():
        raise InputError(
            f"data.tokenizer has another vocabulary than the rows of {kind}; it must be '{PREFIX}{vocabulary}'"
        )


def fixed_vocabulary_name(pieces: Mapping[str, int]) -> str:
    """Returns the name of the fixed vocabulary that has exactly these pieces and ids; '' if there is none."""
    names = [PREFIX + word for word in (BYTES, *WORDS) if fixed_vocabulary_size(word) == len(pieces)]
    return next((name for name in names if fixed_tokenizer(name).get_vocab() == pieces), '')


def fixed_vocabulary_size(vocabulary: str) -> int:
    """Returns the number of ids in a fixed vocabulary, special tokens included."""
    return FIRST_WORD + (256 if vocabulary == BYTES else len(WORDS[vocabulary]))


def _with_bert_specials(words: tuple[str, ...]) -> dict[str, int]:
    return {word: id for id, word in enumerate((*BERT_SPECIALS, *words))}


def _word_level_tokenizer(vocabulary: str) -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel(_with_bert_specials(WORDS[vocabulary]), unk_token='[UNK]'))
    if vocabulary == 'listops':
        tokenizer.normalizer = normalizers.Sequence([normalizers.Replace(mark, ' ') for mark in '()'])
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer


def _byte_pieces() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(_with_bert_specials(tuple(map(byte_character, range(256)))), []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def byte_character(byte: int) -> str:
    """Returns the visible character that represents a byte in GPT-2's byte-level vocabularies: the byte's own
    character, or one from U+0100."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    if byte in visible:
        return chr(byte)
    return chr(0x100 + [other for other in range(256) if other not in visible].index(byte))
