"""Tests the data of attention pages, their size and their safety, without a browser, and drawings of one head."""

import base64
import hashlib
import re
import time
import xml.etree.ElementTree as ET

import numpy as np
import pytest

import efficient_attention as ea
from efficient_attention.errors import InputError
from efficient_attention.inspection.attention_figure import attention_figure
from efficient_attention.inspection.attention_page import attention_page, attention_page_of_windows
from tests.inspection.made_attention import SPECIAL_TEXTS, SPECIAL_TOKENS, made_layers, made_weights, read_page

TOKENS = [f'word{number}' for number in range(6)]


# ---- what a page holds ----


@pytest.mark.parametrize('as_layers', [lambda x: x, list, iter, lambda x: [{'weights': one} for one in x]])
def test_a_page_has_each_weight_to_a_255th(as_layers):
    weights = made_weights(2, 3, 6, 6, is_causal=True)
    found = read_page(ea.attention_page(TOKENS, as_layers(weights)))
    for layer, head in np.ndindex(2, 3):
        decoded = found.head(layer, head)
        np.testing.assert_allclose(decoded, weights[layer, head], atol=1.01 / 255)
        np.testing.assert_array_equal(decoded == 0, weights[layer, head] == 0)
        assert found.content['windows'][0]['layers'][layer]['heads'][head]['share'] == 1.0


def test_negative_weights_keep_their_signs():
    weights = made_weights(1, 2, 6, 40) * np.where(np.arange(40) % 3, 1, -1).astype(np.float32)
    weights[0, 1, :, 4:] = 0.0  # so few edges that they are stored one by one
    found = read_page(attention_page(TOKENS, weights, key_tokens=[str(key) for key in range(40)]))
    for head in range(2):
        np.testing.assert_array_equal(np.sign(found.head(0, head)), np.sign(weights[0, head]))
        np.testing.assert_allclose(found.head(0, head), weights[0, head], atol=1.01 / 255)


def test_a_page_has_every_edge_of_128_tokens():
    weights = made_weights(2, 12, 128, 128)
    found = read_page(attention_page(['a'] * 128, weights))
    assert all((found.head(layer, head) > 0).all() for layer, head in np.ndindex(2, 12))


def test_a_layer_of_the_pipeline_keeps_queries_keys_scale_and_norms():
    layers = made_layers(1, 2, 6, 8)
    window = {'tokens': TOKENS, 'key_tokens': ['x', 'y', *TOKENS], 'texts': [0] * 6, 'layers': iter(layers)}
    found = read_page(attention_page_of_windows(window))
    record = found.content['windows'][0]
    assert (record['memory'], record['keys'][:2], record['layers'][0]['scale']) == (2, ['x', 'y'], 0.5)
    head = record['layers'][0]['heads'][1]
    for (offset, top), name, count in zip(
        np.reshape(head['neurons'], (2, 2)), ('queries', 'keys'), (6, 8), strict=True
    ):
        levels = found.array(int(offset), count * head['width'], 'i2').reshape(count, -1)
        np.testing.assert_allclose(levels * top / 32767, layers[0][name][1], atol=1e-4)
    norms, most, sums, largest = head['norms']
    np.testing.assert_allclose(most * (found.array(norms, 8) / 255) ** 2, layers[0]['value_norms'][1], atol=0.02)
    expected = (layers[0]['weights'] @ layers[0]['value_norms'][..., None])[1, :, 0]
    np.testing.assert_allclose(largest * (found.array(sums, 6) / 255) ** 2, expected, atol=0.02)


def test_missing_arrays_of_a_layer_are_left_out():
    layer = made_layers(1, 2, 6, 6)[0] | {'queries': None, 'keys': None, 'scale': None, 'value_norms': None}
    found = read_page(attention_page(TOKENS, [layer])).content['windows'][0]['layers'][0]
    assert found['scale'] is None and not {'neurons', 'norms'} & {*found['heads'][0]}


def test_the_rounds_of_lsh_are_in_the_page():
    layer = made_layers(1, 2, 6, 6)[0]
    buckets, chunks = np.random.default_rng(0).integers(0, 3, (2, 2, 4, 6))
    rounds = {'buckets': buckets, 'chunks': chunks, 'chunk_count': 3}
    found = read_page(attention_page(TOKENS, [layer | {'hash_rounds': rounds}]))
    record = found.content['windows'][0]['layers'][0]
    *offsets, count = record['heads'][1]['rounds']
    assert (record['chunks'], count) == (3, 4)
    for offset, expected in zip(offsets, (buckets, chunks), strict=True):
        np.testing.assert_array_equal(found.array(offset, 24, 'u2').reshape(4, 6), expected[1])
    with pytest.raises(
        InputError, match=r'^layer 0: the shape of chunks is \(1, 4, 6\); it must be \[H, T, L\], L = M$'
    ):
        attention_page(TOKENS, [layer | {'hash_rounds': rounds | {'chunks': chunks[:1]}}])


