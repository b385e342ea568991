"""Tests attention pages in a browser: each view draws the lines, heads and tokens that Python counts."""

import re
import time
import warnings
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import efficient_attention as ea
from efficient_attention.inspection.attention_page import attention_page, attention_page_of_windows
from tests.inference.test_generate import workdir_of
from tests.inspection.browser import Browser, open_browser
from tests.inspection.made_attention import SPECIAL_TEXTS, SPECIAL_TOKENS, made_layers, made_weights

pytestmark = pytest.mark.browser
TOKENS = [f'word{number}' for number in range(8)]


@pytest.fixture(scope='module')
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with open_browser(tmp_path_factory.mktemp('pages')) as browser:
        yield browser


@pytest.fixture
def browser(opened: Browser) -> Iterator[Browser]:
    """Yields the browser; after the test, nothing may have failed in the page or have been requested."""
    yield opened
    assert opened.console() == [] and opened.requests() == []


def numbers(text: str) -> dict[str, float]:
    """Returns the weights that the page names, by token."""
    return {name: float(value) for name, value in re.findall(r'“([^”]*)” (-?[\d.e-]+)', text)}


def test_each_view_draws_what_python_counts(browser: Browser):
    layers = made_layers(2, 4, 6, 8)
    browser.open(attention_page(TOKENS[2:], layers, key_tokens=TOKENS))
    assert browser.run('return Object.keys(VIEWS)') == ['model', 'head', 'matrix', 'neuron', 'text']
    assert browser.show('model')['heads'] == '8'
    assert browser.run("return document.querySelectorAll('.thumbnail canvas').length") == 8
    for layer, heads in ((0, [0]), (1, [3]), (1, [0, 1, 3])):
        edges = sum(np.count_nonzero(layers[layer]['weights'][head]) for head in heads)
        counts = {'lines': str(edges), 'heads': str(len(heads)), 'tokens': '6', 'keys': '8'}
        assert browser.show('head', layer=layer, heads=heads) == counts
    read = np.count_nonzero(layers[1]['weights'][3])
    counts = {'cells': str(read), 'unread': str(48 - read), 'heads': '1', 'tokens': '6', 'keys': '8'}
    assert browser.show('matrix') == counts and read < 48
    assert browser.show('neuron', query=2) == {'rows': '8', 'heads': '1', 'numbers': '4'}
    assert browser.show('text', heads=[3], query=0) == {
        'tokens': '8',
        'shaded': str(np.count_nonzero(layers[1]['weights'][3, 0])),
    }


def test_named_weights_are_those_of_the_arrays(browser: Browser):
    (layer,) = made_layers(1, 2, 8, 8)
    browser.open(attention_page(TOKENS, [layer]))
    browser.show('matrix', heads=[1])
    for query, key in ((5, 2), (7, 7), (0, 3)):
        browser.run(
            'const { margin: [left, top], cell } = VIEWS.matrix; const [query, key] = given;'
            'VIEWS.matrix.point(left + (key + 0.5) * cell, top + (query + 0.5) * cell);',
            query,
            key,
        )
        weight = layer['weights'][1, query, key]
        assert f'query {query} “word{query}” → key {key} “word{key}”' in browser.said()
        found = browser.said().split('weight ')[1]
        assert found == 'not read, exactly 0' if weight == 0 else abs(float(found) - weight) < 1 / 255
    browser.show('head', heads=[1])
    browser.run('const at = VIEWS.head.place(4); VIEWS.head.point(10, at, false);')
    found = numbers(browser.said())
    assert len(found) == 5  # the head is causal
    np.testing.assert_allclose([found[f'word{key}'] for key in range(5)], layer['weights'][1, 4, :5], atol=1 / 255)
    browser.run('VIEWS.head.point(1100, VIEWS.head.place(4), false);')
    readers = numbers(browser.said())
    np.testing.assert_allclose(
        [readers[f'word{query}'] for query in range(4, 8)], layer['weights'][1, 4:, 4], atol=1 / 255
    )


def test_the_neuron_view_multiplies_queries_and_keys(browser: Browser):
    (layer,) = made_layers(1, 1, 8, 8)
    browser.open(attention_page(TOKENS, [layer]))
    browser.show('neuron', query=3)
    browser.run('VIEWS.neuron.point(10, 74 + 5.5 * ROW);')
    logit = float(browser.said().rpartition('= ')[2])
    assert abs(logit - 0.5 * layer['queries'][0, 3] @ layer['keys'][0, 5]) < 0.01


