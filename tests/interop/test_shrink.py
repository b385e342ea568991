"""Tests that a shrunk model computes the masked model's outputs, and that its export reopens unchanged."""

import functools
import re
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import save_file

from efficient_attention.config.head import HeadConfig
from efficient_attention.config.model import ModelConfig
from efficient_attention.errors import InputError
from efficient_attention.inference.evaluate_workdir import evaluate_workdir
from efficient_attention.interop.huggingface_export import save_pretrained
from efficient_attention.interop.low_rank import low_rank
from efficient_attention.interop.pretrained import Pretrained, open_pretrained
from efficient_attention.interop.shrink import parameter_count, shrink
from efficient_attention.models.fine_tuning import FineTuningModel
from efficient_attention.models.sharding import path_name
from efficient_attention.training.fill_config import fill_config
from efficient_attention.training.loop import train
from tests.interop.folders import ARRAYS
from tests.interop.test_pretrained import PEERS, differences_in_transformers
from tests.training.tiny_fine_tuning import tiny_config, tiny_values

HEAD = HeadConfig(kind='sequence', outputs=2)
SIZES = {'vocab_size': 20, 'width': 16, 'heads': 4, 'layers': 3, 'max_length': 12, 'feed_forward_width': 24}
SIZES |= {'init_std': 0.3, 'activation': 'gelu_erf'}
BATCH = {
    'tokens': np.arange(20, dtype=np.int32).reshape(2, 10),
    'segments': np.array([[1] * 10, [1] * 6 + [0] * 4], np.int32),
    'token_types': np.zeros((2, 10), np.int32),
}
# For each layer: heads without values, heads without output, units without input, and units without output.
MASKED = [((0,), (2,), (1, 5, 6), (2, 3)), ((0, 1), (2, 3), range(24), ()), ((), (), (), (7,))]


@functools.cache
def classifier_of(model: ModelConfig) -> tuple[nnx.GraphDef, Any]:
    """Returns the graph of a classifier and the shapes of its parameters."""
    return nnx.split(nnx.eval_shape(lambda: FineTuningModel(model, HEAD, rngs=nnx.Rngs(0))))


def drawn(fields: dict[str, Any]) -> Pretrained:
    """Returns a classifier with random parameters: norm scales around 1, all others (biases too) around 0."""
    model, rng = ModelConfig(**SIZES | fields), np.random.default_rng(0)

    def draw(path: tuple, leaf: jax.ShapeDtypeStruct) -> np.ndarray:
        name = path_name(path).rpartition('/')[2]
        mean, deviation = float(name == 'scale'), 0.35 if name in ('kernel', 'embedding') else 0.2
        return rng.normal(mean, deviation, leaf.shape).astype(np.float32)

    params = jax.tree_util.tree_map_with_path(draw, nnx.to_pure_dict(classifier_of(model)[1]))
    return Pretrained(model, HEAD, ('a', 'b'), 'classification', '', None, True, lambda: params)


def masked(pretrained: Pretrained) -> Pretrained:
    """Returns a copy with the heads and units of `MASKED` set to zero; a shared layer uses the first entry."""
    params = jax.tree.map(np.copy, pretrained.params())
    layers, width = params['encoder']['stack']['layers'], pretrained.model.head_width
    for number, (no_value, no_output, no_input, unread) in enumerate(MASKED):
        if not pretrained.model.is_stacked and number:
            break
        place = (number,) if pretrained.model.is_stacked else ()
        attention, feed_forward = layers['attention'], layers['feed_forward']
        for head in no_value:
            attention['value']['kernel'][(*place, slice(None), slice(head * width, (head + 1) * width))] = 0.0
        for head in no_output:
            attention['out']['kernel'][(*place, slice(head * width, (head + 1) * width))] = 0.0
        for unit in no_input:
            for name in ('up', 'gate'):
                if name in feed_forward:
                    feed_forward[name]['kernel'][(*place, slice(None), unit)] = 0.0
        for unit in unread:
            feed_forward['down']['kernel'][(*place, unit)] = 0.0
    return Pretrained(pretrained.model, HEAD, ('a', 'b'), 'classification', '', None, True, lambda: params)