def test_an_estimate_is_beside_the_softmax():
    layer = made_layers(1, 2, 6, 6)[0] | {'scale': None}
    softmax, errors = made_weights(2, 6, 6), np.float32([0.25, 0.5])
    found = read_page(attention_page(TOKENS, [layer | {'softmax_weights': softmax, 'softmax_errors': errors}]))
    estimate, exact = found.content['windows'][0]['layers']
    assert (estimate['layer'], exact['layer'], exact['scale']) == (0, '0 softmax', 0.5)
    assert [head['error'] for head in estimate['heads']] == [0.25, 0.5] and 'error' not in exact['heads'][0]
    np.testing.assert_allclose(found.head(0, 1), layer['weights'][1], atol=1.01 / 255)
    np.testing.assert_allclose(found.head(1, 1), softmax[1], atol=1.01 / 255)
    assert 'neurons' not in estimate['heads'][0] and 'neurons' in exact['heads'][0]


def test_several_windows_share_a_page():
    windows = [
        {'tokens': TOKENS[:size], 'key_tokens': TOKENS[:size], 'texts': None, 'layers': made_layers(1, 2, size, size)}
        for size in (4, 6)
    ]
    found = read_page(attention_page_of_windows(windows, notes=['A <note>.']))
    assert [len(one['tokens']) for one in found.content['windows']] == [4, 6]
    assert found.content['notes'] == ['A <note>.', 'The text is read in 2 windows; choose one below.']
    np.testing.assert_allclose(found.head(0, 1, window=1), windows[1]['layers'][0]['weights'][1], atol=1.01 / 255)


# ---- safety ----


def test_a_token_never_becomes_markup_and_nothing_may_be_requested():
    tokens = [*SPECIAL_TOKENS[:-2], '<!--<script>', '\ud800']
    page = attention_page(tokens, made_weights(1, 1, 12, 12), texts=SPECIAL_TEXTS, title='<b>&</b>')
    assert page.count('</script>') == page.count('<script') == 3 and '<!--<' not in page and '<b>' not in page
    assert read_page(page).content['windows'][0]['tokens'] == tokens
    page.encode('utf-8')
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)[1]
    assert policy.startswith("default-src 'none'; ") and 'http' not in policy and 'unsafe' not in policy
    (script,) = re.findall(r'<script>(.*?)</script>', page, re.DOTALL)
    assert base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() in policy
    assert not re.findall(r'(?:src|href)="', page) and not re.findall(r'https?://(?!www\.w3\.org/2000/svg)', page)


def test_a_notebook_shows_the_page_in_a_frame():
    page = attention_page(TOKENS, made_weights(1, 1, 6, 6))
    frame = page._repr_html_()
    assert frame.startswith('<iframe srcdoc="&lt;!doctype html&gt;') and frame.count('"') == 6


# ---- the size ----


def banded_layers(layers: int, heads: int, length: int):
    """Yields layers in which each query reads the 64 nearest tokens."""
    for number in range(layers):
        weights = np.zeros((heads, length, length), np.float32)
        band = made_weights(heads, length, 64, seed=number)
        keys = np.clip(np.arange(length)[:, None] - 32, 0, length - 64) + np.arange(64)
        np.put_along_axis(weights, np.broadcast_to(keys, band.shape), band, axis=2)
        yield weights


def test_a_long_text_fits_and_the_page_says_which_share_it_has():
    began = time.perf_counter()
    layers = [*banded_layers(2, 3, 2048)]
    page = attention_page(['word'] * 2048, layers, megabytes=0.4)
    assert 0.3e6 < len(page.encode()) <= 0.4e6 and time.perf_counter() - began < 20
    found = read_page(page)
    for layer, head in np.ndindex(2, 3):
        record, decoded = found.content['windows'][0]['layers'][layer]['heads'][head], found.head(layer, head)
        weights, most = layers[layer][head], record['most']
        strongest = np.sort(weights, axis=1)[:, ::-1][:, :most]
        assert ((decoded > 0).sum(1) == most).all() and record['edges'] == most * 2048
        np.testing.assert_allclose(record['share'], strongest.sum() / weights.sum(), atol=1e-5)
        np.testing.assert_allclose(np.sort(decoded, axis=1)[:, ::-1][:, :most], strongest, atol=1.01 / 255)


