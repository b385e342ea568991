"""Tests that hidden states and head outputs of every family equal stored ones of transformers to 1e-4."""

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from efficient_attention.interop.pretrained import Pretrained, open_pretrained
from efficient_attention.models.encoder import Encoder
from efficient_attention.models.fine_tuning import FineTuningHead
from efficient_attention.models.pretraining import MaskedLMHead, PairHead
from efficient_attention.modules.feed_forward import ACTIVATION_FUNCTIONS
from efficient_attention.modules.pooling import Pooler
from tests.interop.folders import FIXTURES, NAMES, arrays_of, batch_of, classes_of, with_head

TOLERANCE = 1e-4
CASES = [(name, ending) for name in NAMES for ending in classes_of(name)]
BLOCKS = {'big_bird_1': 4, 'big_bird_2': 2}
MASKED_QUESTION = -1e5  # transformers subtracts 1e6 from BigBird's logits on the question.


def module(make, params: dict) -> nnx.Module:
    """Returns a module with these parameters; fails if the names of the parameters differ."""
    graph, state = nnx.split(nnx.eval_shape(make))
    assert jax.tree.structure(nnx.to_pure_dict(state)) == jax.tree.structure(params)
    return nnx.merge(graph, params)


def planned(name: str) -> str:
    """Returns BigBird's attention as text, layer by layer, with the random blocks that transformers drew."""
    block, arrays, layers = BLOCKS[name], arrays_of(name), []
    for layer in range(2):
        heads = []
        for plan in arrays[f'plan/{layer}']:  # The plan starts at the second block of queries.
            pairs = [f'{row + 1}, {key}' for row, keys in enumerate(plan) for key in keys]
            heads.append(f'listed_tiles({block}, {", ".join(pairs)})')
        whole = f'block({block}, 1, 1) | global_tokens({block}, {block})'
        layers.append(f'{whole} | per_head({", ".join(heads)})')
    return '; '.join(layers)


def opened(name: str, folder: Path) -> Pretrained:
    pretrained = open_pretrained(folder)
    if name not in BLOCKS:
        return pretrained
    return dataclasses.replace(pretrained, model=dataclasses.replace(pretrained.model, attention=planned(name)))


@pytest.fixture(scope='module')
def computed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, Any]]:
    """Returns a function from a fixture's name to its hidden states ('hidden') and to the outputs of each head.

    One program computes them; every class with a head has the encoder of the folder as transformers wrote it.
    """

    @functools.cache
    def compute(name: str) -> dict[str, Any]:
        bare, folder = opened(name, FIXTURES / name), tmp_path_factory.mktemp(name)
        heads = {ending: open_pretrained(with_head(name, ending, folder / ending)) for ending in classes_of(name)}
        params = {ending: head.params() for ending, head in heads.items()}
        encoder_params = bare.params()['encoder']
        for own in params.values():
            jax.tree.map(np.testing.assert_array_equal, own.pop('encoder'), encoder_params)

        def outputs(encoder_params: dict, params: dict, batch: dict[str, jax.Array]) -> dict[str, Any]:
            encoder = module(lambda: Encoder(bare.model, rngs=nnx.Rngs(0)), encoder_params)
            x_BLD = run(encoder, batch)[:, : arrays_of(name)['input/input_ids'].shape[1]]
            found = {ending: heads_outputs(head, params[ending], encoder, x_BLD) for ending, head in heads.items()}
            return {'hidden': x_BLD} | found

        return jax.device_get(jax.jit(outputs)(encoder_params, params, batch_of(name, BLOCKS.get(name, 1))))

    return compute


def run(encoder: Encoder, batch: dict[str, jax.Array]) -> jax.Array:
    token_types_BL, is_global_BL = batch['token_types'], batch.get('is_global')
    return encoder(batch['tokens'], batch['segments'], token_types_BL=token_types_BL, is_global_BL=is_global_BL)


def assert_equal(name: str, ours, theirs: np.ndarray) -> None:
    """Asserts that outputs are equal, ignoring padding positions and logits that BigBird masks."""
    ours = np.asarray(ours)
    assert ours.shape == theirs.shape
    is_compared = theirs > MASKED_QUESTION
    length = arrays_of(name)['input/input_ids'].shape[1]
    if theirs.ndim > 1 and theirs.shape[1] in (length, 6):
        is_real = arrays_of(name)['input/attention_mask'][:, : theirs.shape[1]] == 1
        is_compared &= is_real.reshape(*is_real.shape, *(1,) * (theirs.ndim - 2))
    assert is_compared.mean() > 0.5
    np.testing.assert_allclose(ours[is_compared], theirs[is_compared], atol=TOLERANCE, rtol=TOLERANCE)


@pytest.mark.parametrize('name', NAMES)
def test_hidden_states(computed: Callable, name: str):
    theirs = arrays_of(name)['output/hidden']
    assert_equal(name, computed(name)['hidden'], theirs)
    assert theirs.std() > 0.3  # Random parameters must not give constant outputs.


@pytest.mark.parametrize(('name', 'ending'), CASES)
def test_outputs_of_heads(computed: Callable, name: str, ending: str):
    outputs = computed(name)[ending]
    prefix = f'output/{ending}/'
    theirs = {own.removeprefix(prefix): value for own, value in arrays_of(name).items() if own.startswith(prefix)}
    assert theirs and set(theirs) <= set(outputs)
    for own, value in theirs.items():
        assert_equal(name, outputs[own][:, : value.shape[1]] if value.ndim > 1 else outputs[own], value)


def heads_outputs(pretrained: Pretrained, params: dict, encoder: Encoder, x_BLD: jax.Array) -> dict[str, jax.Array]:
    """Returns the outputs of all heads of a checkpoint, under the names of transformers."""
    model, head = pretrained.model, pretrained.head
    outputs = {}
    pooled_BD = x_BLD[:, 0]
    if 'pooler' in params:
        activation = 'tanh' if head.kind == 'none' else head.transform
        pooled_BD = module(lambda: Pooler(model, activation=activation, rngs=nnx.Rngs(0)), params['pooler'])(
            x_BLD[:, 0]
        )
    if 'masked_lm' in params:
        logits = module(lambda: MaskedLMHead(model, rngs=nnx.Rngs(0)), params['masked_lm'])(
            x_BLD, encoder.embeddings.token
        )
        outputs['logits'] = outputs['prediction_logits'] = logits
    if 'pair' in params:
        logits = module(lambda: PairHead(model, rngs=nnx.Rngs(0)), params['pair'])(pooled_BD)
        outputs['seq_relationship_logits'] = outputs['sop_logits'] = logits
        outputs.setdefault('logits', logits)
    if 'detector' in params:
        dense, out = params['detector']['dense'], params['detector']['out']
        x_BLD = ACTIVATION_FUNCTIONS[model.activation](jnp.matmul(x_BLD, dense['kernel']) + dense['bias'][None, None])
        outputs['logits'] = (jnp.matmul(x_BLD, out['kernel']) + out['bias'][None, None])[..., 0]
    if head.kind != 'none':
        is_pooled = head.kind in ('sequence', 'choice')
        own = module(lambda: FineTuningHead(model, head, rngs=nnx.Rngs(0)), params['head'])(
            pooled_BD if is_pooled else x_BLD
        )['logits']
        outputs['logits'] = own[:, 0] if head.kind == 'choice' else own
        if head.kind == 'span':
            outputs |= {'start_logits': own[..., 0], 'end_logits': own[..., 1]}
    return outputs