def test_the_rounds_of_lsh_that_found_a_pair_are_named(browser: Browser):
    (layer,) = made_layers(1, 1, 8, 8)
    buckets = np.int32([[[0, 0, 0, 0, 1, 1, 1, 1], [0, 1, 0, 1, 0, 1, 0, 1]]])
    chunks = np.int32([[[0, 0, 1, 1, 2, 2, 3, 3], [0, 2, 0, 2, 1, 3, 1, 3]]])
    rounds = {'buckets': buckets, 'chunks': chunks, 'chunk_count': 4}
    browser.open(attention_page(TOKENS, [layer | {'hash_rounds': rounds}]))
    browser.show('matrix')
    for query, key, said in (
        (2, 0, 'same or next chunk in rounds 0, 1, same hash bucket in rounds 0, 1'),
        (6, 1, 'same or next chunk in no round, same hash bucket in no round'),
        (0, 6, 'same or next chunk in round 0, same hash bucket in round 1'),  # the first chunk follows the last
    ):
        assert browser.run('return pairText(oneHead(), ...given)', query, key).endswith(f'; {said}')


def test_an_estimate_of_softmax_says_its_error(browser: Browser):
    layer = made_layers(1, 1, 8, 8)[0]
    made = {'softmax_weights': made_weights(1, 8, 8), 'softmax_errors': np.float32([0.25])}
    browser.open(attention_page(TOKENS, [layer | made]))
    assert browser.show('model')['heads'] == '2'
    text = "return document.getElementById('share').textContent"
    browser.show('head')
    assert browser.run(text).endswith('Total variation distance from softmax, mean over queries, of head 0.0: 0.250.')
    browser.show('head', layer=1)
    assert browser.run(text) == 'All edges are in this page.'


def test_weights_by_the_length_of_values_add_up_to_one(browser: Browser):
    (layer,) = made_layers(1, 1, 8, 8)
    browser.open(attention_page(TOKENS, [layer]))
    browser.show('head', useNorms=True)
    found = browser.run('return [...chosenHeads()[0].keysOf(6)]')
    weights_M = layer['weights'][0, 6] * layer['value_norms'][0]
    np.testing.assert_allclose([weight for _, weight in found], weights_M[weights_M > 0] / weights_M.sum(), atol=0.03)


def test_texts_and_special_tokens_filter_the_lines(browser: Browser):
    weights = made_weights(1, 1, 12, 12)
    browser.open(attention_page(SPECIAL_TOKENS, weights, texts=SPECIAL_TEXTS))
    sizes = {text: SPECIAL_TEXTS.count(text) for text in (0, 1, None)}
    for pair, expected in (('00', sizes[0] ** 2), ('01', sizes[0] * sizes[1]), ('11', sizes[1] ** 2), ('all', 144)):
        assert browser.show('head', pair=pair)['lines'] == str(expected)
    assert browser.show('head', pair='all', hideSpecials=True)['lines'] == str((12 - sizes[None]) ** 2)


def test_tokens_stay_text(browser: Browser):
    browser.open(attention_page([*SPECIAL_TOKENS], made_weights(2, 2, 12, 12), title='<img src=x>'))
    for view in browser.run('return Object.keys(VIEWS)'):
        browser.show(view)
        ET.fromstring(browser.run('return VIEWS[given[0]].svg()', view))
    assert browser.run("return document.querySelectorAll('img').length") == 0
    texts = browser.run('return VIEWS.text.keys.map((span) => span.textContent)')
    assert texts == SPECIAL_TOKENS


def test_each_view_saves_a_drawing(browser: Browser):
    layers = made_layers(1, 2, 8, 8)
    browser.open(attention_page(TOKENS, layers, image_shape=(2, 4)))
    lines = int(browser.show('head', heads=[0, 1])['lines'])
    drawn = {}
    for view in browser.run('return Object.keys(VIEWS)'):
        browser.show(view)
        drawn[view] = ET.fromstring(browser.run('return VIEWS[given[0]].svg()', view))
    assert len(drawn['head'].findall('{http://www.w3.org/2000/svg}line')) == lines
    assert len(drawn['model'].findall('{http://www.w3.org/2000/svg}image')) == 2
    browser.run("show('head'); document.getElementById('save').click();")
    path, until = browser.folder / 'attention_head.svg', time.monotonic() + 10
    while not path.exists() and time.monotonic() < until:
        time.sleep(0.05)
    assert ET.fromstring(path.read_text(encoding='utf-8')).tag.endswith('svg')


def test_an_image_is_shaded_by_what_a_pixel_reads(browser: Browser):
    weights = made_weights(1, 1, 13, 13, is_causal=True)
    tokens, texts = ['[CLS]', *map(str, range(12))], [None, *[0] * 12]
    browser.open(attention_page(tokens, weights, texts=texts, image_shape=(3, 4)))
    assert browser.show('image', query=5) == {'pixels': '12', 'shaded': '5'}
    browser.run('VIEWS.image.point(VIEWS.image.cell * 1.5, VIEWS.image.cell * 1.5, true);')
    assert browser.run('return state.query') == 6


def test_the_last_byte_of_an_image_may_be_missing(browser: Browser):
    weights = made_weights(1, 1, 12, 12, is_causal=True)
    tokens = ['<start>', *map(str, range(11))]
    browser.open(attention_page(tokens, weights, texts=[None, *[0] * 11], image_shape=(3, 4)))
    assert browser.show('image', query=5) == {'pixels': '11', 'shaded': '5'}
    browser.run('VIEWS.image.point(VIEWS.image.cell * 3.5, VIEWS.image.cell * 2.5, true);')
    assert browser.run('return state.query') == 5


