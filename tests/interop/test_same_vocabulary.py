"""Tests that a checkpoint is refused if its ids belong to other pieces than the run's ids."""

from pathlib import Path

import pytest

from efficient_attention.data.tokenizers.fixed_vocabulary import fixed_tokenizer
from efficient_attention.errors import InputError
from efficient_attention.interop.tokenizer_files import check_combinable, check_same_vocabulary

FOLDER = Path('somewhere')


def test_ids_that_stand_for_other_pieces_are_refused(tmp_path: Path):
    """If ids differ, the token table would give rows to the wrong tokens without any error of sizes."""
    file = tmp_path / 'vocab.txt'
    pieces = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', 'a', 'b']
    file.write_text('\n'.join(pieces) + '\n', encoding='utf-8')
    ours = {piece: number for number, piece in enumerate(pieces)}
    check_same_vocabulary(ours, file, FOLDER)
    check_same_vocabulary(None, file, FOLDER)
    with pytest.raises(InputError, match=rf'2 of its 7 ids .*; add --config\.data\.tokenizer={file}$'):
        check_same_vocabulary(ours | {'a': 6, 'b': 5}, file, FOLDER)


def test_rows_of_a_fixed_vocabulary_need_a_model_of_such_rows(tmp_path: Path):
    file = tmp_path / 'tokenizer.json'
    fixed_tokenizer('fixed:bytes').save(str(file))
    ours = fixed_tokenizer('fixed:listops').get_vocab()
    with pytest.raises(InputError, match=r'256 of its 261 .* of this run \(fixed:listops\); start from'):
        check_same_vocabulary(ours, file, FOLDER)


def test_models_whose_ids_stand_for_different_pieces_are_not_combined(tmp_path: Path):
    pieces = {'a': 'ab', 'longer': 'abc', 'other': 'ba', 'none': ''}
    for name, own in pieces.items():
        (tmp_path / name).mkdir()
        if own:
            lines = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', *own]
            (tmp_path / name / 'vocab.txt').write_text('\n'.join(lines) + '\n', encoding='utf-8')
    folders = {tmp_path / name: f'field.{name}' for name in pieces}
    check_combinable({where: field for where, field in folders.items() if where.name != 'other'})
    message = f'^field.other {tmp_path}/other and field.a {tmp_path}/a cannot be combined: 2 of the 7 ids of the former'
    with pytest.raises(InputError, match=message):
        check_combinable(folders)
