"""Vectors, logits and cross-attention weights of every encoder-decoder against those of transformers, to 1e-4."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from efficient_attention.attention.attend import attention_weights
from efficient_attention.attention.parsing import parse_mechanism
from efficient_attention.inference.beam_search import Search
from efficient_attention.inference.transducer import Batching, Transducer
from efficient_attention.interop.pretrained import open_pretrained
from efficient_attention.models.encoder_decoder import EncoderDecoder
from tests.interop.folders import TEXT_TO_TEXT, TEXT_TO_TEXT_NAMES, text_to_text_arrays

TOLERANCE = 1e-4


def module(name: str) -> EncoderDecoder:
    """The model of a fixture; raises where the names of its parameters differ."""
    pretrained = open_pretrained(TEXT_TO_TEXT / name)
    params = pretrained.params()
    graph, state = nnx.split(nnx.eval_shape(lambda: EncoderDecoder(pretrained.model, rngs=nnx.Rngs(0))))
    assert jax.tree.structure(nnx.to_pure_dict(state)) == jax.tree.structure(params)
    return nnx.merge(graph, params)


@nnx.jit
def outputs(model: EncoderDecoder, batch: dict[str, jax.Array]) -> dict[str, Any]:
    """The encoder's vectors, the logits, and the weights [N, B, H, L, M] of the cross-attentions."""
    source_segments_BM, segments_BL = batch['attention_mask'], batch['decoder_attention_mask']
    other = model.encode(batch['input_ids'], source_segments_BM)
    hidden_BLD, taps = model.decoder.tapped(batch['decoder_input_ids'], segments_BL, other=other)
    operands = taps.attention['cross_attention']
    options = {'query_segments': segments_BL, 'key_segments': source_segments_BM}
    weights = [
        attention_weights(q_BLHK, k_BMHK, parse_mechanism('full'), **options)
        for q_BLHK, k_BMHK in zip(operands.query_BLHK, operands.key_BMHK, strict=True)
    ]
    return {'encoder': other.states_BMD, 'logits': model.logits(hidden_BLD), 'cross': jnp.stack(weights)}


@pytest.mark.parametrize('name', TEXT_TO_TEXT_NAMES)
def test_vectors_logits_and_cross_weights(name: str):
    arrays = text_to_text_arrays(name)
    batch = {own.removeprefix('input/'): jnp.asarray(arrays[own]) for own in arrays if own.startswith('input/')}
    ours = jax.tree.map(np.asarray, outputs(module(name), batch))
    is_source_BM, is_target_BL = batch['attention_mask'] == 1, batch['decoder_attention_mask'] == 1
    layers = sum(own.startswith('output/cross/') for own in arrays)
    theirs = np.stack([arrays[f'output/cross/{layer}'] for layer in range(layers)])
    assert ours['cross'].shape == theirs.shape
    pairs = [
        (ours['encoder'][is_source_BM], arrays['output/encoder'][is_source_BM]),
        (ours['logits'][is_target_BL], arrays['output/logits'][is_target_BL]),
        (ours['cross'].swapaxes(2, 3)[:, is_target_BL], theirs.swapaxes(2, 3)[:, is_target_BL]),
    ]
    for one, other in pairs:
        np.testing.assert_allclose(one, other, atol=TOLERANCE, rtol=TOLERANCE)
        assert other.std() > 0.02  # random parameters did not make it constant


# Of `generate` in scripts/peers/make_text_to_text_fixtures.py.
SEARCHES = {'greedy': {'beams': 1}, 'beam': {'beams': 4}}
GREEDY = ('t5_1', 'bart_2')  # of the others it is slow, and says little beside four beams


@pytest.mark.parametrize(
    ('name', 'kind'),
    [
        pytest.param(name, kind, marks=() if kind == 'beam' or name in GREEDY else pytest.mark.slow)
        for name in TEXT_TO_TEXT_NAMES
        for kind in SEARCHES
    ],
)
def test_tokens_of_generate(name: str, kind: str):
    arrays, values = text_to_text_arrays(name), open_pretrained(TEXT_TO_TEXT / name).generation
    end, start, most = values['eos_token_id'], values['decoder_start_token_id'], arrays[f'output/{kind}'].shape[1] - 1
    search = Search(**SEARCHES[kind], penalty='length', alpha=1.0, max_tokens=12, end=end)
    graph, params = nnx.split(module(name))
    sources = [
        row[mask == 1] for row, mask in zip(arrays['input/input_ids'], arrays['input/attention_mask'], strict=True)
    ]
    batching = Batching(rows=2, lengths=(len(sources[0]),), ratio=0.0, extra=12)
    found = Transducer(graph, params, search, prompt=[start], batching=batching)(sources)
    for targets, theirs in zip(found, arrays[f'output/{kind}'].tolist(), strict=True):
        made = theirs[1:] if end not in theirs[1:] else theirs[1 : theirs.index(end, 1)]
        assert made and len(made) <= most and targets[0].ids.tolist() == made
