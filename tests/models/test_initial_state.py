"""Tests a decoder's first states: the encoder's after the last real token, or after the first one if it reads
backward.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from efficient_attention.config.model import ModelConfig
from efficient_attention.models.encoder_decoder import EncoderDecoder
from efficient_attention.modules.layer_context import EncodedSource
from tests.models.drawn import drawn
from tests.tolerances import assert_close

FIELDS: dict[str, Any] = {
    'width': 8, 'heads': 1, 'feed_forward': False, 'vocab_size': 12, 'token_types': 0, 'layers': 2,
    'decoder_layers': 2, 'norm': 'none', 'residual': False, 'positions': 'none', 'embedding_norm': False,
    'dropout_rate': 0.0, 'source_reading': 'state',
}  # fmt: skip
SOURCE = np.int32([[3, 4, 5, 6, 7], [8, 9, 10, 0, 0]])
SEGMENTS = (np.arange(5)[None] < np.asarray([[5], [3]])).astype(np.int32)
TARGET = np.int32([[1, 2, 3], [1, 2, 3]])


def make(**fields: Any) -> EncoderDecoder:
    config = ModelConfig(**FIELDS | fields)
    return nnx.merge(*drawn(lambda: EncoderDecoder(config, rngs=nnx.Rngs(0)), std=0.6))


@pytest.mark.parametrize('cell', ['lstm', 'sru2'])
def test_copied_states_are_those_after_the_last_real_token(cell: str):
    """The second row's states equal the states of its source without padding."""
    model = make(cell=cell, initial_state='copy')
    first, alone = (
        encode(model, source, segments).first_BNU
        for source, segments in ((SOURCE, SEGMENTS), (SOURCE[1:, :3], SEGMENTS[1:, :3]))
    )
    assert_close(tuple(np.asarray(x)[1:] for x in first), alone)
    assert len(first) == {'lstm': 2, 'sru2': 1}[cell] and first[0].shape == (2, 2, 8)


encode = nnx.jit(EncoderDecoder.encode)


def with_another(place: tuple[int, int], word: int) -> np.ndarray:
    """Returns the sources with another word in one place."""
    changed = SOURCE.copy()
    changed[place] = word
    return changed


def test_a_map_reads_the_states_of_all_directions_or_of_the_backward_one_alone():
    both = nnx.jit(
        lambda model, *read: (model.encoder.with_recurrent_states(*read)[1], model.encode(*read).first_BNU[0])
    )
    for form, read in {'map': (0, 1), 'map_backward': (1,)}.items():
        model = make(cell='gru', bidirectional=True, initial_state=form, state_width=8)
        last, found = jax.device_get(both(model, SOURCE, SEGMENTS))
        joined = np.concatenate([last.vectors_BNU[one][0] for one in read], axis=-1)
        kernel = np.asarray(model.initial.kernel[...])[0]
        expected = np.tanh(np.stack([joined[:, layer] @ kernel[layer] for layer in range(2)], axis=1))
        assert_close(found, expected)
    # The backward direction has read all at the first token: another last word changes its state.
    changed, _ = jax.device_get(both(model, with_another((0, 4), 1), SEGMENTS))
    assert np.abs(changed.vectors_BNU[1][0][0] - last.vectors_BNU[1][0][0]).max() > 1e-3


@nnx.jit
def hidden_of(model: EncoderDecoder, other: EncodedSource) -> jax.Array:
    return model.decoder.hidden(jnp.asarray(TARGET), jnp.ones_like(TARGET), other=other)


def test_without_attention_the_logits_depend_on_the_source_through_the_states_alone():
    model = make(cell='gru', initial_state='copy')
    others = [encode(model, source, SEGMENTS) for source in (SOURCE, with_another((0, 0), 11))]
    blind = others[0]._replace(states_BMD=np.full_like(others[0].states_BMD, np.nan))
    hidden, changed, of_blind = (np.asarray(hidden_of(model, one)) for one in (*others, blind))
    assert_close(of_blind, hidden)
    assert not any('attention' in str(path) for path, _ in jax.tree.leaves_with_path(nnx.state(model, nnx.Param)))
    assert np.abs(changed[0] - hidden[0]).max() > 1e-3 and (changed[1] == hidden[1]).all()


def test_layers_that_read_the_source_may_begin_with_its_states():
    """Only the encoder's state changes the first target's logits here, as cross-attention reads nothing."""
    model = make(cell='gru', initial_state='copy', source_reading='layers', residual=True)
    other = encode(model, SOURCE, SEGMENTS)
    hidden, without = (np.asarray(hidden_of(model, one)) for one in (other, other._replace(first_BNU=None)))
    assert np.abs(hidden - without).max() > 1e-3
