"""Tests of the special ids of text-to-text models in tokenizers like T5's, BART's, GPT-2's and BERT's."""

import json
import shutil
from pathlib import Path

import pytest
import sentencepiece
from tokenizers import Tokenizer, models, pre_tokenizers

from efficient_attention.data.tokenizers.loading import load_tokenizer
from efficient_attention.data.tokenizers.special_tokens import BERT_SPECIALS, with_special_tokens
from efficient_attention.data.tokenizers.text_to_text_special_ids import (
    find_text_to_text_special_ids,
    with_begin_and_end_tokens,
)
from efficient_attention.errors import InputError
from tests.data.tokenizers.test_byte_level import roberta
from tests.data.tokenizers.test_sentencepiece import ALBERT, MODELS, train

REAL = Path(__file__).resolve().parents[3] / 'data' / 'tokenizers'


@pytest.fixture
def t5(tmp_path: Path) -> Tokenizer:
    (tmp_path / 'spiece.model').write_bytes(train(**MODELS['like T5']))
    return load_tokenizer(tmp_path / 'spiece.model', lowercase=False, is_text_to_text=True)


def test_t5_has_sentinels_and_no_other_new_piece(t5: Tokenizer, tmp_path: Path):
    ids = find_text_to_text_special_ids(t5, 't5')
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / 'spiece.model')).get_piece_size()
    assert (ids.pad, ids.start, ids.end, ids.unknown, ids.mask, ids.size) == (0, 0, 1, 2, None, pieces + 100)
    assert ids.sentinels == tuple(pieces + 99 - number for number in range(100))
    tokens = t5.encode('The <extra_id_0> fox <extra_id_12>').tokens
    # A sentinel includes the spaces around it, and the word after it still has the mark of a word's start.
    assert tokens[-1] == '</s>' and tokens[-2] == ' <extra_id_12>' and '▁' not in tokens[1:]
    assert tokens[tokens.index(' <extra_id_0> ') + 1].startswith('▁')
    assert t5.decode(t5.encode('The quick fox').ids) == 'The quick fox'


def test_the_settings_beside_a_model_say_how_many_sentinels_it_has(t5: Tokenizer, tmp_path: Path):
    settings = tmp_path / 'tokenizer_config.json'
    settings.write_text('{"extra_ids": 0}')  # Released mT5 folders have this value.
    without = load_tokenizer(tmp_path / 'spiece.model', lowercase=False, is_text_to_text=True)
    assert find_text_to_text_special_ids(without, 'mt5').size == find_text_to_text_special_ids(t5, 't5').size - 100
    settings.write_text('{"extra_ids": "many"}')
    with pytest.raises(InputError, match="tokenizer_config.json: extra_ids is 'many'; it must be a whole number from"):
        load_tokenizer(tmp_path / 'spiece.model', lowercase=False, is_text_to_text=True)


def test_a_model_with_a_beginning_of_text_is_read_as_ever(tmp_path: Path):
    (tmp_path / 'spiece.model').write_bytes(train(**ALBERT))
    path = tmp_path / 'spiece.model'
    both = [load_tokenizer(path, lowercase=True, is_text_to_text=one) for one in (False, True)]
    assert both[0].to_str() == both[1].to_str()
    ids = find_text_to_text_special_ids(both[1], 'albert')
    assert ids.start == both[1].token_to_id('[CLS]') and ids.end == both[1].token_to_id('[SEP]')
    assert ids.sentinels == () and ids.mask == both[1].token_to_id('[MASK]')


def test_bart_begins_with_its_end_where_it_is_told_to(tmp_path: Path):
    tokenizer = load_tokenizer(roberta(tmp_path) / 'vocab.json', lowercase=False, is_text_to_text=True)
    ids = find_text_to_text_special_ids(tokenizer, 'bart')
    assert (ids.start, ids.pad, ids.end, ids.unknown, ids.mask) == (0, 1, 2, 3, 8)
    assert find_text_to_text_special_ids(tokenizer, 'bart', start='</s>').start == 2
    with pytest.raises(
        InputError, match='tokenizer bart: no <go> in its vocabulary; it was named as first token of targets'
    ):
        find_text_to_text_special_ids(tokenizer, 'bart', start='<go>')


