"""Special tokens of tokenizers, by the names that published vocabularies give them."""

from tokenizers import AddedToken, Tokenizer, models, processors

ROLES = {  # the names that files in use give to each special token; the first one wins
    'pad': ('[PAD]', '<pad>'),
    'unknown': ('[UNK]', '<unk>'),
    'cls': ('[CLS]', '<cls>', '<s>'),
    'sep': ('[SEP]', '<sep>', '</s>'),
    'mask': ('[MASK]', '<mask>'),
}
END_OF_TEXT = '<|endoftext|>'  # GPT-2's one special token
SENTINEL = '<extra_id_{}>'  # T5's, which stand for spans that were removed
SENTINELS = 100  # of T5
BERT_SPECIALS = ('[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]')


def with_specials(tokenizer: Tokenizer, names: list[str]) -> Tokenizer:
    """The tokenizer, with `names` (new ones get the next ids) as special tokens, and the template [CLS] text [SEP]."""
    is_spaced = not isinstance(tokenizer.model, models.WordPiece)  # then 'a [MASK]' must not leave a piece of space
    tokenizer.add_special_tokens(
        [AddedToken(name, special=True, normalized=False, lstrip=is_spaced and name in ROLES['mask']) for name in names]
    )
    cls, sep = (_first_known(tokenizer, role) for role in ('cls', 'sep'))
    if cls is not None and sep is not None:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f'{cls} $A {sep}',
            pair=f'{cls} $A {sep} $B:1 {sep}:1',
            special_tokens=[(name, tokenizer.token_to_id(name)) for name in (cls, sep)],
        )
    return tokenizer


def with_sentinels(tokenizer: Tokenizer, count: int) -> Tokenizer:
    """The tokenizer with `count` sentinels behind its pieces, in T5's order: <extra_id_0> has the last id."""
    names = [SENTINEL.format(number) for number in reversed(range(count))]
    tokenizer.add_special_tokens(
        [AddedToken(name, special=True, normalized=False, lstrip=True, rstrip=True) for name in names]
    )
    return tokenizer


def _first_known(tokenizer: Tokenizer, role: str) -> str | None:
    return next((name for name in ROLES[role] if tokenizer.token_to_id(name) is not None), None)
