"""Tests that random draws of mechanisms stay the same for a number of steps and then change."""

import jax

from efficient_attention.models.encoder import redraw_key

RNG = jax.random.key(0)


def test_redraw_changes_the_key_every_so_many_steps():
    draw = jax.jit(lambda step: redraw_key(RNG, step, 10))
    first, same, later = (jax.random.key_data(draw(step)) for step in (0, 9, 10))
    assert (first == same).all() and (first != later).any()
    for step in (0, 1000):
        assert (jax.random.key_data(redraw_key(RNG, step, 0)) == first).all()