@pytest.mark.parametrize('begin, expected', [('', [0, 3, 7]), ('<s>', [6, 0, 3, 7])])
def test_a_file_of_it_can_give_the_ids_of_training(begin: str, expected: list[int]):
    tokenizer = Tokenizer(models.WordLevel({'a': 0, '<unk>': 1, '<pad>': 2, 'b': 3, '[CLS]': 4, '[SEP]': 5}, '<unk>'))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    with_special_tokens(tokenizer, ['[CLS]', '[SEP]', '<s>', '</s>'])
    assert tokenizer.encode('a b').ids == [4, 0, 3, 5]
    changed = with_begin_and_end_tokens(tokenizer, begin=begin, end=7)
    assert changed.encode('a b').ids == expected and tokenizer.encode('a b').ids == [4, 0, 3, 5]
    assert changed.encode('a b', 'b').ids == [*expected, 3, 7]
    assert changed.decode(expected) == 'a b' and changed.get_vocab() == tokenizer.get_vocab()


def test_gpt2s_one_special_token_serves_for_all(tmp_path: Path):
    pieces = ['a', 'b', 'Ġ', 'Ġa', '<|endoftext|>']
    (tmp_path / 'vocab.json').write_text(json.dumps({piece: number for number, piece in enumerate(pieces)}))
    (tmp_path / 'merges.txt').write_text('#version: 0.2\nĠ a\n', encoding='utf-8')
    tokenizer = load_tokenizer(tmp_path / 'vocab.json', lowercase=False)
    assert tokenizer.encode('b a<|endoftext|>').ids == [1, 3, 4]
    ids = find_text_to_text_special_ids(tokenizer, 'gpt2')
    assert (ids.pad, ids.start, ids.end, ids.unknown, ids.size) == (4, 4, 4, None, 5)


def test_what_is_lacking_is_one_line(t5: Tokenizer):
    ids = find_text_to_text_special_ids(t5, 't5')
    ids.check_fits_vocab_size(ids.size)
    message = (
        f'tokenizer t5: it has {ids.size} pieces, its sentinel <extra_id_0> among .*; the model has {ids.size - 1}'
    )
    with pytest.raises(InputError, match=message):
        ids.check_fits_vocab_size(ids.size - 1)
    ids.check_sentinels(100)
    with pytest.raises(InputError, match=r'tokenizer t5: 100 sentinels \(<extra_id_0>, ...\) in its vocabulary; 101'):
        ids.check_sentinels(101)
    words = Tokenizer(models.WordLevel({name: number for number, name in enumerate(BERT_SPECIALS)}, unk_token='[UNK]'))
    with pytest.raises(InputError, match='tokenizer bert: no sentinels in its vocabulary; 1 are needed'):
        find_text_to_text_special_ids(words, 'bert').check_sentinels(1)
    with pytest.raises(InputError, match='tokenizer bert: it has 5 pieces; the model has 4'):
        find_text_to_text_special_ids(words, 'bert').check_fits_vocab_size(4)
    bare = Tokenizer(models.WordLevel({'[UNK]': 0, '[SEP]': 1}, unk_token='[UNK]'))
    with pytest.raises(InputError, match=r'tokenizer bare: no \[PAD\] or <pad> in its vocabulary'):
        find_text_to_text_special_ids(bare, 'bare')


@pytest.mark.real
@pytest.mark.skipif(not REAL.exists(), reason='needs data/tokenizers')
def test_the_vocabularies_that_the_world_has(tmp_path: Path):
    t5 = load_tokenizer(REAL / 't5-base.sentencepiece.model', lowercase=False, is_text_to_text=True)
    ids = find_text_to_text_special_ids(t5, 't5')
    assert (ids.size, ids.pad, ids.end, ids.unknown, ids.sentinels[0], ids.sentinels[99]) == (
        32100,
        0,
        1,
        2,
        32099,
        32000,
    )
    ids.check_fits_vocab_size(32128)
    library = sentencepiece.SentencePieceProcessor(model_file=str(REAL / 't5-base.sentencepiece.model'))
    expected = [*library.encode('The cute dog'), 32099, *library.encode('in'), 32098, *library.encode('park'), 1]
    assert t5.encode('The cute dog <extra_id_0> in <extra_id_1> park').ids == expected
    for name, special in (('gpt2', (50256, 50256, 50256)), ('roberta', (1, 0, 2))):
        folder = tmp_path / name
        folder.mkdir()
        vocabulary = {'gpt2': 'gpt2_encoder.json', 'roberta': 'roberta-base-vocab.json'}[name]
        shutil.copyfile(REAL / vocabulary, folder / 'vocab.json')
        shutil.copyfile(REAL / 'gpt2_vocab.bpe', folder / 'merges.txt')
        tokenizer = load_tokenizer(folder / 'vocab.json', lowercase=False)
        ids = find_text_to_text_special_ids(tokenizer, name)
        assert (ids.pad, ids.start, ids.end) == special
        plain = tokenizer.encode('Hello world', add_special_tokens=False).ids
        assert plain == {'gpt2': [15496, 995], 'roberta': [31414, 232]}[name]
