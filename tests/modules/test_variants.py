"""Every module under jit, on a device, and under pmap, with chex variants: the same numbers as without."""

import chex
import jax
import jax.numpy as jnp
from absl.testing import parameterized
from flax import nnx

from efficient_attention.models.config import ModelConfig
from efficient_attention.models.embeddings import Embeddings
from efficient_attention.models.encoder import Encoder
from efficient_attention.models.heads import MaskedLMHead, PairHead, Pooler
from efficient_attention.models.stack import Stack
from efficient_attention.modules.attention import SelfAttention
from efficient_attention.modules.feed_forward import FeedForward
from efficient_attention.modules.layer import Layer
from tests.tolerances import assert_close

CONFIG = ModelConfig(width=16, heads=2, vocab_size=11, embedding_width=8, layers=2, max_length=6, rotary=True)
X = jax.random.normal(jax.random.key(0), (2, 6, 16))
TOKENS = jnp.arange(12).reshape(2, 6) % 11
SEGMENTS = jnp.asarray([[1, 1, 1, 2, 2, 0], [1, 1, 1, 1, 1, 1]])
POSITIONS = jnp.asarray([[0, 1, 2, 0, 1, 0], [0, 1, 2, 3, 4, 5]])

# name -> (module, its array arguments, whether it takes a key for dropout)
MODULES = {
    'attention': (SelfAttention, (X, SEGMENTS, POSITIONS), True),
    'feed_forward': (FeedForward, (X,), False),
    'layer': (Layer, (X, SEGMENTS, POSITIONS), True),
    'stack': (Stack, (X, SEGMENTS, POSITIONS), True),
    'embeddings': (Embeddings, (TOKENS, TOKENS % 2, POSITIONS), True),
    'pooler': (Pooler, (X,), False),
    'pair_head': (PairHead, (X[:, 0],), False),
}


class VariantsTest(chex.TestCase):
    """One case for each module and variant."""

    @chex.variants(with_jit=True, without_jit=True, with_device=True, with_pmap=True)
    @parameterized.named_parameters((name, name) for name in MODULES)
    def test_module(self, name: str) -> None:
        make, arguments, takes_key = MODULES[name]
        module = make(CONFIG, rngs=nnx.Rngs(0))
        graph, state = nnx.split(module)
        extra = (jax.random.key_data(jax.random.key(5)),) if takes_key else ()

        @self.variant
        def apply(state: nnx.State, *arguments: jax.Array) -> jax.Array:
            module = nnx.merge(graph, state)
            if not takes_key:
                return module(*arguments)
            *arrays, key = arguments
            return module(*arrays, rng=jax.random.wrap_key_data(key))

        expected = module(*arguments, rng=jax.random.key(5)) if takes_key else module(*arguments)
        assert_close(apply(state, *arguments, *extra), expected)

    @chex.variants(with_jit=True, without_jit=True, with_device=True, with_pmap=True)
    def test_encoder_with_its_masked_lm_head(self) -> None:
        encoder, head = Encoder(CONFIG, rngs=nnx.Rngs(0)), MaskedLMHead(CONFIG, rngs=nnx.Rngs(1))
        graph, state = nnx.split((encoder, head))

        @self.variant
        def apply(state: nnx.State, tokens: jax.Array, segments: jax.Array, positions: jax.Array) -> jax.Array:
            encoder, head = nnx.merge(graph, state)
            return head(encoder(tokens, segments, positions_BL=positions), encoder.embeddings.token)

        expected = head(encoder(TOKENS, SEGMENTS, positions_BL=POSITIONS), encoder.embeddings.token)
        assert_close(apply(state, TOKENS, SEGMENTS, POSITIONS), expected)