@functools.partial(jax.jit, static_argnums=0)
def logits_of(graph: nnx.GraphDef, params: Any) -> jax.Array:
    """Returns the logits of `BATCH`."""
    return nnx.merge(graph, params).outputs(BATCH)['logits']


def logits(pretrained: Pretrained) -> np.ndarray:
    return np.asarray(logits_of(classifier_of(pretrained.model)[0], pretrained.params()))


@pytest.mark.parametrize(
    'fields, heads, units',
    [
        ({}, (2, 0, 4), (19, 0, 23)),
        ({'feed_forward_gate': True, 'norm': 'pre', 'attention': 'sparsemax(full)'}, (2, 0, 4), (19, 0, 23)),
        ({'attention_bias': False, 'feed_forward_bias': False}, (2, 0, 4), (19, 0, 23)),
        (
            {'attention': 'favor(32)', 'attention_dropout_rate': 0.0},
            (3, 2, 4),
            (19, 0, 23),
        ),  # attention weights need not sum to 1
        ({'sharing': 'all', 'embedding_width': 8}, (2,), (19,)),
        ({'activation': 'relu', 'head_width': 8, 'norm_kind': 'rms'}, (2, 0, 4), (19, 0, 23)),
    ],
    ids=str,
)
def test_it_computes_what_the_masked_model_does(fields: dict[str, Any], heads: tuple, units: tuple):
    whole = masked(drawn(fields))
    small = shrink(whole)
    assert small.model.layer_heads == heads and small.model.layer_units == units
    expected = logits(whole)
    np.testing.assert_allclose(logits(small), expected, rtol=1e-5, atol=1e-6)
    assert parameter_count(small.params()) < parameter_count(whole.params())
    assert np.abs(expected - logits(drawn(fields))).max() > 1e-3


@pytest.mark.parametrize('fields', [{}, {'sharing': 'all', 'embedding_width': 8, 'token_types': 2}], ids=str)
def test_it_goes_out_padded_and_comes_back_small(tmp_path: Path, fields: dict[str, Any]):
    small = shrink(masked(drawn(fields)))
    save_pretrained(tmp_path / 'small', small)
    back = open_pretrained(tmp_path / 'small')
    assert back.model.layer_heads == small.model.layer_heads
    jax.tree.map(np.testing.assert_array_equal, back.params(), small.params())


@pytest.mark.real
@pytest.mark.skipif(not PEERS.exists(), reason='needs transformers, see `make peers`')
def test_masked_shrunk_and_low_rank_models_agree_in_transformers(tmp_path: Path):
    """Masked, shrunk and low-rank models are exported in full size: zeros where parts are gone, factors multiplied."""
    whole = masked(drawn({'token_types': 2, 'vocab_size': 60}))
    made = {'masked': whole, 'shrunk': shrink(whole)}
    made['low_rank'] = low_rank(drawn({'token_types': 2, 'vocab_size': 60}), ranks=('up=4', 'token=8'))
    for name, pretrained in made.items():
        save_pretrained(tmp_path / name, pretrained)
        inputs = {'input_ids': np.asarray(BATCH['tokens']), 'attention_mask': np.asarray(BATCH['segments'])}
        arrays = {f'input/{key}': array.astype(np.int32) for key, array in inputs.items()}
        arrays['output/ForSequenceClassification/logits'] = np.asarray(logits(pretrained))
        save_file(arrays, tmp_path / name / ARRAYS)
        (tmp_path / name / 'ending').write_text('ForSequenceClassification')
    differences = differences_in_transformers([str(tmp_path / name) for name in made])
    assert len(differences) == len(made) and max(differences.values()) < 1e-5