def test_the_smallest_budget_is_named_and_works():
    weights = made_weights(2, 3, 300, 300)
    tokens = [f'word{number}' for number in range(300)]
    with pytest.raises(
        InputError, match='^megabytes is 0.05; a page with one edge for each .* needs at least'
    ) as caught:
        attention_page(tokens, weights, megabytes=0.05)
    assert '\n' not in str(caught.value)
    smallest = float(str(caught.value).rpartition(' ')[2])
    assert len(attention_page(tokens, weights, megabytes=smallest).encode()) <= smallest * 1e6
    with pytest.raises(InputError, match='needs at least'):
        attention_page(tokens, weights, megabytes=smallest - 0.01)


def test_queries_and_keys_are_left_out_if_they_do_not_fit():
    layers = made_layers(1, 4, 128, 128, width=256)
    page = attention_page(['a'] * 128, layers, megabytes=0.3)
    found = read_page(page)
    assert found.content['notes'] == [
        'Queries and keys are left out, because they do not fit in the size of this page.'
    ]
    assert (found.head(0, 0) > 0).all() and len(page) < 0.3e6


@pytest.mark.parametrize(
    'tokens, weights, options, line',
    [
        ([], np.zeros((1, 1, 0, 0)), {}, 'there are no tokens to show'),
        (TOKENS, np.zeros((0, 1, 6, 6)), {}, 'there is no layer to show'),
        (TOKENS, np.zeros((2, 6, 6)), {}, 'the weights are 2x6x6; give layers x heads x queries x keys, or a list'),
        (TOKENS, np.zeros((6, 6)), {}, 'layer 0: the weights are 6; they must be heads x 6 x 6'),
        (TOKENS, np.zeros((1, 1, 6, 7)), {}, 'layer 0: the weights are 1x6x7; they must be heads x 6 x 6'),
        (TOKENS, np.full((1, 1, 6, 6), np.nan), {}, 'layer 0: a weight of head 0 is not a finite number'),
        (TOKENS, np.ones((1, 1, 6, 6)), {'texts': [0]}, 'the number of texts is 1; it must be that of the tokens, 6'),
        (TOKENS, np.ones((1, 1, 6, 6)), {'image_shape': (2, 2)}, 'image_shape is (2, 2); it must be of the 6 keys'),
        (TOKENS, np.ones((1, 1, 6, 6)), {'megabytes': 0}, 'megabytes is 0; it must be a number above 0'),
        (TOKENS, [{'weights': np.ones((1, 6, 6)), 'value_norms': np.ones(6)}], {}, 'layer 0: value_norms must be'),
        ([1], np.ones((1, 1, 1, 1)), {}, 'a token is not a text'),
    ],
)
def test_bad_arrays_are_refused_in_one_line(tokens, weights, options, line):
    with pytest.raises(InputError) as caught:
        attention_page(tokens, weights, **options)
    assert str(caught.value).startswith(line) and '\n' not in str(caught.value)


# ---- drawings ----

SVG = '{http://www.w3.org/2000/svg}'


def test_a_drawing_has_a_line_for_each_key_that_is_read():
    weights_LM = made_weights(6, 8, is_causal=True)
    drawn = ET.fromstring(attention_figure(TOKENS, weights_LM, key_tokens=['x', 'y', *TOKENS], title='layer 0'))
    assert len(drawn.findall(f'{SVG}line')) == np.count_nonzero(weights_LM) < weights_LM.size
    texts = [one.text.strip('\u2068\u2069') for one in drawn.findall(f'{SVG}text')]
    assert texts == ['layer 0', *TOKENS, 'x', 'y', *TOKENS]
    heights = [float(one.get('y')) for one in drawn.findall(f'{SVG}text')]
    assert heights[1:7] == heights[9:]  # a token is beside itself
    few = ET.fromstring(attention_figure(TOKENS, weights_LM, key_tokens=['x', 'y', *TOKENS], most=2))
    assert len(few.findall(f'{SVG}line')) == 12


def test_a_drawing_holds_any_token():
    tokens = [*SPECIAL_TOKENS, '\x00\ud800&', ' ', '', 'long' * 20]
    drawn = ET.fromstring(attention_figure(tokens, np.eye(len(tokens)) - 0.5).encode())
    texts = [one.text.strip('\u2068\u2069') for one in drawn.findall(f'{SVG}text')][: len(tokens)]
    assert texts[4] == '</script><img_src=x_one…' and texts[-4:-1] == ['��&', '␣', '∅'] and len(texts[-1]) == 24
    colours = {one.get('stroke') for one in drawn.findall(f'{SVG}line')}
    assert len(colours) == 2  # that of negative weights, and the other


@pytest.mark.parametrize(
    'weights, line', [(np.zeros((2, 2)), 'the shape of the weights'), (np.full((6, 6), np.inf), 'a weight is not')]
)
def test_bad_arrays_are_not_drawn(weights, line):
    with pytest.raises(InputError, match=line):
        attention_figure(TOKENS, weights)
