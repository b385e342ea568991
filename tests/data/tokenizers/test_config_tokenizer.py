"""Tests of a config's tokenizer: a file, identified by its content and not its name, or a trained tokenizer."""

import dataclasses
from pathlib import Path

import pytest

from efficient_attention.config.data import DataConfig
from efficient_attention.data.tokenizers import config_tokenizer as tokenizer_choice
from efficient_attention.data.tokenizers.config_tokenizer import (
    load_config_tokenizer,
    tokenizer_identity,
    train_config_tokenizer,
)
from efficient_attention.errors import InputError
from tests.data.tokenizers.test_added_tokens import bert, beside
from tests.data.tokenizers.test_byte_level import roberta

TEXTS = [f'the small dog {number} sleeps near the old tree.\n\n' for number in range(50)]
CONFIG = DataConfig(tokenizer='train:bpe', vocab_size=300)


def trained(characters: int = 1):
    return train_config_tokenizer(CONFIG, lambda: iter(TEXTS), characters)


def test_a_trained_one_is_not_loaded():
    assert load_config_tokenizer(CONFIG) is None and trained().get_vocab_size() == 300


def test_a_file_is_loaded_and_identified_by_its_content(tmp_path):
    identities = []
    for name in ('a.json', 'b.json'):
        trained().save(str(tmp_path / name))
        config = dataclasses.replace(CONFIG, tokenizer=str(tmp_path / name))
        assert load_config_tokenizer(config).get_vocab() == trained().get_vocab()
        identities.append(tokenizer_identity(config))
    assert identities[0] == identities[1] != tokenizer_identity(CONFIG)
    assert tokenizer_identity(CONFIG) != tokenizer_identity(dataclasses.replace(CONFIG, lowercase=False))


def test_files_beside_it_count_where_they_change_how_texts_are_read(tmp_path: Path):
    config = dataclasses.replace(CONFIG, tokenizer=str(bert(tmp_path)))
    before = tokenizer_identity(config)
    beside(tmp_path, tokenizer_config={'added_tokens_decoder': {'0': {'content': '[PAD]', 'special': True}}})
    assert tokenizer_identity(config) == before
    beside(tmp_path, special_tokens_map={'additional_special_tokens': ['[unused0]']})
    assert tokenizer_identity(config) == before | {'whole': ['[unused0]']}
    (tmp_path / 'pair').mkdir()
    pair = dataclasses.replace(CONFIG, tokenizer=str(roberta(tmp_path / 'pair') / 'vocab.json'))
    before = tokenizer_identity(pair)
    with (tmp_path / 'pair' / 'merges.txt').open('a', encoding='utf-8') as file:
        file.write('\n')
    assert tokenizer_identity(pair) != before


def test_of_a_long_text_a_share_is_read(monkeypatch):
    read = []
    monkeypatch.setattr(tokenizer_choice, 'train_tokenizer', lambda _kind, pieces, **_: read.append(list(pieces())))
    monkeypatch.setattr(tokenizer_choice, 'TRAINING_CHARACTERS', 500)
    trained(500)
    trained(1000)
    assert len(read[0]) == 50 and 10 < len(read[1]) < 40 and set(read[1]) < set(read[0])


def test_an_unknown_kind_lists_the_known_ones():
    with pytest.raises(InputError, match="^data.tokenizer is 'train:words'; known: train:.*, or a file$"):
        load_config_tokenizer(DataConfig(tokenizer='train:words'))


def test_sentinels_are_counted_among_the_pieces():
    tokenizer = train_config_tokenizer(CONFIG, lambda: iter(TEXTS), 1, sentinels=3)
    assert tokenizer.get_vocab_size() == 300 and tokenizer.token_to_id('<extra_id_0>') == 299
    with pytest.raises(InputError, match=r'^data.vocab_size is 300, and 300 of its pieces would be sentinels$'):
        train_config_tokenizer(CONFIG, lambda: iter(TEXTS), 1, sentinels=300)
