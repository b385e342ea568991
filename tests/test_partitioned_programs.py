"""What a training step of each kind of mesh gathers and keeps, read from its compiled program, and that it is right.

Every kind of mesh gives the loss and the gradients of one device. No program gathers activations, or more than one
layer's parameters at once, and the partitioner finds a way between all layouts.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from efficient_attention.attention.device_mesh import using_mesh
from efficient_attention.config.mesh import MeshConfig
from efficient_attention.config.model import ModelConfig
from efficient_attention.models.decoder import Decoder
from efficient_attention.models.pretraining import PretrainingModel
from efficient_attention.models.sharding import abstract_arrays, batch_sharding, make_mesh, state_shardings
from efficient_attention.models.sizes import bert_fields
from efficient_attention.objectives.language_modelling import LanguageModelling
from efficient_attention.objectives.objective import Objective
from efficient_attention.objectives.pretraining import Pretraining
from efficient_attention.training.state import initial_state
from efficient_attention.training.step import KeyedRows, accumulate, row_keys
from tests.collectives import INVOLUNTARY, Result, compiling_anew, forbidden_gathers, results_of
from tests.tolerances import assert_close
from tests.training.tiny_batch import random_batch

ROWS, LENGTH = 8, 12
# No size of an activation is that of a parameter.
ENCODER = ModelConfig(
    width=24,
    heads=4,
    head_width=8,
    feed_forward_width=56,
    vocab_size=72,
    layers=2,
    max_length=20,
    dropout_rate=0.3,
    attention_dropout_rate=0.3,
)
DECODER = dataclasses.replace(
    ENCODER, norm='pre', token_types=0, positions='none', attention='causal', attention_dropout_rate=0.0
)
MODELS = {
    'scan': ENCODER,
    'unrolled': dataclasses.replace(ENCODER, scan_unroll=2),
    'shared': dataclasses.replace(ENCODER, sharing='all', embedding_width=16, remat='dots'),
    'tiles': dataclasses.replace(ENCODER, attention='window(4) | global_tokens(2)', attention_backend='blocked'),
    'reformer': dataclasses.replace(
        DECODER,
        attention='lsh(4, 2, causal=True)',
        shared_qk=True,
        stack='reversible',
        feed_forward_chunk=6,
        loss_chunk=6,
        rotary=True,
    ),
    'performer': dataclasses.replace(DECODER, attention='favor(16, causal=True)', tied_output=False),
    'transformer_xl': dataclasses.replace(
        DECODER,
        relative='transformer_xl',
        memory_length=8,
        adaptive_cutoffs=(16, 40),
        adaptive_divisor=2,
        loss_chunk=6,
    ),
}
WIDE = {'wide': dataclasses.replace(ENCODER, width=64, head_width=16, feed_forward_width=256, layers=4)}
MESHES = {
    'data': (8, 1, 1),
    'fsdp': (1, 8, 1),
    'tensor': (1, 1, 4),
    'data x fsdp': (2, 4, 1),
    'fsdp x tensor': (1, 2, 4),
    'data x fsdp x tensor': (2, 2, 2),
}
SLOW = ('data', 'tensor')  # the others have these axes, too


class Step(NamedTuple):
    """A model's loss and gradients as a function of its parameters and a batch."""

    function: Callable[[Any, dict, Any], Any]
    params: Any
    batch: dict[str, jax.Array]
    carry: Any


