"""Tests that special tokens are found under the names of any vocabulary."""

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from efficient_attention.data.tokenizers.special_tokens import BERT_SPECIALS, ROLES, with_sentinels, with_special_tokens

NAMES = {'bert': BERT_SPECIALS, 'roberta': ('<pad>', '<unk>', '<s>', '</s>', '<mask>')}


def word_level(names):
    tokenizer = Tokenizer(models.WordLevel({name: i for i, name in enumerate([*names, 'a', 'b'])}, unk_token=names[1]))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


def test_every_role_knows_both_families():
    for names in NAMES.values():
        assert all(name in known for name, known in zip(names, ROLES.values(), strict=True))


@pytest.mark.parametrize('family', NAMES)
def test_special_tokens_are_found_in_text_and_framed_by_the_template(family):
    names = NAMES[family]
    tokenizer = with_special_tokens(word_level(names), list(names))
    assert tokenizer.encode(f'a {names[4]} b').ids == [2, 5, 4, 6, 3]
    pair = tokenizer.encode('a', 'b a')
    assert pair.ids == [2, 5, 3, 6, 5, 3] and pair.type_ids == [0, 0, 0, 1, 1, 1]


def test_new_names_get_the_next_ids():
    tokenizer = with_special_tokens(word_level(['<pad>', '<unk>']), ['<pad>', '[CLS]', '[MASK]'])
    assert [tokenizer.token_to_id(name) for name in ('<pad>', '[CLS]', '[MASK]')] == [0, 4, 5]
    assert tokenizer.encode('a').ids == [2]  # Without a [SEP] there is no template.


def test_sentinels_are_the_last_ids_and_the_first_one_the_last():
    tokenizer = with_sentinels(with_special_tokens(word_level(BERT_SPECIALS), list(BERT_SPECIALS)), 2)
    assert [tokenizer.token_to_id(f'<extra_id_{number}>') for number in range(2)] == [8, 7]
    assert tokenizer.encode('a <extra_id_1> b', add_special_tokens=False).ids == [5, 7, 6]
    assert with_sentinels(word_level(BERT_SPECIALS), 0).get_vocab_size() == 7
