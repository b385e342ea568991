"""Tests which collectives a compiled training step contains on each kind of mesh, its memory, and its results.

Every kind of mesh gives the loss and the gradients of one device. No program gathers activations, gathers more than one
layer's parameters at once, or sums activations over devices with different rows. tests/collectives.py says what else
devices may send to one another. The partitioner never has to gather a whole array in order to split it anew.

The compiler for CPUs sums whole gradients over the devices of 'fsdp', each of which then keeps its part. It never makes
a single reduce-scatter of the two, as the compiler for TPUs does. So a sum of gradients may be as large as a layer.
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
from jax.sharding import Mesh, NamedSharding

from efficient_attention.attention.device_mesh import using_mesh
from efficient_attention.attention.features.definition import FeatureAttention
from efficient_attention.config.mesh import MeshConfig, check_sequence_parallel
from efficient_attention.config.model import ModelConfig
from efficient_attention.errors import InputError
from efficient_attention.models.decoder import Decoder
from efficient_attention.models.encoder_decoder import EncoderDecoder
from efficient_attention.models.encoder_sizes import bert_fields
from efficient_attention.models.pretraining import PretrainingModel
from efficient_attention.models.sharding import abstract_arrays, batch_sharding, make_mesh, state_shardings
from efficient_attention.objectives.bert_pretraining import Pretraining
from efficient_attention.objectives.language_modelling import LanguageModelling
from efficient_attention.objectives.objective import Objective, total_loss
from efficient_attention.objectives.text_to_text import TextToText
from efficient_attention.planning.cost import cost_of
from efficient_attention.planning.hlo_program import parse_program
from efficient_attention.training.state import initial_state
from efficient_attention.training.step import RowsWithRandomKeys, row_keys
from tests.collectives import INVOLUNTARY, Sizes, compiling_anew, forbidden, named, sent
from tests.tolerances import assert_close
from tests.training.tiny_batch import random_batch

ROWS, LENGTH, PREDICTIONS = 8, 12, 5
# No activation has the size of a parameter, so that a size tells which of the two an array is.
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
    'favor': dataclasses.replace(ENCODER, attention='favor(16)', attention_dropout_rate=0.0),
    'linear': dataclasses.replace(ENCODER, attention='linear', attention_dropout_rate=0.0),
    'causal linear': dataclasses.replace(DECODER, attention='linear(causal=True, chunk=4)'),
    't5': dataclasses.replace(ENCODER, relative='t5', relative_buckets=8, relative_max_distance=9, positions='none'),
    'tupe': dataclasses.replace(
        ENCODER, relative='tupe_r', relative_buckets=8, relative_max_distance=9, positions='none'
    ),
    'alibi': dataclasses.replace(
        DECODER, relative='alibi', attention='causal & window(7)', attention_backend='blocked'
    ),
    'transformer_xl': dataclasses.replace(
        DECODER,
        relative='transformer_xl',
        memory_length=8,
        adaptive_cutoffs=(16, 40),
        adaptive_divisor=2,
        loss_chunk=6,
    ),
}
MODELS['encoder-decoder'] = dataclasses.replace(
    ENCODER,
    token_types=0,
    decoder_layers=2,
    positions='sinusoidal',
    norm='pre',
    feed_forward_gate=True,
    norm_kind='rms',
)
# The state width 13 equals no other size, so that a size tells which array it belongs to.
MODELS['recurrent'] = dataclasses.replace(ENCODER, cell='lstm', bidirectional=True, state_width=13, layers=1)
# The same model, but the loss does not split rows into chunks.
MODELS['transformer_xl without chunks'] = dataclasses.replace(MODELS['transformer_xl'], loss_chunk=0)
MODELS['entmax'] = dataclasses.replace(ENCODER, attention='entmax')
MODELS['routing'] = dataclasses.replace(ENCODER, attention='routing(3, 5)')
MODELS['compressive'] = dataclasses.replace(
    DECODER,
    relative='transformer_xl',
    memory_length=8,
    compression='convolution',
    compressed_length=8,
    compression_rate=2,
    reconstruction_weight=1.0,
)
LOGITS, FEATURES = ('alibi', 't5', 'tupe'), ('favor', 'linear', 'causal linear')
KEPT = dataclasses.replace(ENCODER, dropout_rate=0.0, attention_dropout_rate=0.0)  # for measurements of memory
WIDE = {'wide': dataclasses.replace(KEPT, width=64, head_width=16, feed_forward_width=256, layers=4)}
WIDE['words'] = dataclasses.replace(KEPT, vocab_size=4096, layers=1)
# Numbers of devices along the axes data, fsdp, tensor and sequence.
MESHES = {
    'data': (8, 1, 1, 1),
    'fsdp': (1, 8, 1, 1),
    'tensor': (1, 1, 4, 1),
    'sequence': (1, 1, 1, 4),
    'data x fsdp': (2, 4, 1, 1),
    'fsdp x tensor': (1, 2, 4, 1),
    'data x fsdp x tensor': (2, 2, 2, 1),
    'data x fsdp x sequence': (2, 2, 1, 2),
    'fsdp x tensor x sequence': (1, 2, 2, 2),
}
SLOW = (
    'data',
    'tensor',
    'sequence',
    'data x fsdp',
    'fsdp x tensor',
    'data x fsdp x sequence',
)  # the meshes that are not slow have these axes, too


class Step(NamedTuple):
    """A model's loss and gradients as a function of its parameters and a batch."""

    function: Callable[[Any, dict, Any], Any]
    params: Any
    batch: dict[str, jax.Array]
    carry: Any


