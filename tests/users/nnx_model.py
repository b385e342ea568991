"""A user's program: a small language model in Flax NNX with `attend`, trained on one batch.

`make lint` checks its types, and tests/test_wheel.py runs it with only the core dependencies.
"""

import jax
import jax.numpy as jnp
from flax import nnx

import efficient_attention as ea


class Layer(nnx.Module):
    def __init__(self, width: int, heads: int, *, rngs: nnx.Rngs) -> None:
        shape = heads, width // heads
        self.query, self.key, self.value = (nnx.LinearGeneral(width, shape, rngs=rngs) for _ in range(3))
        self.out = nnx.LinearGeneral(shape, width, axis=(-2, -1), rngs=rngs)
        self.mechanism = ea.Softmax(ea.Causal() & ea.Window(8))

    def __call__(self, x: jax.Array) -> jax.Array:
        return x + self.out(ea.attend(self.query(x), self.key(x), self.value(x), self.mechanism))


class Model(nnx.Module):
    def __init__(self, *, rngs: nnx.Rngs) -> None:
        self.table = nnx.Embed(10, 16, rngs=rngs)
        self.layers = nnx.List([Layer(16, 2, rngs=rngs) for _ in range(2)])

    def __call__(self, tokens: jax.Array) -> jax.Array:
        x = self.table(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.table.attend(x)


def loss_of(model: Model, tokens: jax.Array) -> jax.Array:
    logits = jax.nn.log_softmax(model(tokens[:, :-1]))
    return -jnp.take_along_axis(logits, tokens[:, 1:, None], -1).mean()


@nnx.jit
def step(model: Model, tokens: jax.Array) -> jax.Array:
    loss, gradients = nnx.value_and_grad(loss_of)(model, tokens)
    nnx.update(model, jax.tree.map(lambda p, g: p - 0.1 * g, nnx.state(model, nnx.Param), gradients))
    return loss


model, tokens = Model(rngs=nnx.Rngs(0)), jnp.arange(40).reshape(2, 20) % 10
losses = [float(step(model, tokens)) for _ in range(10)]
assert losses[-1] < 0.9 * losses[0], losses
