"""Reads the numbers in recorded_numbers.json and compares a result with them."""

import functools
import json
from pathlib import Path
from typing import Any

from tests.tolerances import assert_close

PATH = Path(__file__).with_name('recorded_numbers.json')


@functools.cache
def recorded() -> dict[str, Any]:
    """Returns the content of the file: kind of number -> name -> numbers."""
    return json.loads(PATH.read_text(encoding='utf-8'))


def assert_recorded(kind: str, name: str, numbers: Any) -> None:
    """Compares a list or dict of numbers with the recorded ones, within the tolerance of float32."""
    assert name in recorded()[kind], 'not recorded: run python -m tests.test_recorded_numbers'
    assert_close(numbers, recorded()[kind][name])
