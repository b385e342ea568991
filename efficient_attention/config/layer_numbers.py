"""Lists of layers as text, counted from 1: those that a student is made of, and those that it learns from."""

import re

from efficient_attention.errors import InputError

LIST = re.compile(r'\s*\d+\s*(,\s*\d+\s*)*')


def is_layer_list(text: str) -> bool:
    """Whether a text is numbers with commas."""
    return LIST.fullmatch(text) is not None


def layer_list(field: str, text: str, layers: int) -> tuple[int, ...]:
    """The numbers of a list such as '2,3,5,6', each from 1 to `layers`; raises InputError, naming the field."""
    numbers = tuple(int(part) for part in text.split(',')) if is_layer_list(text) else ()
    if not numbers or not all(1 <= number <= layers for number in numbers):
        raise InputError(f'{field} is {text!r}; it must be numbers from 1 to {layers} with commas')
    return numbers


def mapped_layers(text: str, students: int, teachers: int) -> dict[int, int]:
    """The teacher's layer for each layer of a student that learns from one, both counted from 1.

    Args:
        text: `distill.layers`.
        students: M, the student's layers.
        teachers: N, the teacher's.

    Raises:
        InputError: 'uniform' does not divide, or a list is not as long as the student has layers.
    """
    if text == 'last':
        return {students: teachers}
    if text == 'uniform':
        if teachers % students:
            raise InputError(
                f"distill.layers is 'uniform', and the teacher's {teachers} layers do not divide by the student's "
                f"{students}; name {students} of them, such as '{','.join(map(str, spread(students, teachers)))}'"
            )
        return {number: number * teachers // students for number in range(1, students + 1)}
    numbers = layer_list('distill.layers', text, teachers)
    if len(numbers) != students:
        raise InputError(f'distill.layers {text!r} names {len(numbers)} layers; the student has {students}')
    return dict(enumerate(numbers, 1))


def spread(students: int, teachers: int) -> list[int]:
    """Layers of the teacher about evenly apart, the last one among them."""
    return [max(1, round(number * teachers / students)) for number in range(1, students + 1)]