@functools.cache
def step_of(name: str) -> Step:
    """The step of one model, with parameters that are all random, biases and scales included."""
    config = (MODELS | WIDE)[name]
    is_decoder = config.token_types == 0
    objective: Objective = LanguageModelling(config) if is_decoder else Pretraining(has_pairs=True)
    make = functools.partial(Decoder) if is_decoder else functools.partial(PretrainingModel, has_pairs=True)
    graph, state = nnx.split(nnx.eval_shape(lambda: make(config, rngs=nnx.Rngs(0))))
    rng = np.random.default_rng(1)
    params = jax.tree.map(lambda leaf: 0.3 * rng.standard_normal(leaf.shape, np.float32), nnx.to_pure_dict(state))

    def function(params: Any, batch: dict, carry: Any) -> Any:
        def sums_of(params: Any, rows: KeyedRows) -> Any:
            return objective.sums(nnx.merge(graph, params), rows.batch, rows.carry, rows.keys_B)

        whole = KeyedRows(batch, row_keys(jax.random.key(3), batch), carry)
        return accumulate(sums_of, params, whole, objective.weights(batch), 1)

    return Step(function, params, text_rows() if is_decoder else encoder_rows(), objective.initial_carry(ROWS))


def encoder_rows() -> dict[str, jax.Array]:
    return random_batch(rows=ROWS, length=LENGTH, vocabulary=72, predictions=5)


def text_rows() -> dict[str, jax.Array]:
    tokens = np.random.default_rng(2).integers(0, 72, (ROWS, LENGTH + 1), np.int32)
    shape = ROWS, LENGTH
    batch = {'tokens': tokens[:, :-1], 'targets': tokens[:, 1:], 'segments': np.ones(shape, np.int32)}
    return jax.tree.map(jnp.asarray, batch | {'weights': np.ones(shape, np.float32)})


@functools.cache
def expected(name: str) -> Any:
    step = step_of(name)
    return jax.device_get(jax.jit(using_mesh(mesh_of(1, 1, 1))(step.function))(step.params, step.batch, step.carry))


def mesh_of(data: int, fsdp: int, tensor: int) -> Mesh:
    return make_mesh(MeshConfig(data, fsdp, tensor), jax.devices()[: data * fsdp * tensor])


def on_mesh(name: str, mesh: Mesh) -> tuple[Any, ...]:
    """The step's arguments as a run lays them out."""
    step = step_of(name)
    params = jax.device_put(step.params, state_shardings(step.params, mesh))
    return params, *jax.device_put((step.batch, step.carry), batch_sharding(mesh))


def check(name: str, shape: tuple[int, int, int], capfd: pytest.CaptureFixture) -> str:
    """Checks gathers, warnings, results and the layout of the gradients; returns the program's text."""
    mesh, step = mesh_of(*shape), step_of(name)
    arguments = on_mesh(name, mesh)
    with compiling_anew():
        program = jax.jit(using_mesh(mesh)(step.function)).lower(*arguments).compile()
    text = program.as_text()
    assert INVOLUNTARY not in capfd.readouterr().err
    assert forbidden_gathers(text, step.params, mesh, stacked=MODELS[name].is_stacked) == []
    result = program(*arguments)
    assert_close(result, expected(name), gradient=True)
    jax.tree.map(lambda leaf, at: check_layout(leaf, at), result[1], state_shardings(step.params, mesh))
    return text


def check_layout(gradient: jax.Array, expected: NamedSharding) -> None:
    """A gradient of a matrix takes no more of a device than the parameter."""
    if gradient.ndim > 1 and set(expected.spec) != {None}:
        assert gradient.sharding.is_equivalent_to(expected, gradient.ndim), (gradient.shape, gradient.sharding)


@pytest.mark.parametrize(
    'shape', [pytest.param(MESHES[name], id=name, marks=[pytest.mark.slow] if name in SLOW else []) for name in MESHES]
)
def test_a_step_on_any_mesh_is_that_of_one_device_and_gathers_a_layer_at_a_time(shape: tuple, capfd):
    text = check('scan', shape, capfd)
    assert bool(results_of(text, 'all-gather')) == (shape[1:] != (1, 1))


@pytest.mark.parametrize('name', ['reformer', pytest.param('transformer_xl', marks=pytest.mark.slow)])
def test_models_of_other_layers_and_losses_gather_a_layer_at_a_time_too(name: str, capfd):
    check(name, (2, 2, 2), capfd)


