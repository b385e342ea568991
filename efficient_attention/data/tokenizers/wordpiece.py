"""BERT's WordPiece tokenizer over a vocabulary of pieces, and the files that hold such a vocabulary."""

from pathlib import Path

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from efficient_attention.data.tokenizers.special_tokens import ROLES, with_specials
from efficient_attention.errors import InputError

MAX_WORD = 100  # characters; a longer word is one [UNK], as in BERT


def word_piece(vocabulary: dict[str, int], *, lowercase: bool) -> Tokenizer:
    """BERT's tokenizer (Devlin et al. 2018, arXiv:1810.04805) over a vocabulary of pieces, '##' marking continuations.

    Control characters go, CJK characters and punctuation are words of their own, the longest piece wins from the left,
    a word of more than 100 characters is unknown. It differs from BERT's code in characters that few texts hold:
    private-use ones go too, and those younger than the library's Unicode tables are taken for letters.
    """
    model = models.WordPiece(vocabulary, unk_token='[UNK]', max_input_chars_per_word=MAX_WORD)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = bert_normalizer(lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return with_specials(tokenizer, [name for names in ROLES.values() for name in names if name in vocabulary])


def bert_normalizer(lowercase: bool) -> normalizers.Normalizer:
    """BERT's normalisation: control characters out, spaces around CJK characters, lower case without accents."""
    return normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=True, strip_accents=lowercase, lowercase=lowercase
    )


def read_vocabulary(text: str, path: Path) -> dict[str, int]:
    """{piece: id} of the text of a `vocab.txt`, a piece a line; raises InputError that names `path` and the line."""
    pieces: dict[str, int] = {}
    for id, line in enumerate(text.rstrip('\n').split('\n')):
        if pieces.setdefault(line.strip(), id) != id:
            raise InputError(f'tokenizer {path}: line {id + 1} repeats {line.strip()!r}')
    if '[UNK]' not in pieces:
        raise InputError(f'tokenizer {path}: no [UNK] in its vocabulary')
    return pieces
