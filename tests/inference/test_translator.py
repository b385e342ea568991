"""Tests of the translator: which ids may follow, prefixes of sources, and options of the search."""

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from configs.text_to_text.glue import get_config as glue_config
from efficient_attention.data.pairs.pair_encoder import PairEncoder, SourceOrTargetEncoder, special_ids_of_tokenizer
from efficient_attention.errors import InputError
from efficient_attention.inference.seq2seq_generator import GeneratedTarget
from efficient_attention.inference.translator import (
    DecodingOptions,
    Translation,
    Translator,
    allowed_token_mask,
    open_translator,
    single_task_prefix,
    structural_ids,
)
from efficient_attention.interop.huggingface_export import save_pretrained
from efficient_attention.interop.pretrained import open_pretrained
from efficient_attention.training.fill_config import fill_config
from tests.data.tokenizers.test_marian import ids_of_library, write_marian
from tests.interop.folders import TEXT_TO_TEXT
from tests.tasks.test_text_to_text import config_of
from tests.training.tiny_run import fresh_workdir


def test_a_released_marian_reads_with_one_model_and_writes_with_both(tmp_path: Path):
    """A released Marian folder has source.spm, target.spm and vocab.json; an export contains them too."""
    folder = shutil.copytree(TEXT_TO_TEXT / 'marian_1', tmp_path / 'in')
    write_marian(folder, size=61)
    save_pretrained(tmp_path / 'out', open_pretrained(folder))
    texts = ['the quick fox', '>>fra<< ß jumps']
    for path in (folder, tmp_path / 'out'):
        translator = open_translator(path, decoding=DecodingOptions(beams=1, max_tokens=4))
        for side, name in ((translator.encoder.source, 'source.spm'), (translator.encoder.target, 'target.spm')):
            expected = [[*ids_of_library(folder, name, text), 1] for text in texts]
            assert [ids.tolist() for ids in side.ids(texts)] == expected
    for [one] in translator(texts):
        assert one.pieces and one.text == ''.join(one.pieces).replace('▁', ' ').strip()
    config = glue_config('sst2-pretrained')
    config.train.start_from = str(folder)
    with pytest.raises(InputError, match='source.spm: models with two SentencePiece files can only translate'):
        fill_config(config.to_dict())
    (tmp_path / 'out' / 'target.spm').write_bytes(b'another')
    with pytest.raises(InputError, match='out is damaged: target.spm is not what was written'):
        open_pretrained(tmp_path / 'out')


@pytest.fixture
def tokenizer() -> Tokenizer:
    pieces = {'<pad>': 0, '</s>': 1, '<unk>': 2, 'a': 3, 'b': 4}
    tokenizer = Tokenizer(models.WordLevel(pieces, unk_token='<unk>'))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(['<pad>', '</s>', '<unk>'])
    return tokenizer


class Reversing:
    """A stand-in for `Seq2SeqGenerator` that returns each source reversed, without its end symbol."""

    def iterate_targets(self, sources: list[np.ndarray], *, alignments: bool = False, **_):
        for number, ids in reversed(list(enumerate(sources))):
            weights = np.eye(len(ids))[::-1][1:] if alignments else None
            yield number, [GeneratedTarget(ids[:-1][::-1], -1.0, -2.0, True, weights)]


def test_texts_go_through_in_their_order(tokenizer: Tokenizer):
    side = SourceOrTargetEncoder(tokenizer, special_ids_of_tokenizer(tokenizer), 4)
    translator = Translator(Reversing(), PairEncoder(side, side), 'b ')
    [[one], [other]] = translator(['a a', 'a b a b'], alignments=True)
    assert one.text == 'a a b' and one.source_pieces == ('b', 'a', 'a', '</s>') and one.pieces == ('a', 'a', 'b')
    assert translator.cut_sources == 1
    assert other.text == 'b a b' and one.alignment.shape == (3, 4)  # The source is cut to 4 tokens.


