"""Parses lists of layer numbers such as '2,3,5,6', for `train.start_layers` and `distill.layers`; counted from 1."""

import re

from efficient_attention.errors import InputError

LIST = re.compile(r'\s*\d+\s*(,\s*\d+\s*)*')


def is_layer_list(text: str) -> bool:
    """Whether a text is a list of whole numbers, separated by commas."""
    return LIST.fullmatch(text) is not None


def parse_layer_list(field: str, text: str, layers: int) -> tuple[int, ...]:
    """Returns the numbers of a list such as '2,3,5,6'; raises InputError for a number outside 1 to `layers`."""
    numbers = tuple(int(part) for part in text.split(',')) if is_layer_list(text) else ()
    if not numbers or not all(1 <= number <= layers for number in numbers):
        raise InputError(f'{field} is {text!r}; it must be numbers from 1 to {layers} with commas')
    return numbers


def teacher_layers_of_student(text: str, students: int, teachers: int) -> dict[int, int]:
    """Returns {number of a student layer: number of its teacher layer}, for the student layers that learn from one;
    numbers start at 1.

    Args:
        text: `distill.layers`.
        students: M, number of student layers.
        teachers: N, number of teacher layers.

    Raises:
        InputError: with 'uniform', N is not a multiple of M; or the length of a list is not M.
    """
    if text == 'last':
        return {students: teachers}
    if text == 'uniform':
        if teachers % students:
            raise InputError(
                f"distill.layers is 'uniform', and the teacher's {teachers} layers do not divide by the student's "
                f'{students}; name {students} of them, such as '
                f"'{','.join(map(str, evenly_spaced_layers(students, teachers)))}'"
            )
        return {number: number * teachers // students for number in range(1, students + 1)}
    numbers = parse_layer_list('distill.layers', text, teachers)
    if len(numbers) != students:
        raise InputError(f'distill.layers {text!r} names {len(numbers)} layers; the student has {students}')
    return dict(enumerate(numbers, 1))


def evenly_spaced_layers(students: int, teachers: int) -> list[int]:
    """Returns the numbers of teacher layers at about equal distances, one per student layer; the last layer is
    included.
    """
    return [max(1, round(number * teachers / students)) for number in range(1, students + 1)]
