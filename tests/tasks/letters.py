"""Two text encoders for tests, with characters as pieces: BERT's rows, or RoBERTa's rows with marked spaces."""

import string

from tokenizers import Tokenizer, models, pre_tokenizers, processors

from efficient_attention.data.examples.text_encoder import TextEncoder
from efficient_attention.data.tokenizers.wordpiece import wordpiece_tokenizer

SPECIAL = ('[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', '[unused1]', '[unused2]')


def letters(special: tuple[str, ...] = SPECIAL) -> TextEncoder:
    """Returns a BERT encoder with letters, digits and punctuation as pieces; other characters make a word [UNK]."""
    characters = string.ascii_lowercase + string.digits
    pieces = [*special, *characters, *(f'##{one}' for one in characters), *string.punctuation]
    tokenizer = wordpiece_tokenizer({piece: id for id, piece in enumerate(pieces)}, lowercase=True)
    tokenizer.encode_special_tokens = True
    return TextEncoder(tokenizer, pad=0, cls=2, sep=3, mask=4, size=len(pieces))


def spaced_letters() -> TextEncoder:
    """Returns an encoder of letters, with '▁' for a space; rows are '<s> a </s></s> b </s>', all of type 0."""
    pieces = ['<s>', '<pad>', '</s>', '<unk>', '<mask>', *(f'▁{one}' for one in string.ascii_lowercase)]
    pieces += [*string.ascii_lowercase, '▁']
    scores = [(piece, 0.0 if len(piece) == 2 else -1.0) for piece in pieces]
    tokenizer = Tokenizer(models.Unigram(scores, unk_id=3))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single='<s> $A </s>', pair='<s> $A </s> </s> $B </s>', special_tokens=[('<s>', 0), ('</s>', 2)]
    )
    tokenizer.encode_special_tokens = True
    return TextEncoder(tokenizer, pad=1, cls=0, sep=2, mask=4, size=len(pieces))