def test_blank_targets_are_counted(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch):
    side = SourceOrTargetEncoder(tokenizer, special_ids_of_tokenizer(tokenizer), 4)
    translator = Translator(Reversing(), PairEncoder(side, side), '')
    translator(['a', 'a b'])
    assert translator.blank == 0
    spaces = Translation('  ', -0.5, (), (), is_ended=True)
    monkeypatch.setattr(translator, 'make_translation', lambda *_: spaces)
    translator(['a', 'a b'])
    assert translator.blank == 2


def test_pieces_and_weights_of_a_reversed_source_stand_as_in_its_text(tokenizer: Tokenizer):
    """The generator gets `b a a` and reverses it; each target token is aligned to the source piece that it was."""
    side = SourceOrTargetEncoder(tokenizer, special_ids_of_tokenizer(tokenizer), 4)
    reversing = dataclasses.replace(side, is_reversed=True)
    [[one]] = Translator(Reversing(), PairEncoder(reversing, side))(['a a b'], alignments=True)
    assert one.text == 'a a b' and one.source_pieces == ('a', 'a', 'b', '</s>')
    assert one.alignment.argmax(axis=1).tolist() == [0, 1, 2]


def test_sentinels_are_written_and_read(tokenizer: Tokenizer):
    """Sentinels stay in a text, since they say which span the next pieces fill; other special pieces are left out."""
    tokenizer.add_special_tokens(['<extra_id_1>', '<extra_id_0>'])
    side = SourceOrTargetEncoder(tokenizer, special_ids_of_tokenizer(tokenizer), 8)
    assert allowed_token_mask(tokenizer, side.symbols, 8).tolist() == [
        False,
        True,
        False,
        True,
        True,
        True,
        True,
        False,
    ]
    [[one]] = Translator(Reversing(), PairEncoder(side, side))(['a <extra_id_1> b <unk> <extra_id_0>'])
    assert one.text == '<extra_id_0> b <extra_id_1> a' and '<unk>' in one.pieces


def test_pieces_that_fill_a_vocabulary_up_do_not_follow(tokenizer: Tokenizer):
    tokenizer.add_tokens(['[unused0]', 'c', '[unused17]'])
    follow = allowed_token_mask(tokenizer, special_ids_of_tokenizer(tokenizer), 8)
    assert follow.tolist() == [False, True, False, True, True, False, True, False]


def test_special_pieces_do_not_follow_but_for_the_end(tokenizer: Tokenizer):
    assert allowed_token_mask(tokenizer, special_ids_of_tokenizer(tokenizer), 8).tolist() == [
        False,
        True,
        False,
        True,
        True,
        False,
        False,
        False,
    ]


@pytest.mark.parametrize('fields', [{'beams': 0}, {'best': 5}, {'penalty': 'none'}, {'batch_size': 0}])
def test_options_out_of_range_are_refused(fields: dict):
    with pytest.raises(InputError, match='|'.join([*fields, 'rows'])):
        DecodingOptions(**fields)


def test_a_run_with_several_prefixes_needs_one():
    assert single_task_prefix(config_of(), Path('run')) == ''
    two = {'pairs.train': 'toy:copy:4:2-3; toy:sort:4:2-3', 'pairs.held_out': '', 'pairs.prefix': ('a ', 'b ')}
    with pytest.raises(InputError, match=r"^run was trained with the prefixes 'a ', 'b '; choose one"):
        single_task_prefix(config_of(**two), Path('run'))


def test_a_run_of_another_task_is_refused(tmp_path: Path):
    with pytest.raises(InputError, match='text-to-text generation needs an encoder-decoder'):
        open_translator(fresh_workdir(tmp_path))


def test_tokens_that_an_author_added_are_written_and_structural_ones_are_not():
    pieces = {'<pad>': 0, '</s>': 1, '<unk>': 2, 'a': 3, 'b': 4}
    tokenizer = Tokenizer(models.WordLevel(pieces, '<unk>'))
    tokenizer.add_special_tokens(['<pad>', '</s>', '<unk>', '<triplet>', '<extra_id_0>'])
    allowed = allowed_token_mask(tokenizer, special_ids_of_tokenizer(tokenizer), 8)
    assert allowed.tolist() == [False, True, False, True, True, True, True, False]
    assert structural_ids(tokenizer) == {0, 1, 2}