def test_what_every_layer_keeps_is_no_number_of_its_own():
    """If all layers keep all heads, `layer_heads` stays empty, so that layers with per-head patterns can lose units."""
    whole = drawn({'attention': 'bigbird(2, 1)'})
    layers = whole.params()['encoder']['stack']['layers']
    layers['feed_forward']['down']['kernel'] = np.copy(layers['feed_forward']['down']['kernel'])
    layers['feed_forward']['down']['kernel'][:, :5] = 0.0
    small = shrink(whole)
    assert small.model.layer_heads == () and small.model.layer_units == (19, 19, 19)
    np.testing.assert_allclose(logits(small), logits(whole), rtol=1e-5, atol=1e-6)


KINDS_THAT_ARE_NOT_SERVED = [
    ({'cell': 'lstm', 'positions': 'none'}, "model.cell is 'lstm'"),
    ({'directions_apart': True}, 'model.directions_apart is True'),
    ({'attention': 'synthesizer'}, "model.attention is 'synthesizer'"),
    ({'attention': 'linformer(4)', 'attention_dropout_rate': 0.0}, "model.attention is 'linformer(4)'"),
    ({'score': 'general'}, "model.score is 'general'"),
    ({'score': 'additive'}, "model.score is 'additive'"),
    ({'global_tokens': 2, 'attention': 'window(4) | global_tokens(2)'}, 'model.global_tokens is 2'),
]


def test_nothing_to_shrink_is_one_line():
    with pytest.raises(InputError, match='nothing to shrink: in no layer is a whole head or feed-forward unit zero'):
        shrink(drawn({}))
    with pytest.raises(InputError, match='the model is shrunk already; its layers differ in heads'):
        shrink(shrink(masked(drawn({}))))
    with pytest.raises(InputError, match="heads and units cannot be removed: model.relative is 't5'"):
        shrink(masked(drawn({'relative': 't5', 'positions': 'none'})))
    for fields, fault in KINDS_THAT_ARE_NOT_SERVED:
        with pytest.raises(InputError, match=f'heads and units cannot be removed: {re.escape(fault)}'):
            shrink(drawn(fields))
    with pytest.raises(InputError, match='heads and units cannot be removed from several shared layers'):
        shrink(drawn({'sharing': 'all', 'layer_groups': 3}))
    with pytest.raises(InputError, match='heads and units cannot be removed from factored kernels; shrink first'):
        shrink(low_rank(masked(drawn({})), ranks=('up=4',)))


@pytest.mark.lenient_promotion
def test_a_run_prunes_shrinks_and_trains_on(tmp_path: Path):
    fields = {'prune.method': 'magnitude', 'prune.attention': 'head', 'prune.feed_forward': 'unit', 'prune.end': 0.5}
    fields |= {'prune.keep': 0.25, 'prune.keep_attention': 0.5, 'prune.scope': 'global', 'train.steps': 4}
    steps = {'eval.every_steps': 4, 'checkpoint.every_steps': 4, 'optimizer.warmup_steps': 0, 'examples.buckets': (16,)}
    train(
        tiny_config(tmp_path, **fields, **steps, **{'model.activation': 'gelu_erf', 'model.norm': 'post'}),
        tmp_path / 'pruned',
    )
    pruned = open_pretrained(tmp_path / 'pruned')
    small = shrink(pruned)
    assert sum(small.model.layer_heads) == 2 and sum(small.model.layer_units) == 32
    save_pretrained(tmp_path / 'small', small)
    values = tiny_values(tmp_path, **steps, **{'train.steps': 4, 'train.start_from': str(tmp_path / 'small')})
    values['model'] = dict.fromkeys(values['model'])
    filled = fill_config(values)
    assert filled.config.model.layer_units == small.model.layer_units
    train(filled.config, tmp_path / 'on', examples=filled.examples, pretrained=filled.pretrained)
    found = evaluate_workdir(tmp_path / 'on')
    assert found['step'] == 4 and parameter_count(open_pretrained(tmp_path / 'on').params()) == parameter_count(
        small.params()
    )
