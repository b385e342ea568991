"""Tests that the lists of tiles of the backend `mosaic` have each allowed pair once, and that segments shorten them."""

import jax.numpy as jnp
import numpy as np
import pytest

from efficient_attention.attention.block_sparse.lists import (
    StaticLists,
    TileLists,
    TileSizes,
    choose_lists,
    looked_up_patterns,
    make_lists,
)
from efficient_attention.attention.parsing import parse_pattern
from efficient_attention.attention.patterns import Pattern, dense_mask
from efficient_attention.attention.request import QueryKeyPair

LENGTH, PADDED = 300, 384
BY_QUERY, BY_KEY = TileSizes(128, 64), TileSizes(64, 128, by_key=True)
TEXTS = ['causal', 'window(20)', 'longformer(30)', 'bigbird(64, 1)', 'bigbird(48, 1)', 'full - full', 'prefix(100)']


def lists_of(text: str, sizes: TileSizes, heads: int = 1, group: int = 1) -> tuple[StaticLists, list[Pattern]]:
    """Returns the lists of a pattern for the positions 0, 1, ..., and the pattern of each head."""
    pattern = parse_pattern(text).for_key_count(LENGTH)
    patterns = [pattern.for_head(head, heads) for head in range(heads)]
    positions = np.arange(LENGTH, dtype=np.int32).tobytes()
    return make_lists((tuple(patterns),), (positions, positions), 1, sizes, group), patterns


def listed_pairs(lists: TileLists, static: StaticLists, sizes: TileSizes, row: int = 0, head: int = 0) -> np.ndarray:
    """Returns for each pair how often its tile is visited, plus 10 if the tile is whole, plus 100 if the first word has
    the pair's bit; int [queries, keys].
    """
    found = np.zeros((PADDED, PADDED), int)
    for tile, start, whole, count in np.asarray(lists.programs_bPT4)[row, head]:
        for number in range(count):
            visited = int(np.asarray(lists.tiles_bPE)[row, head, start + number]) % static.visited
            query, key = (visited, tile) if sizes.by_key else (tile, visited)
            part = found[query * sizes.queries :][: sizes.queries, key * sizes.keys :][:, : sizes.keys]
            part += 1 + 10 * (number < whole)
            for words in lists.words_WbPE[:1]:
                word = int(np.asarray(words)[row, head, start + number]) & 0xFFFFFFFF
                bits = (word >> np.arange(part.size // static.block**2)) & 1
                by_block = bits.reshape(sizes.queries // static.block, sizes.keys // static.block)
                part += 100 * np.kron(by_block, np.ones((static.block, static.block), int))
    return found[:LENGTH, :LENGTH]


@pytest.mark.parametrize('sizes', [BY_QUERY, BY_KEY])
@pytest.mark.parametrize('text', TEXTS)
def test_lists_have_all_allowed_pairs(text: str, sizes: TileSizes):
    lists, (pattern,) = lists_of(text, sizes)
    assert np.diff(lists.programs_NPT4[0, 0, :, 3]).max() <= 0, 'the longest list comes first'
    assert sorted(lists.programs_NPT4[0, 0, :, 0]) == [0, 1, 2]
    found = listed_pairs(choose_lists(lists, None, None, sizes), lists, sizes)
    allowed = dense_mask(pattern, LENGTH, LENGTH)
    assert (found % 10 <= 1).all() and (found[allowed] % 10 == 1).all()
    assert allowed[found // 10 % 10 == 1].all()
    for leaf in looked_up_patterns(pattern)[:1]:
        np.testing.assert_array_equal(found // 100 == 1, dense_mask(leaf, LENGTH, LENGTH) & (found > 0))


def test_keys_beyond_the_last_one_need_a_mask():
    """Only the key tiles that end at 300 keys or less are whole."""
    for sizes in (BY_QUERY, BY_KEY):
        lists, _ = lists_of('full', sizes)
        found = listed_pairs(choose_lists(lists, None, None, sizes), lists, sizes)
        assert (found == np.where(np.arange(LENGTH) < LENGTH // sizes.keys * sizes.keys, 11, 1)).all()


def test_key_tiles_list_the_queries_of_all_heads_that_share_them():
    lists, patterns = lists_of('random_tiles(1, 64)', BY_KEY, heads=4, group=2)
    assert lists.programs_NPT4.shape == (1, 2, 3, 4) and lists.visited == PADDED // 64
    for head, pattern in enumerate(patterns):
        shared = head // 2
        expected = dense_mask(pattern, LENGTH, LENGTH).reshape(LENGTH, LENGTH)
        for tile, start, _, count in lists.programs_NPT4[0, shared]:
            entries = lists.tiles_NPE[0, shared, start : start + count]
            own = entries[entries // lists.visited == head % 2] % lists.visited
            keys = expected[:, tile * 128 : (tile + 1) * 128]
            assert sorted(own) == [n for n in range(lists.visited) if keys[n * 64 : (n + 1) * 64].any()]


@pytest.mark.parametrize('sizes', [BY_QUERY, BY_KEY])
def test_segments_shorten_the_lists(sizes: TileSizes):
    """The first row has two texts that meet inside a tile, and padding; the second row one text."""
    lists, _ = lists_of('full', sizes)
    queries = np.full((2, PADDED), -1, np.int32)
    queries[0, :140], queries[0, 140:200], queries[1, :300] = 1, 2, 7
    keys = np.where(queries < 0, 0, queries)
    pair = QueryKeyPair(jnp.asarray(queries), jnp.asarray(keys))
    chosen = choose_lists(lists, None, pair, sizes)
    for row in range(2):
        found = listed_pairs(chosen, lists, sizes, row)
        allowed = queries[row, :LENGTH, None] == keys[row, None, :LENGTH]
        assert (found[allowed] % 10 == 1).all() and (found <= 11).all() and allowed[found > 10].all()
    visits = np.asarray(chosen.programs_bPT4)[..., 3].sum(axis=(1, 2))
    assert visits[0] < visits[1] == lists.programs_NPT4[..., 3].sum()
    assert listed_pairs(chosen, lists, sizes, 0).max() == 11, 'a tile of one text stays whole'


def test_layers_are_chosen_while_the_program_runs():
    positions = np.arange(LENGTH, dtype=np.int32).tobytes()
    pattern = parse_pattern('random_tiles(1, 64)').for_key_count(LENGTH)
    by_layer = tuple((pattern.for_layer(layer),) for layer in range(2))
    both = make_lists(by_layer, (positions, positions), 1, BY_QUERY, 1)
    for layer in range(2):
        alone = make_lists(by_layer[layer : layer + 1], (positions, positions), 1, BY_QUERY, 1)
        found, expected = (
            listed_pairs(choose_lists(lists, index, None, BY_QUERY), lists, BY_QUERY)
            for lists, index in ((both, jnp.int32(layer)), (alone, None))
        )
        np.testing.assert_array_equal(found, expected)


def test_positions_that_are_not_known_keep_all_tiles():
    lists = make_lists(((parse_pattern('causal'),),), (LENGTH, LENGTH), 1, BY_QUERY, 1)
    assert (listed_pairs(choose_lists(lists, None, None, BY_QUERY), lists, BY_QUERY) == 1).all()