def test_windows_are_chosen_in_the_page(browser: Browser):
    windows = [
        {'tokens': TOKENS[:size], 'key_tokens': TOKENS[:size], 'texts': None, 'layers': made_layers(1, 1, size, size)}
        for size in (3, 8)
    ]
    browser.open(attention_page_of_windows(windows))
    assert browser.show('head')['tokens'] == '3'
    browser.run(
        "const box = document.getElementById('choose-window'); box.value = 1; box.dispatchEvent(new Event('change'));"
    )
    assert browser.show('head')['tokens'] == '8'


MECHANISMS: dict[str, dict[str, Any]] = {
    'causal': {},
    'patterns of heads': {'model.attention': 'per_head(causal & window(2), causal & strided(3))'},
    'favor': {'model.attention': 'favor(16, causal=True)'},
    'linear': {'model.attention': 'linear(causal=True)'},
    'lsh': {'model.attention': 'lsh(4, 2, causal=True)', 'model.shared_qk': True},
    'synthesizer': {'model.attention': "synthesizer('random', 32, pattern=causal)"},
    'sparsemax': {'model.attention': 'sparsemax(causal)'},
    'memory': {'model.relative': 'transformer_xl', 'model.positions': 'none', 'model.memory_length': 12},
}


@pytest.mark.lenient_promotion  # A built run has an optimizer; Optax mixes Python floats with int32.
@pytest.mark.parametrize('name', MECHANISMS)
def test_each_view_draws_what_each_mechanism_reads(browser: Browser, tmp_path: Path, name: str):
    fields = MECHANISMS[name] | {'model.attention_dropout_rate': 0.0}
    fields |= {'data.batches': 'streams'} if name == 'memory' else {}
    with warnings.catch_warnings():
        warnings.filterwarnings('ignore', 'a text is read in')
        windows = ea.pipeline('attention', workdir_of(tmp_path, **fields), length=12)('The old dog sleeps')
    browser.open(attention_page_of_windows(windows))
    browser.run('openWindow(given[0])', len(windows) - 1)
    window = windows[-1]
    shown = [
        layer[key] for layer in window['layers'] for key in ('weights', 'softmax_weights') if layer[key] is not None
    ]
    assert browser.show('model')['heads'] == str(sum(map(len, shown))) and len(shown) == (2 if name == 'favor' else 1)
    sizes = {'tokens': str(len(window['tokens'])), 'keys': str(len(window['key_tokens']))}
    assert (name == 'memory') == (sizes['tokens'] != sizes['keys'])
    for number, weights_HLM in enumerate(shown):
        edges = str(np.count_nonzero(weights_HLM))
        counts = {'lines': edges, 'heads': str(len(weights_HLM))} | sizes
        assert browser.show('head', layer=number, heads=[*range(len(weights_HLM))]) == counts
        for head, weights_LM in enumerate(weights_HLM):
            assert browser.show('matrix', heads=[head])['cells'] == str(np.count_nonzero(weights_LM))
            query = len(weights_LM) - 1
            assert browser.show('text', query=query)['shaded'] == str(np.count_nonzero(weights_LM[query]))
            found = dict(browser.run('return [...oneHead().keysOf(given[0])]', query))
            read = np.flatnonzero(weights_LM[query])
            assert sorted(found) == read.tolist()
            np.testing.assert_allclose([found[key] for key in read], weights_LM[query, read], atol=1 / 255)


@pytest.mark.parametrize('length', [1, 4096])
def test_short_and_long_texts_open_and_scroll(browser: Browser, length: int):
    weights = np.zeros((2, 6, length, length), np.float32)
    near = np.clip(np.arange(length)[:, None] + np.arange(-20, 20), 0, length - 1)
    np.put_along_axis(weights, np.broadcast_to(near, (2, 6, *near.shape)), made_weights(2, 6, *near.shape), axis=-1)
    page = attention_page([f'word{number}' for number in range(length)], weights, megabytes=5)
    began = time.monotonic()
    browser.open(page)
    for view in ('model', 'head', 'matrix', 'neuron', 'text'):
        browser.show(view)
    for view in ('head', 'matrix'):
        browser.show(view)
        for place in (0.25, 0.5, 0.75):
            browser.run(
                f'const {{ node }} = VIEWS.{view}.scroller; node.scrollTop = given[0] * node.scrollHeight;', place
            )
    assert time.monotonic() - began < 3
    assert len(page) <= 5e6


def test_the_page_works_from_the_keyboard(browser: Browser):
    browser.open(attention_page(TOKENS, made_layers(1, 2, 8, 8)))
    browser.show('head')
    browser.run("VIEWS.head.scroller.canvas.dispatchEvent(new KeyboardEvent('keydown', { key: 'ArrowDown' }));")
    assert browser.said().startswith('query 1 “word1”\nhead 0.0 reads:')
