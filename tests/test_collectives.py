"""Tests which collectives `forbidden` reports: of each kind, by the size of its arrays and its mesh axes."""

import math

import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from efficient_attention.config.mesh import MeshConfig
from efficient_attention.config.model import ModelConfig
from efficient_attention.models.pretraining import PretrainingModel
from efficient_attention.models.sharding import make_mesh
from tests.collectives import INVOLUNTARY, Sizes, compiling_anew, forbidden, named

MODEL = ModelConfig(width=24, heads=4, head_width=8, feed_forward_width=56, vocab_size=72, layers=2, max_length=20)
PARAMS = nnx.to_pure_dict(nnx.state(nnx.eval_shape(lambda: PretrainingModel(MODEL, has_pairs=True, rngs=nnx.Rngs(0)))))


def test_what_is_refused_is_found(capfd):
    """The program splits an array by its last axis and then by two others, for which the partitioner has to gather
    it.
    """
    mesh = make_mesh(MeshConfig(data=2, fsdp=4))

    def program(x: jax.Array) -> jax.Array:
        x = jax.lax.with_sharding_constraint(x, NamedSharding(mesh, PartitionSpec(None, None, ('data', 'fsdp'))))
        return jax.lax.with_sharding_constraint(jnp.sin(x), NamedSharding(mesh, PartitionSpec('fsdp', 'data')))

    with compiling_anew():
        text = jax.jit(program).lower(jnp.ones((8, 8, 8))).compile().as_text()
    assert INVOLUNTARY in capfd.readouterr().err
    assert [results for _, results in refused(text, mesh)] == [[(8, 8, 8)]]


# Each case: a collective's results on 2 x 2 x 2 devices, its groups, and the axes on which it is refused ('' = none).
PREDICTED = 2, 8, 24  # of 8 batch rows on a mesh of data 2 x fsdp 2
SHARE = math.prod(PREDICTED)  # larger than an activation of 6 of a row's 12 tokens, on a sequence axis of 2
DATA, FSDP, SEQUENCE = (
    'replica_groups=' + groups for groups in ('[4,2]<=[2,4]T(1,0)', '[4,2]<=[2,2,2]T(0,2,1)', '[4,2]<=[8]')
)
RING = 'source_target_pairs={{0,1},{1,0},{2,3},{3,2},{4,5},{5,4},{6,7},{7,6}}'


@pytest.mark.parametrize(
    'results, kind, groups, axes',
    [
        ('f32[2,24,56]', 'all-gather', FSDP, 'fsdp'),  # the parameters of two layers
        ('f32[1,24,56]', 'all-gather', FSDP, ''),
        ('(' + ', '.join(['f32[1,24,56]'] * 9) + ')', 'all-gather', FSDP, 'fsdp'),
        ('f32[2,12,24]', 'all-gather', SEQUENCE, 'sequence'),  # activations of whole rows
        ('s32[2,12]', 'all-gather', SEQUENCE, ''),
        ('f32[2,8,24]', 'all-gather', SEQUENCE, ''),  # gradients of the predicted tokens
        ('f32[2,8,24]', 'all-gather', FSDP, 'fsdp'),
        ('f32[2,12,24]', 'all-reduce', SEQUENCE, 'sequence'),
        ('f32[2,8,24]', 'all-reduce', SEQUENCE, ''),  # vectors of the predicted tokens
        ('f32[2,6,24]', 'all-reduce', FSDP, 'fsdp'),  # sums over a part of the model's width
        ('f32[2,6,24]', 'all-reduce', DATA, 'data'),
        ('f32[24,56]', 'all-reduce', DATA, ''),  # a gradient
        ('(f32[2,3,24], f32[2,3,24])', 'all-to-all', FSDP, ''),
        ('(f32[2,6,24], f32[2,6,24])', 'all-to-all', FSDP, 'fsdp'),
        ('f32[2,6,4,6]', 'collective-permute', RING, ''),  # keys or values
        ('f32[2,12,4,6]', 'collective-permute', RING, 'sequence'),
    ],
)
def test_what_is_refused_is_told_by_its_size_and_its_axes(results: str, kind: str, groups: str, axes: str):
    text = f"""ENTRY %main (x: f32[2]) -> {results} {{
  %x = f32[2] parameter(0)
  ROOT %result = {results} {kind}(%x), {groups}
}}"""
    assert [found for found, _ in refused(text, make_mesh(MeshConfig(data=2, fsdp=2, sequence=2)))] == [axes] * bool(
        axes
    )


def refused(text: str, mesh: Mesh) -> list[tuple[str, list[tuple[int, ...]]]]:
    """Returns axes and shapes of the forbidden collectives in a program of this model."""
    found = forbidden(text, PARAMS, mesh, Sizes(SHARE, predicted=PREDICTED))
    return [named(one)[1:] for one in found]
