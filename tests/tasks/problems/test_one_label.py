"""Tests of rows of texts or text pairs with one label each: reading, encoding and reports."""

from pathlib import Path

import numpy as np
import pytest

from efficient_attention.config.examples import ExamplesConfig
from efficient_attention.data.arena.listops import listops_row
from efficient_attention.data.examples.text_encoder import text_encoder
from efficient_attention.data.tokenizers.fixed_vocabulary import FIRST_WORD
from efficient_attention.errors import InputError
from efficient_attention.tasks.problems.classification import Classification
from efficient_attention.tasks.problems.one_label import pair_with_predictions
from efficient_attention.tasks.problems.regression import Regression
from tests.tasks.letters import letters, spaced_letters

ENCODER = letters()


def task_of(folder, content, *, length=16, encoder=ENCODER, **options):
    """Returns a classification task whose three splits are all the file 'a.csv' with this content."""
    path = folder / 'a.csv'
    path.write_text(content)
    files = {split: str(path) for split in ('train', 'dev', 'test')}
    return Classification(ExamplesConfig(problem='classification', **{**files, **options}), encoder, length)


def texts(features):
    pieces = [ENCODER.tokenizer.id_to_token(id) for feature in features for id in feature['tokens']]
    return ''.join(piece.removeprefix('##') for piece in pieces)


def arena_of(folder, text, encoder=None, **options):
    """Returns a classification task whose three splits are all the same long-range data set."""
    sets = dict.fromkeys(('train', 'dev', 'test'), text)
    config = ExamplesConfig('classification', 'arena', cache=str(folder / 'cache'), **{**sets, **options})
    vocabulary = text.partition(':')[0] if text.startswith('listops') else 'bytes'
    return Classification(config, encoder or text_encoder(Path(f'fixed:{vocabulary}')), 24)


def test_rows_of_ids(tmp_path):
    task = arena_of(tmp_path, 'listops:rows=4:length=8-40')
    examples = task.read_examples('train')
    features = task.encode(examples, is_training=True)
    assert task.labels == tuple('0123456789') and task.metric_names == {'accuracy'} and task.head == 'sequence'
    for index, (example, feature) in enumerate(zip(examples, features, strict=True)):
        row = listops_row(0, 'train', index, 8, 40)
        assert (feature['tokens'] == row.texts[0][:24] + FIRST_WORD).all()  # The text is cut to the row's length.
        assert isinstance(feature['tokens'].base, np.memmap)  # The tokens stay on disk until a batch reads them.
        assert (example.label, int(feature['label'])) == (str(row.label), row.label)
    assert task.encode(task.read_examples('dev'))[0]['tokens'].tolist() != features[0]['tokens'].tolist()
    assert examples[1].file_and_line == 'listops:rows=4:length=8-40: row 1'


def test_a_row_of_ids_is_as_its_text(tmp_path):
    task = arena_of(tmp_path, 'listops:rows=1:length=8-20')
    [feature] = task.encode(task.read_examples('dev'))
    text = task.encoder.tokenizer.decode(feature['tokens'].tolist())
    [again] = task.encode([task.example_from_python(text)])
    assert again['tokens'].tolist() == feature['tokens'].tolist()


def test_towers_are_rows_of_their_own(tmp_path):
    task = arena_of(tmp_path, 'passages:rows=3:length=30:source=stdlib', towers=True)
    examples = task.read_examples('train')
    features = task.encode(examples)
    assert task.head == 'towers' and task.labels == ('0', '1')
    for example, feature in zip(examples, features, strict=True):
        assert feature['tokens'].shape == (2, 24) and feature['lengths'].tolist() == [24, 24]
        assert all((feature['tokens'][side] == example.ids[side][:24]).all() for side in (0, 1))
    assert task.notes == [
        'passages:rows=3:length=30:source=stdlib: 3 of 3 rows have more than data.length 24 tokens and were cut'
    ]
    joined = arena_of(tmp_path, 'passages:rows=3:length=30:source=stdlib')
    [first, *_] = joined.encode(joined.read_examples('train'))
    assert joined.head == 'sequence' and first['tokens'].shape == (24,) and joined.encoder.sep in first['tokens']


def test_towers_of_a_table(tmp_path):
    task = task_of(tmp_path, 'a,b,label\nab c,d,x\nd,e f,y\n', text='a', text_pair='b', towers=True, length=4)
    first, _ = task.encode(task.read_examples('dev'))
    assert first['lengths'].tolist() == [4, 3] and texts([{'tokens': first['tokens'].ravel()}]).startswith('[CLS]ab')


