"""Tests pictures of alignments: a panel for each text, with a row of weights for each target token."""

import numpy as np
import pytest
from matplotlib.figure import Figure

from efficient_attention.errors import InputError
from efficient_attention.inference.translator import Translation
from efficient_attention.programs.pictures import alignment as alignment_pictures


def translation(pieces: int, source: int) -> Translation:
    weights = np.eye(pieces, source, dtype=np.float32)
    names = tuple(f'▁{number}' for number in range(max(pieces, source)))
    return Translation('text', -1.0, names[:pieces], names[:source], weights)


def panels(figure: Figure) -> list:
    return [axes for axes in figure.axes if axes.images]


def test_each_text_has_its_panel_with_its_pieces_and_weights():
    found = [translation(3, 5), translation(2, 2), translation(4, 3), translation(1, 7)]
    shown = panels(alignment_pictures.draw_alignments(found))
    assert len(shown) == 4
    for axes, one in zip(shown, found, strict=True):
        np.testing.assert_array_equal(axes.images[0].get_array(), one.alignment)
        plain = [[piece.removeprefix('▁') for piece in side] for side in (one.pieces, one.source_pieces)]
        assert [label.get_text() for label in axes.get_yticklabels()] == plain[0]
        assert [label.get_text() for label in axes.get_xticklabels()] == plain[1]


def test_padding_beyond_the_pieces_is_not_drawn():
    one = translation(2, 3)
    padded = one._replace(alignment=np.pad(one.alignment, ((0, 2), (0, 5))))
    [axes] = panels(alignment_pictures.draw_alignments([padded]))
    assert axes.images[0].get_array().shape == (2, 3)


def test_without_a_text_there_is_one_line():
    with pytest.raises(InputError, match='^the model generated no text'):
        alignment_pictures.draw_alignments([])


def test_an_empty_text_is_refused_before_a_model_is_read():
    with pytest.raises(InputError, match='^a text is empty'):
        alignment_pictures.draw_translation_alignments(['a', ' '], None)


def test_too_many_texts_are_refused_before_a_model_is_read():
    with pytest.raises(InputError, match='^13 texts; one picture shows 12 at most$'):
        alignment_pictures.draw_translation_alignments(['a'] * 13, None)
