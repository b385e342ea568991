"""Tests of lists of layer numbers, and of the maps from student layers to the teacher layers that they learn from."""

import pytest

from efficient_attention.config.layer_numbers import parse_layer_list, teacher_layers_of_student
from efficient_attention.errors import InputError


def test_a_list_names_layers_from_one_on():
    assert parse_layer_list('train.start_layers', ' 1, 3,6', 6) == (1, 3, 6)


@pytest.mark.parametrize('text', ['', 'all', '0,1', '1,7', '1;3', '-1', '1,,3'])
def test_what_names_no_layer_is_refused(text: str):
    with pytest.raises(InputError, match=r'train.start_layers is .*; it must be numbers from 1 to 6 with commas'):
        parse_layer_list('train.start_layers', text, 6)


@pytest.mark.parametrize(
    'text, students, teachers, expected',
    [
        ('uniform', 4, 12, {1: 3, 2: 6, 3: 9, 4: 12}),  # TinyBERT's map for a BERT-base teacher
        ('uniform', 6, 6, {number: number for number in range(1, 7)}),
        ('last', 4, 12, {4: 12}),
        ('2,3,5,6', 4, 6, {1: 2, 2: 3, 3: 5, 4: 6}),
    ],
)
def test_maps_of_layers(text: str, students: int, teachers: int, expected: dict[int, int]):
    assert teacher_layers_of_student(text, students, teachers) == expected


def test_a_uniform_map_that_does_not_divide_names_one_that_serves():
    with pytest.raises(InputError, match='6 layers do not divide by the student.s 4; name 4 of them, such as') as found:
        teacher_layers_of_student('uniform', 4, 6)
    advice = str(found.value).split("such as '")[1].split("'")[0]
    assert teacher_layers_of_student(advice, 4, 6)[4] == 6


def test_a_list_of_another_length_is_refused():
    with pytest.raises(InputError, match="'1,2' names 2 layers; the student has 3"):
        teacher_layers_of_student('1,2', 3, 6)