def test_towers_and_sets_that_do_not_serve(tmp_path):
    with pytest.raises(InputError, match='^examples.towers is True; a row here has one text, so it must be False$'):
        arena_of(tmp_path, 'listops:rows=4:length=8-40', towers=True)
    with pytest.raises(InputError, match='^data.tokenizer has another vocabulary than the rows of listops; it must be'):
        arena_of(tmp_path, 'listops:rows=4:length=8-40', encoder=ENCODER)
    with pytest.raises(InputError, match="^examples.train is empty; with examples.format 'arena' it must name a set"):
        arena_of(tmp_path, '')
    task = arena_of(tmp_path, 'passages:rows=3:length=30:source=stdlib', towers=True, overlong='windows')
    with pytest.raises(InputError, match="^examples.overlong is 'windows'; with examples.towers a text is one row"):
        task.encode(task.read_examples('train'))


def test_rows_of_texts(tmp_path):
    task = task_of(tmp_path, 'text,label\nab c,x\nd,y\n')
    features = task.encode(task.read_examples('train'), is_training=True)
    assert texts(features) == '[CLS]abc[SEP][CLS]d[SEP]'
    assert [int(feature['label']) for feature in features] == [0, 1]
    assert [int(feature['example']) for feature in features] == [0, 1]
    assert {feature[name].dtype for feature in features for name in feature} == {np.dtype(np.int32)}
    assert task.notes == []


@pytest.mark.parametrize('encoder', [letters(), spaced_letters()])
def test_rows_of_pairs_are_the_tokenizers(tmp_path, encoder):
    task = task_of(tmp_path, 'a,b,label\nab c,d,x\nd,e f,y\n', text='a', text_pair='b', encoder=encoder)
    for example, feature in zip(task.read_examples('dev'), task.encode(task.read_examples('dev')), strict=True):
        expected = encoder.row(*encoder.encode(list(example.texts)))
        assert (feature['tokens'].tolist(), feature['token_types'].tolist()) == (expected.ids, expected.type_ids)


def test_a_test_row_has_no_label(tmp_path):
    task = task_of(tmp_path, 'text\nab\n', labels=('x', 'y'))
    [feature] = task.encode(task.read_examples('test'))
    assert 'label' not in feature


LONG = 'text,label\nabcdefghij,x\nab,y\n'


def test_long_rows_are_cut_and_counted(tmp_path):
    task = task_of(tmp_path, LONG, length=6)
    assert texts(task.encode(task.read_examples('train'))) == '[CLS]abcd[SEP][CLS]ab[SEP]'
    assert task.notes == [f'{tmp_path}/a.csv: 1 of 2 rows have more than data.length 6 tokens and were cut']
    task.encode(task.read_examples('train'))
    assert len(task.notes) == 1  # said once


def test_long_rows_are_refused_left_out_or_windows(tmp_path):
    task = task_of(tmp_path, LONG, length=6, overlong='error')
    with pytest.raises(InputError, match=r"a.csv: line 2: field 'text' has 10 tokens; data.length 6 leaves room for 4"):
        task.encode(task.read_examples('train'))
    task = task_of(tmp_path, LONG, length=6, overlong='skip')
    assert texts(task.encode(task.read_examples('train'))) == '[CLS]ab[SEP]'
    assert task.notes[0].endswith('and were left out')
    task = task_of(tmp_path, LONG, length=6, overlong='windows', stride=3)
    features = task.encode(task.read_examples('train'))
    assert texts(features) == '[CLS]abcd[SEP][CLS]defg[SEP][CLS]ghij[SEP][CLS]ab[SEP]'
    assert [int(feature['example']) for feature in features] == [0, 0, 0, 1]
    assert task.notes[0].endswith('and became 3 windows')


def test_labels_must_be_known(tmp_path):
    task = task_of(tmp_path, 'text,label\na,x\nb,z\n', labels=('x', 'y'))
    with pytest.raises(InputError, match=r"a.csv: line 3: field 'label' is 'z'; known labels: x, y"):
        task.read_examples('dev')


def test_fields_and_formats_must_serve(tmp_path):
    with pytest.raises(InputError, match="examples.format is 'squad'; examples.problem 'classification' reads"):
        task_of(tmp_path, LONG, format='squad')
    with pytest.raises(InputError, match='data.length is 2; 1 texts with 2 special tokens need more'):
        task_of(tmp_path, LONG, length=2)


