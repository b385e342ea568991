"""Tests of plain text: tokens that an author added stay whole, and typed names of structural tokens are text."""

import copy
import json
from pathlib import Path

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors

from efficient_attention.data.corpus.encoding import encode_documents
from efficient_attention.data.examples.text_encoder import text_encoder
from efficient_attention.data.pairs.pair_encoder import SourceOrTargetEncoder, special_ids_of_tokenizer
from efficient_attention.data.text.text_units import TokenizerUnits
from efficient_attention.data.tokenizers.loading import load_tokenizer
from efficient_attention.data.tokenizers.plain_text_tokenizer import make_plain_text_tokenizer
from efficient_attention.data.tokenizers.special_tokens import BERT_SPECIALS
from efficient_attention.data.tokenizers.wordpiece import wordpiece_tokenizer

TEXT = 'who met [E1] anna [/E1] in paris'
WORDS = ['who', 'met', 'anna', 'in', 'paris', '[', ']', '/', 'sep', 'e', '##1', 's', '<', '>', 'pad']


def entity_tokenizer() -> Tokenizer:
    """Returns BERT's tokenizer with two added special tokens, [E1] and [/E1], that mark an entity."""
    tokenizer = wordpiece_tokenizer({piece: id for id, piece in enumerate([*BERT_SPECIALS, *WORDS])}, lowercase=True)
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in ('[E1]', '[/E1]')])
    return tokenizer


def unigram(*, added: tuple[str, ...] = ()) -> Tokenizer:
    """Returns a tokenizer like T5's tokenizer.json: '<pad>', '</s>' and '<unk>' are model pieces and special tokens."""
    pieces = ['<pad>', '</s>', '<unk>', '▁', '▁a', '▁b', *'ab<>/spdunkme']
    tokenizer = Tokenizer(models.Unigram([(piece, -1.0 if id > 2 else 0.0) for id, piece in enumerate(pieces)], 2))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.add_special_tokens(['<pad>', '</s>', '<unk>', *added])
    tokenizer.post_processor = processors.TemplateProcessing('$A </s>', '$A </s> $B </s>', [('</s>', 1)])
    return tokenizer


