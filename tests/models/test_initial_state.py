"""The first states of a decoder: the encoder's after the last real token, of the backward direction after the first."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from efficient_attention.config.model import ModelConfig
from efficient_attention.models.encoder_decoder import EncoderDecoder
from tests.models.drawn import drawn
from tests.tolerances import assert_close

FIELDS: dict[str, Any] = {
    'width': 8, 'heads': 1, 'feed_forward': False, 'vocab_size': 12, 'token_types': 0, 'layers': 2,
    'decoder_layers': 2, 'norm': 'none', 'residual': False, 'positions': 'none', 'embedding_norm': False,
    'dropout_rate': 0.0, 'source_reading': 'state',
}  # fmt: skip
SOURCE = jnp.asarray([[3, 4, 5, 6, 7], [8, 9, 10, 0, 0]])
SEGMENTS = (jnp.arange(5)[None] < jnp.asarray([[5], [3]])).astype(jnp.int32)
TARGET = jnp.asarray([[1, 2, 3], [1, 2, 3]])


def make(**fields: Any) -> EncoderDecoder:
    config = ModelConfig(**FIELDS | fields)
    return nnx.merge(*drawn(lambda: EncoderDecoder(config, rngs=nnx.Rngs(0)), std=0.6))


@pytest.mark.parametrize('cell', ['lstm', 'sru2'])
def test_copied_states_are_those_after_the_last_real_token(cell: str):
    """The second row's source read alone, without padding, and an encoder that goes on is one whose state is given."""
    model = make(cell=cell, initial_state='copy')
    first = jax.jit(lambda: model.encode(SOURCE, SEGMENTS).first_BNU)()
    alone = jax.jit(lambda: model.encode(SOURCE[1:, :3], SEGMENTS[1:, :3]).first_BNU)()
    assert_close(tuple(x[1:] for x in first), alone)
    assert len(first) == {'lstm': 2, 'sru2': 1}[cell] and first[0].shape == (2, 2, 8)


def test_a_map_reads_the_states_of_all_directions_or_of_the_backward_one_alone():
    for form, read in {'map': (0, 1), 'map_backward': (1,)}.items():
        model = make(cell='gru', bidirectional=True, initial_state=form, state_width=8)
        _, last = model.encoder.with_states(SOURCE, SEGMENTS)
        joined = np.concatenate([np.asarray(last.vectors_BNU[one][0]) for one in read], axis=-1)
        kernel = np.asarray(model.initial.kernel[0])
        expected = np.tanh(np.stack([joined[:, layer] @ kernel[layer] for layer in range(2)], axis=1))
        assert_close(model.encode(SOURCE, SEGMENTS).first_BNU[0], expected)
    # At the first token the backward direction has read all: another last word changes it, another order too.
    _, changed = model.encoder.with_states(SOURCE.at[0, 4].set(1), SEGMENTS)
    assert jnp.abs(changed.vectors_BNU[1][0][0] - last.vectors_BNU[1][0][0]).max() > 1e-3


def test_without_attention_the_logits_depend_on_the_source_through_the_states_alone():
    model = make(cell='gru', initial_state='copy')
    other = model.encode(SOURCE, SEGMENTS)
    hidden = model.decoder.hidden(TARGET, jnp.ones_like(TARGET), other=other)
    blind = other._replace(states_BMD=jnp.full_like(other.states_BMD, jnp.nan))
    assert_close(model.decoder.hidden(TARGET, jnp.ones_like(TARGET), other=blind), hidden)
    assert not any('attention' in str(path) for path, _ in jax.tree.leaves_with_path(nnx.state(model, nnx.Param)))
    first = model.encode(SOURCE.at[0, 0].set(11), SEGMENTS)
    changed = model.decoder.hidden(TARGET, jnp.ones_like(TARGET), other=first)
    assert jnp.abs(changed[0] - hidden[0]).max() > 1e-3 and (changed[1] == hidden[1]).all()


def test_layers_that_read_the_source_may_begin_with_its_states():
    """The first target's logits, of which cross-attention reads nothing here, come from the encoder's state."""
    model = make(cell='gru', initial_state='copy', source_reading='layers', residual=True)
    other = model.encode(SOURCE, SEGMENTS)
    zeros = other._replace(first_BNU=None)
    hidden, without = (model.decoder.hidden(TARGET, jnp.ones_like(TARGET), other=one) for one in (other, zeros))
    assert jnp.abs(hidden - without).max() > 1e-3