def test_mnli_has_two_dev_splits(tmp_path):
    for name, rows in [('dev_matched', 'm'), ('dev_mismatched', 'nn')]:
        lines = [f'{text}\tb\tneutral' for text in rows]
        (tmp_path / f'{name}.tsv').write_text('\n'.join(['sentence1\tsentence2\tgold_label', *lines]))
    config = ExamplesConfig(problem='classification', format='glue', name='mnli', dev=str(tmp_path))
    task = Classification(config, ENCODER, 16)
    assert task.dev_splits == ('dev_matched', 'dev_mismatched')
    assert [[one.texts[0] for one in task.read_examples(split)] for split in task.dev_splits] == [['m'], ['n', 'n']]
    config = ExamplesConfig(problem='classification', format='glue', name='mnli', dev=f'{tmp_path}/dev_mis*')
    assert Classification(config, ENCODER, 16).dev_splits == ('dev_mismatched',)


def test_without_dev_files_there_is_no_dev_split(tmp_path):
    assert task_of(tmp_path, LONG, dev='').dev_splits == ()


def test_broken_rows_of_glue_are_said(tmp_path):
    header = 'id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n'
    (tmp_path / 'train.tsv').write_text(header + '0\t1\t2\ta\tb\t1\n3\n')
    config = ExamplesConfig(problem='classification', format='glue', name='qqp', train=str(tmp_path))
    task = Classification(config, ENCODER, 16)
    assert len(task.read_examples('train')) == 1
    assert task.notes[0].startswith('1 broken rows were left out, the first: ') and 'line 3' in task.notes[0]


def test_inputs_of_a_pipeline(tmp_path):
    single = task_of(tmp_path, LONG)
    pair = task_of(tmp_path, 'text,b,label\na,b,x\nc,d,y\n', text_pair='b')
    assert single.example_from_python('ab').texts == single.example_from_python({'text': 'ab'}).texts == ('ab',)
    assert (
        pair.example_from_python(('ab', 'c')).texts
        == pair.example_from_python({'text': 'ab', 'text_pair': 'c'}).texts
        == ('ab', 'c')
    )
    for value in ('', ' ', 5, None, {}, [], ('a', ''), {'other': 'a'}):
        with pytest.raises(InputError, match='an input'):
            pair.example_from_python(value)
    with pytest.raises(InputError, match='an input has 2 texts; this task is about 1'):
        single.example_from_python(('a', 'b'))
    with pytest.raises(InputError, match='an input has 1 texts; this task is about 2'):
        pair.example_from_python('a')
    [feature] = single.encode([single.example_from_python('ab')])
    assert texts([feature]) == '[CLS]ab[SEP]' and 'label' not in feature


def test_only_labelled_examples_can_be_scored(tmp_path):
    (tmp_path / 'a.csv').write_text('text,label\na,1\nb,\n')
    config = ExamplesConfig(problem='regression', test=str(tmp_path / 'a.csv'))
    examples = Regression(config, ENCODER, 16).read_examples('test')
    assert pair_with_predictions(examples, [0.5, None]) == [(examples[0], 0.5)]
    with pytest.raises(InputError, match='a.csv: line 3: no label to compare the prediction with'):
        pair_with_predictions(examples, [0.5, 0.5])


def test_sentences_are_rows_of_a_text(tmp_path):
    content = 'text,label\nab. Cd e! F,x\nab cdefgh. G,y\n'
    task = task_of(tmp_path, content, length=7, sentences=2)
    first, second = task.encode(task.read_examples('train'), is_training=True)
    rows = [texts([{'tokens': ids}]) for ids in first['tokens']]
    assert rows == ['[CLS]ab.[SEP][PAD]', '[CLS]cde![SEP]'] and first['lengths'].tolist() == [5, 6]
    assert second['tokens'].shape == (2, 7) and int(second['label']) == 1
    limit = 'examples.sentences 2 sentences, or data.length 7 tokens in one,'
    assert task.notes == [f'{tmp_path}/a.csv: 2 of 2 rows have more than {limit} and were cut']
    task = task_of(tmp_path, content, length=7, sentences=2, overlong='windows')
    assert [int(feature['example']) for feature in task.encode(task.read_examples('dev'))] == [0, 0, 1, 1]


def test_sentences_of_pairs_or_of_texts_without_borders_are_refused(tmp_path):
    with pytest.raises(InputError, match='^examples.sentences is 2; it reads one text, and a row here has two$'):
        task_of(tmp_path, 'a,b,label\nab c,d,x\nd,e f,y\n', text='a', text_pair='b', sentences=2)
    task = task_of(tmp_path, 'text,label\nab,x\nd,y\n', sentences=2)
    with pytest.raises(InputError, match='none of the 2 texts of examples.train has a sentence border'):
        task.encode(task.read_examples('train'), is_training=True)
    assert task.encode(task.read_examples('dev'))[0]['tokens'].shape == (1, 4)
