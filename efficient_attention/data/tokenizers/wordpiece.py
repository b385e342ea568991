"""Builds BERT's WordPiece tokenizer, and reads its vocabulary file vocab.txt."""

from pathlib import Path

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from efficient_attention.data.tokenizers.special_tokens import ROLES, with_special_tokens
from efficient_attention.errors import InputError

MAX_WORD = 100  # maximum number of characters of a word; a longer word becomes one [UNK], as in BERT


def wordpiece_tokenizer(vocabulary: dict[str, int], *, lowercase: bool) -> Tokenizer:
    """Returns BERT's tokenizer (Devlin et al. 2018, arXiv:1810.04805) for a vocabulary; '##' marks pieces that continue
    a word.

    Control characters are removed; CJK characters and punctuation are separate words; the longest piece from the left
    wins; a word of more than 100 characters is unknown. Two rare cases differ from BERT's code: private-use characters
    are also removed, and characters newer than the library's Unicode tables count as letters.
    """
    model = models.WordPiece(vocabulary, unk_token='[UNK]', max_input_chars_per_word=MAX_WORD)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = bert_normalizer(lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return with_special_tokens(tokenizer, [name for names in ROLES.values() for name in names if name in vocabulary])


def bert_normalizer(lowercase: bool) -> normalizers.Normalizer:
    """Returns BERT's normalisation: removes control characters, puts spaces around CJK characters, and with `lowercase`
    lower-cases and strips accents."""
    return normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=True, strip_accents=lowercase, lowercase=lowercase
    )


def read_vocabulary(text: str, path: Path) -> dict[str, int]:
    """Parses the text of a vocab.txt, one piece per line, to {piece: id}; an InputError names the file and the line."""
    pieces: dict[str, int] = {}
    for id, line in enumerate(text.rstrip('\n').split('\n')):
        if pieces.setdefault(line.strip(), id) != id:
            raise InputError(f'tokenizer {path}: line {id + 1} repeats {line.strip()!r}')
    if '[UNK]' not in pieces:
        raise InputError(f'tokenizer {path}: no [UNK] in its vocabulary')
    return pieces