@pytest.mark.slow
@pytest.mark.parametrize('shape', [(1, 8, 1), (1, 1, 4), (1, 2, 4), (2, 2, 2)], ids=str)
@pytest.mark.parametrize('name', sorted(set(MODELS) - {'scan'}))
def test_every_model_on_every_mesh(name: str, shape: tuple, capfd):
    check(name, shape, capfd)


def test_layers_without_a_scan_are_gathered_once_for_each_pass_and_not_kept(capfd):
    text = check('unrolled', (1, 8, 1), capfd)
    up = [of for of in results_of(text, 'all-gather') if of[0].shape == (24, 56)]
    assert len(up) == 2 * MODELS['unrolled'].layers


def test_splitting_parameters_and_heads_saves_memory():
    """With as many rows a device; the gradients that a step gives lie like the parameters."""
    kept = []
    for shape in [(4, 1, 1), (1, 4, 1), (1, 4, 2)]:
        mesh = mesh_of(*shape)
        step = jax.jit(using_mesh(mesh)(step_of('wide').function))
        memory = step.lower(*on_mesh('wide', mesh)).compile().memory_analysis()
        kept.append((memory.argument_size_in_bytes, memory.output_size_in_bytes, memory.temp_size_in_bytes))
    data, fsdp, both = kept
    assert all(0.25 < part / whole < 0.28 for part, whole in zip(fsdp[:2], data[:2], strict=True))
    assert all(0.125 < part / whole < 0.15 for part, whole in zip(both[:2], data[:2], strict=True))
    assert fsdp[2] < 0.85 * data[2] and both[2] < 0.7 * fsdp[2]


def bert_base_bytes(shape: tuple[int, int, int]) -> int:
    """Bytes of parameters and moments of BERT-base on one of eight devices."""
    config = ModelConfig(**(bert_fields('base') | {'vocab_size': 30_528}))  # a vocabulary that two devices can share

    def make() -> Any:
        params = nnx.to_pure_dict(nnx.state(PretrainingModel(config, has_pairs=True, rngs=nnx.Rngs(0))))
        return initial_state(params, optax.adam(1e-3), seed=0)

    state = abstract_arrays(jax.eval_shape(make), mesh_of(*shape))
    return sum(4 * math.prod(leaf.sharding.shard_shape(leaf.shape)) for leaf in jax.tree.leaves(state))


def test_a_device_holds_its_share_of_the_state():
    whole = bert_base_bytes((8, 1, 1))
    assert whole / 8 <= bert_base_bytes((1, 8, 1)) < 1.02 * whole / 8
    assert whole / 8 <= bert_base_bytes((1, 4, 2)) < 1.03 * whole / 8


def test_what_is_refused_is_found(capfd):
    """A program that splits an array by its last axis and then by two others, which the partitioner can only gather."""
    mesh = mesh_of(2, 4, 1)

    def program(x: jax.Array) -> jax.Array:
        x = jax.lax.with_sharding_constraint(x, NamedSharding(mesh, PartitionSpec(None, None, ('data', 'fsdp'))))
        return jax.lax.with_sharding_constraint(jnp.sin(x), NamedSharding(mesh, PartitionSpec('fsdp', 'data')))

    with compiling_anew():
        text = jax.jit(program).lower(jnp.ones((8, 8, 8))).compile().as_text()
    assert INVOLUNTARY in capfd.readouterr().err
    step = step_of('scan')
    assert forbidden_gathers(text, step.params, mesh, stacked=True) == [[Result('f32', (8, 8, 8))]]
    stacked = '  %gathered = f32[2,24,56]{2,1,0} all-gather(%kernels), dimensions={1}'
    assert forbidden_gathers(stacked, step.params, mesh, stacked=True) == [[Result('f32', (2, 24, 56))]]
    one = stacked.replace('[2,', '[1,')
    assert forbidden_gathers(one, step.params, mesh, stacked=True) == []
    joined = one.replace('f32[1,24,56]{2,1,0}', '(' + ', '.join(['f32[1,24,56]'] * 9) + ')')
    assert len(forbidden_gathers(joined, step.params, mesh, stacked=True)) == 1