@functools.cache
def step_of(name: str) -> Step:
    """Returns the step of one model, whose parameters are all random, biases and scales included."""
    config = (MODELS | WIDE)[name]
    make, objective, batch = parts_of(config)
    graph, state = nnx.split(nnx.eval_shape(lambda: make(config, rngs=nnx.Rngs(0))))
    rng = np.random.default_rng(1)
    params = jax.tree.map(lambda leaf: 0.3 * rng.standard_normal(leaf.shape, np.float32), nnx.to_pure_dict(state))

    def function(params: Any, batch: dict, carry: Any) -> Any:
        def loss_of(params: Any, rows: RowsWithRandomKeys) -> Any:
            sums, handed_on = objective.sums(nnx.merge(graph, params), rows.batch, rows.carry, rows.keys_B)
            return total_loss(sums, objective.weights(batch)), (sums, handed_on)

        whole = RowsWithRandomKeys(batch, row_keys(jax.random.key(3), batch), carry)
        (loss, (sums, handed_on)), gradients = jax.value_and_grad(loss_of, has_aux=True)(params, whole)
        return (loss, sums), gradients, handed_on

    return Step(function, params, batch, objective.initial_carry(ROWS))


def parts_of(config: ModelConfig) -> tuple[Callable[..., nnx.Module], Objective, dict[str, jax.Array]]:
    """Returns the model's class, its objective, and a batch."""
    if config.decoder_layers:
        source = jnp.asarray(np.random.default_rng(4).integers(0, 72, (ROWS, LENGTH), np.int32))
        segments = (jnp.arange(LENGTH)[None] < 8 + jnp.arange(ROWS)[:, None] % 5).astype(jnp.int32)
        return EncoderDecoder, TextToText(), text_rows(LENGTH - 2) | {'source': source, 'source_segments': segments}
    if config.token_types == 0:
        return Decoder, LanguageModelling(config), text_rows()
    return functools.partial(PretrainingModel, has_pairs=True), Pretraining(has_pairs=True), encoder_rows()


def encoder_rows() -> dict[str, jax.Array]:
    return random_batch(rows=ROWS, length=LENGTH, vocabulary=72, predictions=PREDICTIONS)


def text_rows(length: int = LENGTH) -> dict[str, jax.Array]:
    tokens = np.random.default_rng(2).integers(0, 72, (ROWS, length + 1), np.int32)
    shape = ROWS, length
    batch = {'tokens': tokens[:, :-1], 'targets': tokens[:, 1:], 'segments': np.ones(shape, np.int32)}
    return jax.tree.map(jnp.asarray, batch | {'weights': np.ones(shape, np.float32)})


@functools.cache
def expected(name: str) -> Any:
    if name == 'unrolled':
        return expected('scan')  # both configs describe the same model
    step = step_of(name)
    return jax.device_get(jax.jit(using_mesh(mesh_of(1, 1, 1))(step.function))(step.params, step.batch, step.carry))


def mesh_of(data: int, fsdp: int, tensor: int, sequence: int = 1) -> Mesh:
    return make_mesh(MeshConfig(data, fsdp, tensor, sequence), jax.devices()[: data * fsdp * tensor * sequence])


def on_mesh(name: str, mesh: Mesh) -> tuple[Any, ...]:
    """Returns the step's arguments, laid out on the mesh as in a run."""
    step = step_of(name)
    params = jax.device_put(step.params, state_shardings(step.params, mesh))
    return params, *jax.device_put((step.batch, step.carry), batch_sharding(mesh))


