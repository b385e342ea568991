"""Loads the byte-level BPE tokenizers of RoBERTa, BART and GPT-2 from vocab.json and merges.txt."""

from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from efficient_attention.data.tokenizers.added_tokens import read_tokenizer_settings
from efficient_attention.data.tokenizers.special_tokens import END_OF_TEXT, ROLES, with_special_tokens
from efficient_attention.errors import InputError

PAIR = ('vocab.json', 'merges.txt')


def load_byte_level_bpe(folder: Path) -> Tokenizer:
    """Loads a byte-level BPE tokenizer from vocab.json and merges.txt; its rows are '<s> a </s></s> b </s>', as in
    RoBERTa and BART.

    GPT-2's tokenizer, whose only special token is '<|endoftext|>', adds nothing to a text.

    Raises:
        InputError: the files cannot be read, or do not belong together.
    """
    try:
        tokenizer = Tokenizer(models.BPE.from_file(*(str(folder / name) for name in PAIR)))
    except Exception as error:  # The Rust library raises a plain Exception.
        raise InputError(f'{folder}: {" and ".join(PAIR)} are no tokenizer ({str(error)[:200]})') from None
    has_prefix = bool(read_tokenizer_settings(folder).get('add_prefix_space', False))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=has_prefix)
    tokenizer.decoder = decoders.ByteLevel()
    known = tokenizer.get_vocab()
    if not {'<s>', '</s>'} <= known.keys():
        if END_OF_TEXT not in known:
            raise InputError(f'{folder / PAIR[0]}: no <s> and </s>, nor {END_OF_TEXT}, in its vocabulary')
        return with_special_tokens(tokenizer, [END_OF_TEXT])
    with_special_tokens(tokenizer, [name for names in ROLES.values() for name in names if name in known])
    first, last = ('<s>', known['<s>']), ('</s>', known['</s>'])
    tokenizer.post_processor = processors.RobertaProcessing(last, first, add_prefix_space=has_prefix)
    return tokenizer
