"""Tests that a senseless size is refused by a message that names the pattern, the argument and the value."""

from collections.abc import Callable

import pytest

from efficient_attention.attention.patterns import (
    Block,
    GlobalTokens,
    ListedTiles,
    Pattern,
    Prefix,
    RandomTiles,
    Strided,
    Summary,
    Window,
)
from efficient_attention.errors import InputError


@pytest.mark.parametrize(
    'make, message',
    [
        (lambda: Prefix(0), 'Prefix: count is 0; it must be at least 1'),
        (lambda: Window(-1), 'Window: radius is -1; it must be at least 0'),
        (lambda: Window(1, 0), 'Window: dilation is 0; it must be at least 1'),
        (lambda: Block(0), 'Block: size is 0'),
        (lambda: Block(2**31), 'Block: size is 2147483648; it must be at most 2147483647'),
        (lambda: Block(2, back=-1), 'Block: back is -1'),
        (lambda: Strided(0), 'Strided: stride is 0'),
        (lambda: Summary(4, 0), 'Summary: width is 0'),
        (lambda: Summary(4, 5), 'width must be at most block'),
        (lambda: GlobalTokens(0), 'count or last must be at least 1'),
        (lambda: GlobalTokens(-1, last=2), 'GlobalTokens: count is -1'),
        (lambda: RandomTiles(0, 4), 'RandomTiles: per_row is 0'),
        (lambda: RandomTiles(1, 0), 'RandomTiles: size is 0'),
        (lambda: RandomTiles(1, 4, seed=-1), 'RandomTiles: seed is -1'),
        (lambda: ListedTiles(0, (1, 2)), 'ListedTiles: size is 0'),
        (lambda: ListedTiles(4, ()), 'ListedTiles: 0 tile numbers; they must be pairs'),
        (lambda: ListedTiles(4, (1, 2, 3)), 'ListedTiles: 3 tile numbers; they must be pairs'),
        (lambda: ListedTiles(4, (1, -2)), 'ListedTiles: tile is -2'),
        (lambda: ListedTiles(4, (1, 2**20)), 'ListedTiles: tile 1048576; it must be below 8192'),
    ],
)
def test_sizes_that_make_no_sense_are_named(make: Callable[[], Pattern], message: str):
    with pytest.raises(InputError, match=message):
        make()
