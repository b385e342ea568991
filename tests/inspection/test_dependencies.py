"""Tests of the accuracy of heads and offsets on dependencies, and of joining tokens to words."""

from pathlib import Path

import numpy as np
import pytest

import efficient_attention as ea
from efficient_attention.errors import InputError
from efficient_attention.inspection.dependencies import (
    ReadSentence,
    RelationCounts,
    Sentence,
    best_heads,
    most_attended,
    read_dependencies,
    read_weights,
    word_of_tokens,
    word_weights,
)
from tests.inference.test_generate import workdir_of
from tests.inference.tiny_checkpoint import write_checkpoint
from tests.inspection.conllu_files import KING, OLD_DOG, write_conllu


def pointing(sentence: Sentence, *, to_head: bool = True) -> np.ndarray:
    """Returns weights [words, words] with which each word reads its head, or each head its last dependent."""
    words = len(sentence.words)
    weights = np.full((words, words), 0.5 / words)
    for word, head in enumerate(sentence.heads):
        if head >= 0:
            weights[(word, head) if to_head else (head, word)] += 0.5
    return weights


def test_sentences_are_read_without_ranges_and_empty_nodes(tmp_path: Path):
    assert read_dependencies(write_conllu(tmp_path / 'a,b.conllu', [OLD_DOG, KING])) == [OLD_DOG, KING]


@pytest.mark.parametrize(
    'name, column, value, said',
    [
        ('x.conllu', 6, '_', r'x.conllu: line 3: the word has no head \(column 7 is _\)$'),
        ('x.conllu', 6, '9', "x.conllu: line 3: the head is '9'; the sentence has words 1 to 3$"),
        ('x.conllu', 6, 'two', "x.conllu: line 3: the head is 'two'; the sentence has words 1 to 3$"),
        ('x.conllu', 6, '1', "x.conllu: line 3: the head is '1'; the sentence has words 1 to 3$"),
        ('x.conllu', 0, '7', 'x.conllu: line 3: the words of the sentence are not numbered 1, 2, ...$'),
        ('x.txt', 0, '1', 'x.txt is no CoNLL-U file: its name must end in .conllu$'),
    ],
)
def test_bad_files_are_one_line(tmp_path: Path, name: str, column: int, value: str, said: str):
    path = write_conllu(tmp_path / name, [KING])
    lines = path.read_text().split('\n')
    columns = lines[2].split('\t')
    columns[column] = value
    lines[2] = '\t'.join(columns)
    path.write_text('\n'.join(lines))
    with pytest.raises(InputError, match=said):
        read_dependencies(path)


def test_a_file_without_sentences_is_one_line(tmp_path: Path):
    with pytest.raises(InputError, match='x.conllu: no sentences$'):
        read_dependencies(write_conllu(tmp_path / 'x.conllu', []))


def test_weights_to_a_word_are_summed_and_from_a_word_averaged():
    weights = np.array([[[0.1, 0.2, 0.3, 0.4], [0, 0.5, 0.1, 0.4], [0.2, 0.3, 0.5, 0], [1, 0, 0, 0]]])
    found = word_weights(weights, np.array([-1, 0, 0, 1]), 2)  # a special token, a word of two pieces, a word of one
    np.testing.assert_allclose(found, [[[(0.5 + 0.1 + 0.3 + 0.5) / 2, (0.4 + 0.0) / 2], [0, 0]]])


def test_a_word_never_counts_as_its_own_head():
    assert most_attended(np.array([[[0.9, 0.0, 0.1], [0.3, 0.4, 0.3], [0.0, 0.1, 0.9]]])).tolist() == [[2, 0, 1]]


def test_a_head_that_points_to_syntactic_heads_has_accuracy_1():
    sentences = [
        ReadSentence(one, np.stack([np.full((len(one.words),) * 2, 0.1), pointing(one)])) for one in (OLD_DOG, KING)
    ]
    counts = RelationCounts(sentences)
    assert counts.cases == {'det': 2, 'amod': 1, 'nsubj': 2, 'all': 5}
    found = {one['relation']: one for one in best_heads(counts, counts, [(0, 0), (0, 1)], 1)}
    assert [*found] == ['all', 'det', 'nsubj', 'amod']
    for one in found.values():
        assert (one['layer'], one['head'], one['direction']) == (0, 1, 'dependent to head')
        assert one['accuracy'] == one['dev_accuracy'] == 1
    # Offsets: det +2 and +1, amod +1, nsubj +1 twice.
    assert (found['det']['offset'], found['det']['offset_accuracy']) == (1, 0.5)
    assert (found['all']['offset'], found['all']['offset_accuracy']) == (1, 0.8)
    assert {one['relation'] for one in best_heads(counts, counts, [(0, 0), (0, 1)], 2)} == {'all', 'det', 'nsubj'}


def test_heads_and_offsets_are_chosen_on_dev_and_measured_on_test():
    other = Sentence(('dog', 'the', 'runs'), (2, 0, -1), ('nsubj', 'det', 'root'))
    dev = RelationCounts([ReadSentence(KING, np.stack([pointing(KING), pointing(KING, to_head=False)]))])
    test = RelationCounts([ReadSentence(other, np.stack([pointing(KING), pointing(other, to_head=False)]))])
    found = {one['relation']: one for one in best_heads(dev, test, [(3, 0), (3, 1)], 1)}
    assert found['nsubj']['dev_accuracy'] == 1 and found['nsubj']['accuracy'] == 0
    assert (found['nsubj']['layer'], found['nsubj']['head'], found['nsubj']['offset']) == (3, 0, 1)
    assert found['nsubj']['offset_accuracy'] == 0


def test_punctuation_is_no_part_of_all_relations():
    sentence = Sentence(('runs', '.'), (-1, 0), ('root', 'punct'))
    assert RelationCounts([ReadSentence(sentence, np.ones((1, 2, 2)))]).cases == {'punct': 1}


def test_words_of_an_encoders_tokens(tmp_path: Path):
    pipeline = ea.pipeline('attention', write_checkpoint(tmp_path, 'fill_mask'))
    rows, words = word_of_tokens(pipeline, ['the', 'old,', 'dog']) or ([], np.zeros(0))
    assert rows[0].names == ['[CLS]', 'the', 'old', ',', 'dog', '[SEP]'] and words.tolist() == [-1, 0, 1, 1, 2, -1]
    assert word_of_tokens(pipeline, ['the'] * 23) is None
    read, heads = read_weights(pipeline, [OLD_DOG, Sentence(('dog',), (-1,), ('root',))])
    assert heads == [(0, 0), (0, 1)] and len(read) == 1
    [window] = pipeline('the old dog sleeps')
    np.testing.assert_allclose(read[0].weights_NWW, window['layers'][0]['weights'][:, 1:-1, 1:-1], atol=1e-7)
    with pytest.raises(InputError, match='^no sentence with dependencies can be read'):
        read_weights(pipeline, [])


@pytest.mark.lenient_promotion  # A built run has an optimizer; Optax mixes Python floats with int32.
def test_words_of_a_language_models_characters(tmp_path: Path):
    pipeline = ea.pipeline('attention', workdir_of(tmp_path))
    [row], words = word_of_tokens(pipeline, ['The', 'old']) or ([], np.zeros(0))
    assert ''.join(row.names) == 'The old' and words.tolist() == [0, 0, 0, 0, 1, 1, 1]
    assert word_of_tokens(pipeline, ['old'] * 20) is None