def sizes_of(config: ModelConfig, mesh: Mesh) -> Sizes:
    """Returns the sizes of the arrays that one device of this mesh has while it computes the step's batch."""
    rows, heads = ROWS // (mesh.shape['data'] * mesh.shape['fsdp']), config.heads // mesh.shape['tensor']
    keys, width = LENGTH + config.memory_length + config.compressed_length, config.head_width
    tokens = keys // mesh.shape.get('sequence', 1)
    fixed = [(count, heads, width) for count in (1, keys, keys + LENGTH)]  # biases and the vectors of distances
    fixed += bias_sizes(config, heads, tokens)
    # vectors of the frequent words and of the clusters; devices may have different numbers of them
    if config.adaptive_cutoffs:
        whole = config.adaptive_cutoffs[0] + len(config.adaptive_cutoffs), config.width
        parts = [(1, 1), (mesh.shape['tensor'], 1), (mesh.shape['tensor'], mesh.shape['fsdp'])]
        fixed += [(-(-whole[0] // part), whole[1] // other) for part, other in parts]
    if isinstance(config.mechanisms[0], FeatureAttention):
        features = getattr(config.mechanisms[0], 'features', width)
        fixed += [(rows, heads, features, *columns) for columns in ((), (width,), (width + 1,))]
    predictions = PREDICTIONS + -PREDICTIONS % mesh.shape.get('sequence', 1)
    learned = config.mechanisms[0].learned_operands(config.heads, width).values()
    # operands of a device's own heads
    fixed += [(one.shape[0] // mesh.shape['tensor'], *one.shape[1:]) for one in learned]
    share = rows * max(tokens, predictions) * max(config.width, heads * width)
    return Sizes(share, tuple(fixed), (rows, predictions, config.width), config.is_stacked)


def bias_sizes(config: ModelConfig, heads: int, tokens: int) -> list[tuple[int, ...]]:
    """Returns the shapes of the arrays between a position bias's parameters and the bias, which all rows share."""
    if config.relative not in ('t5', 'tupe_r'):
        return []
    pairs = heads, tokens, LENGTH
    if config.relative == 't5':
        return [pairs]
    # TUPE also has queries or keys of all positions, sums for their norm, and one value of [CLS] for each head.
    return [pairs, (config.max_length, heads * config.head_width), (config.max_length,), (heads,)]


def check(name: str, shape: tuple[int, ...], capfd: pytest.CaptureFixture) -> str:
    """Checks the collectives, warnings, results and gradient layout of a step; returns the program's text."""
    mesh, step = mesh_of(*shape), step_of(name)
    arguments = on_mesh(name, mesh)
    with compiling_anew():
        program = jax.jit(using_mesh(mesh)(step.function)).lower(*arguments).compile()
    text = program.as_text()
    assert INVOLUNTARY not in capfd.readouterr().err
    assert [named(one) for one in forbidden(text, step.params, mesh, sizes_of(MODELS[name], mesh))] == []
    result = program(*arguments)
    assert_close(result, expected(name), gradient=True)
    if 'sequence' in mesh.shape:  # docs/scaling.md promises a smaller tolerance than tests/tolerances.py
        jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5), result, expected(name))
    jax.tree.map(lambda leaf, at: check_layout(leaf, at), result[1], state_shardings(step.params, mesh))
    return text


def check_layout(gradient: jax.Array, expected: NamedSharding) -> None:
    """Checks that a matrix's gradient takes no more memory of a device than the parameter."""
    if gradient.ndim > 1 and set(expected.spec) != {None}:
        assert gradient.sharding.is_equivalent_to(expected, gradient.ndim), (gradient.shape, gradient.sharding)


@pytest.mark.parametrize(
    'shape', [pytest.param(MESHES[name], id=name, marks=[pytest.mark.slow] if name in SLOW else []) for name in MESHES]
)
def test_a_step_on_any_mesh_is_that_of_one_device_and_gathers_a_layer_at_a_time(shape: tuple, capfd):
    text, mesh = check('scan', shape, capfd), mesh_of(*shape)
    assert bool(sent(text, mesh, 'all-gather')) == (shape[1:] != (1, 1, 1))
    # Keys and values pass round the ring of devices that share their tokens, forward and backward.
    data, fsdp, tensor, sequence = shape
    share = ROWS // (data * fsdp), LENGTH // sequence, ENCODER.heads // tensor, ENCODER.head_width
    around = [one for one in sent(text, mesh, 'collective-permute') if one.results[0].sizes == share]
    # A block of keys or values visits all other devices for the output and for the gradients; its gradients come back.
    assert len(around) == 2 * 3 * (sequence - 1)


@pytest.mark.parametrize(
    'name, shape',
    [
        ('reformer', 'data x fsdp x tensor'),
        ('encoder-decoder', 'fsdp x tensor x sequence'),
        ('recurrent', 'data'),
        ('compressive', 'data x fsdp x tensor'),
        ('routing', 'data x fsdp x tensor'),
        ('entmax', 'data x fsdp x tensor'),
        pytest.param('transformer_xl', 'data x fsdp x tensor', marks=pytest.mark.slow),
    ],
)
def test_models_of_other_layers_and_losses_gather_a_layer_at_a_time_too(name: str, shape: str, capfd):
    check(name, MESHES[shape], capfd)


@pytest.mark.slow
@pytest.mark.parametrize('shape', [(1, 8, 1), (1, 1, 4), (1, 2, 4), (2, 2, 2)], ids=str)
@pytest.mark.parametrize('name', sorted(set(MODELS) - {'scan', 'transformer_xl without chunks', *LOGITS, *FEATURES}))
def test_every_model_on_every_mesh(name: str, shape: tuple, capfd):
    check(name, shape, capfd)


@pytest.mark.slow
@pytest.mark.parametrize('shape', [(1, 8, 1), (1, 1, 4)], ids=str)
@pytest.mark.parametrize('name', [*LOGITS, *FEATURES])
def test_positions_and_features_on_each_axis(name: str, shape: tuple, capfd):
    check(name, shape, capfd)


@pytest.mark.slow
@pytest.mark.parametrize(
    'name',
    sorted(
        set(MODELS)
        - {'scan', 'reformer', 'routing', 'entmax', 'tupe', 'transformer_xl', 'encoder-decoder', 'recurrent'}
    ),
)
def test_every_model_whose_rows_may_be_split(name: str, capfd):
    """The models left out are in test_what_cannot_be_split or run above. Loss chunks take whole rows
    (docs/scaling.md).
    """
    check(name, MESHES['fsdp x tensor x sequence'], capfd)


@pytest.mark.parametrize(
    'name, line',
    [
        ('reformer', 'lsh needs whole rows'),
        ('routing', 'routing needs whole rows'),
        ('tupe', 'needs the positions of whole rows'),
    ],
)
def test_what_cannot_be_split(name: str, line: str):
    with pytest.raises(InputError, match=f'^mesh.sequence is 2; .*{line}[^\n]*$'):
        check_sequence_parallel(MeshConfig(sequence=2), MODELS[name], {'data.length': LENGTH})


def test_layers_without_a_scan_are_gathered_once_for_each_pass_and_not_kept(capfd):
    text = check('unrolled', (1, 8, 1), capfd)
    gathers = sent(text, mesh_of(1, 8, 1), 'all-gather')
    up = [one for one in gathers if one.results[0].sizes == (24, 56)]
    assert len(up) == 2 * MODELS['unrolled'].layers


def test_splitting_parameters_and_heads_saves_memory():
    """All meshes have equally many rows on each device. The gradients of a step are laid out like the parameters."""
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


def test_devices_that_share_rows_share_their_predictions():
    """A row has five predictions: each of 2 devices takes 3 of them, each of 4 takes 2. The output head dominates the
    step.
    """
    kept = []
    for sequence in (1, 2, 4):
        mesh = mesh_of(1, 1, 1, sequence)
        program = jax.jit(using_mesh(mesh)(step_of('words').function)).lower(*on_mesh('words', mesh)).compile()
        flops = cost_of(parse_program(program.as_text())).flops
        kept.append((flops, program.memory_analysis().temp_size_in_bytes))
    (whole_flops, whole_bytes), *parts = kept
    logits = 4 * ROWS * PREDICTIONS * WIDE['words'].vocab_size
    for share, (flops, bytes_) in zip((3 / 5, 2 / 5), parts, strict=True):
        assert flops / whole_flops == pytest.approx(share, abs=0.02)
        # the rest of the bytes, such as the gradient of the word table, is not split
        assert bytes_ < whole_bytes - 0.75 * (1 - share) * logits


@functools.cache
def bert_base_state() -> Any:
    """Returns the shapes of BERT-base's parameters and optimizer moments."""
    # a vocabulary size that divides by two devices
    config = ModelConfig(**(bert_fields('base') | {'vocab_size': 30_528}))

    def make() -> Any:
        params = nnx.to_pure_dict(nnx.state(PretrainingModel(config, has_pairs=True, rngs=nnx.Rngs(0))))
        return initial_state(params, optax.adam(1e-3), seed=0)

    return jax.eval_shape(make)


def bert_base_bytes(shape: tuple[int, int, int]) -> int:
    """Returns the bytes of BERT-base's parameters and optimizer moments on one of eight devices."""
    state = abstract_arrays(bert_base_state(), mesh_of(*shape))
    return sum(4 * math.prod(leaf.sharding.shard_shape(leaf.shape)) for leaf in jax.tree.leaves(state))


def test_a_device_holds_its_share_of_the_state():
    whole = bert_base_bytes((8, 1, 1))
    assert whole / 8 <= bert_base_bytes((1, 8, 1)) < 1.02 * whole / 8
    assert whole / 8 <= bert_base_bytes((1, 4, 2)) < 1.03 * whole / 8