def tokens(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    return [tokenizer.id_to_token(id) for id in ids]


def test_an_encoder_keeps_the_tokens_that_an_author_added(tmp_path: Path):
    entity_tokenizer().save(str(tmp_path / 'tokenizer.json'))
    encoder = text_encoder(tmp_path / 'tokenizer.json')
    first, second = encoder.encode([TEXT, 'in [E1][/E1] [SEP]'])
    assert first.tokens == TEXT.split()
    assert second.tokens == ['in', '[E1]', '[/E1]', '[', 'sep', ']']
    row = encoder.row(first, second)
    assert row.tokens == ['[CLS]', *first.tokens, '[SEP]', *second.tokens, '[SEP]']
    assert first.offsets[2] == (8, 12) and encoder.size == encoder.tokenizer.get_vocab_size() == len(WORDS) + 7
    assert Tokenizer.from_str(encoder.tokenizer.to_str()).encode(TEXT).tokens[1:-1] == TEXT.split()


def test_ends_of_other_families_that_an_author_added_stay_whole():
    tokenizer = entity_tokenizer()
    tokenizer.add_tokens(['<eos>', '<|endoftext|>'])
    assert make_plain_text_tokenizer(tokenizer).encode('in <eos><|endoftext|>', add_special_tokens=False).tokens == [
        'in',
        '<eos>',
        '<|endoftext|>',
    ]


def test_nobody_can_type_the_hidden_name_of_a_structural_token():
    readers = [make_plain_text_tokenizer(unigram()) for _ in range(2)]
    names = [next(name for name in reader.get_vocab() if '</s>' in name and name != '</s>') for reader in readers]
    assert names[0] != names[1]


def test_a_corpus_and_a_language_model_keep_them(tmp_path: Path):
    path = tmp_path / 'tokenizer.json'
    entity_tokenizer().save(str(path))
    tokenizer = load_tokenizer(path, lowercase=True)
    expected = [tokenizer.token_to_id(word) for word in ('[E1]', 'anna', '[/E1]', '[', 'sep', ']')]
    text = '[E1] anna [/E1] [SEP]'
    (encoded,) = encode_documents([text], str(path), 1)
    assert encoded.ids.tolist() == expected and encoded.ids.dtype == np.uint32
    units = TokenizerUnits(tokenizer, str(path))
    ids = units.encode(text)
    assert ids.tolist() == expected
    assert units.decode(np.append(ids, units.separator)) == '[E1] anna [/E1] [ sep ]'
    assert tokenizer.token_to_id('[E1]') not in units.unwritten and tokenizer.token_to_id('[PAD]') in units.unwritten


def test_pairs_keep_them_and_take_the_end_of_a_text_for_text():
    tokenizer = unigram(added=('<extra_id_0>', '<hl>', '<sep>'))
    side = SourceOrTargetEncoder(tokenizer, special_ids_of_tokenizer(tokenizer), 64)
    assert side.symbols.end == 1  # </s>, not the <sep> that the author added
    (ids,) = side.ids(['a </s> <pad> <unk> <hl> b <extra_id_0>'])
    spelt = ['▁', '<', '/', 's', '>', '▁', '<', 'p', 'a', 'd', '>', '▁', '<', 'u', 'n', 'k', '>']
    found = tokens(tokenizer, ids.tolist())
    assert [piece for piece in found if piece != '▁'] == [
        *('▁a', *(piece for piece in spelt if piece != '▁'), '<hl>', '▁b', '<extra_id_0>', '</s>')
    ]
    assert 0 not in ids and 2 not in ids and list(ids).count(1) == 1


@pytest.mark.parametrize('kind', ['word level', 'word piece', 'bpe'])
def test_no_model_finds_a_structural_token_among_its_pieces(kind: str):
    pieces = {piece: id for id, piece in enumerate(['[UNK]', '[SEP]', '[CLS]', *'[]SEP', 'SE', 'SEP', '[SEP'])}
    merges = [('S', 'E'), ('SE', 'P'), ('[', 'SEP'), ('[SEP', ']')]
    model = {
        'word level': lambda: models.WordLevel(pieces, '[UNK]'),
        'word piece': lambda: models.WordPiece(pieces, unk_token='[UNK]'),
        'bpe': lambda: models.BPE(pieces, merges, unk_token='[UNK]'),
    }[kind]()
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(['[UNK]', '[SEP]', '[CLS]'])
    ids = make_plain_text_tokenizer(tokenizer).encode('S [SEP] [UNK]').ids
    expected = {'word level': ['S', '[UNK]', '[UNK]'], 'word piece': ['S', '[UNK]', '[UNK]']}
    assert tokens(tokenizer, ids)[:3] == expected.get(kind, ['S', '[SEP', ']'])
    assert tokenizer.encode('S [SEP]').tokens == ['S', '[SEP]']  # The original tokenizer is unchanged.


def test_a_symbol_may_be_typed_and_a_copy_travels_between_processes():
    tokenizer = entity_tokenizer()
    reader = copy.deepcopy(make_plain_text_tokenizer(tokenizer, ['[MASK]']))  # as pickled
    ids = reader.encode('[E1] [MASK] [SEP]', add_special_tokens=False).ids
    assert tokens(tokenizer, ids) == ['[E1]', '[MASK]', '[', 'sep', ']']


def test_ids_and_pieces_of_plain_text_are_the_tokenizers():
    tokenizer = unigram()
    text = 'a b bad ♥ spa'
    assert make_plain_text_tokenizer(tokenizer).encode(text).ids == tokenizer.encode(text).ids
    assert json.loads(make_plain_text_tokenizer(tokenizer).to_str())['post_processor'] is not None
