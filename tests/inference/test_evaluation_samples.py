"""Tests the samples of evaluations: equal parameters give equal samples of held-out texts, for each kind of task."""

import dataclasses
import functools
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from configs.text_to_text.common import text_to_text_config
from efficient_attention.config.dict_conversion import from_dict
from efficient_attention.config.run import RunConfig
from efficient_attention.errors import InputError
from efficient_attention.inference import evaluation_samples
from efficient_attention.inference.evaluation_samples import Sampler, local_params, make_sampler
from efficient_attention.inference.sampling import Sampling
from efficient_attention.tasks.registry import make_task
from efficient_attention.tasks.task import Task
from tests.inference.test_generate import config_of as language_model_config
from tests.one_device import EIGHT
from tests.training.tiny_run import tiny_config, write_corpus


def text_to_text(**fields: object) -> RunConfig:
    config = text_to_text_config()
    flat = {'data.vocab_size': 90, 'data.tokenizer': 'train:unigram', 'data.length': 24, 'pairs.target_length': 24}
    flat |= {'model.width': 16, 'model.layers': 1, 'model.decoder_layers': 1, 'model.positions': 'sinusoidal'}
    config.update_from_flattened_dict(flat | fields)
    return from_dict(config.to_dict(), RunConfig)


def pairs_config(folder: Path) -> RunConfig:
    words = ['red', 'dog', 'king', 'tree'] * 5
    (folder / 'a.txt').write_text(''.join(f'{word} {number}\n' for number, word in enumerate(words)))
    (folder / 'b.txt').write_text(''.join(f'{number} {word}\n' for number, word in enumerate(words)))
    pairs = f'lines:{folder}/a.txt,{folder}/b.txt'
    return text_to_text(**{'pairs.train': pairs, 'pairs.held_out': pairs})


def noise_config(folder: Path) -> RunConfig:
    corpus = {'data.source': write_corpus(folder), 'data.cache': str(folder / 'cache'), 'data.held_out': 0.2}
    return text_to_text(**corpus, **{'noise.name': 'span_corruption', 'eval.batch_size': 8})


def masked_config(folder: Path) -> RunConfig:
    return tiny_config(folder, **{'eval.samples': 3})


def made(config: RunConfig) -> tuple[Task, Sampler | None, dict]:
    task = make_task(config)
    graph, params = nnx.split(task.make_model(nnx.Rngs(0)))
    return task, make_sampler(config, task, graph), nnx.to_pure_dict(params)


def test_masks_are_filled_with_the_most_probable_tokens(tmp_path: Path):
    config = masked_config(tmp_path)
    task, sampler, params = made(config)
    assert sampler.kind == 'filled masks'
    samples = sampler.make(params)
    assert len(samples) == 3
    batch = next(task.evaluation_batches(0, 1))
    graph, _ = nnx.split(task.make_model(nnx.Rngs(0)))
    outputs = jax.jit(lambda params, batch: nnx.merge(graph, params).outputs(batch)['masked_lm'])
    logits_PV = np.array(outputs(params, batch)[0])
    logits_PV[:, list(task.corpus.vocabulary.special)] = -np.inf
    number = int(np.argmin(np.where(batch['masked_weights'][0] > 0, batch['masked_positions'][0], 99)))
    best = task.corpus.vocabulary
    first = samples[0]['output'].splitlines()[0].removeprefix('[1] ').split(', ')[0]
    pieces = {id: text for text, id in task.vocabulary.items()}
    assert first == pieces[int(logits_PV[number].argmax())] and best.size == len(pieces)
    assert samples[0]['target'].splitlines()[0] == f'[1] {pieces[int(batch["masked_tokens"][0][number])]}'
    assert '[1]' in samples[0]['input']


@pytest.mark.parametrize(
    'config_of, kind',
    [(language_model_config, 'generated text'), (pairs_config, 'targets'), (noise_config, 'targets')],
)
def test_equal_parameters_give_equal_samples(tmp_path: Path, config_of, kind: str):
    task, sampler, params = made(config_of(tmp_path))
    _, again, _ = made(config_of(tmp_path))
    samples = sampler.make(params)
    assert sampler.kind == kind and len(samples) == 3
    assert samples == again.make(params), 'another process makes the same samples'
    assert samples == sampler.make(params)
    other = jax.tree.map(
        lambda leaf: leaf + jnp.sin(jnp.arange(leaf.size, dtype=leaf.dtype)).reshape(leaf.shape), params
    )
    assert [one['output'] for one in samples] != [one['output'] for one in sampler.make(other)]
    assert all(one['input'].strip() for one in samples)
    if kind == 'targets':
        assert all(one['target'].strip() for one in samples)


def test_without_chance_each_token_is_the_most_probable_after_those_before(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(evaluation_samples, 'SAMPLING', Sampling(temperature=0.0))
    config = language_model_config(tmp_path)
    graph, params = nnx.split(make_task(config).make_model(nnx.Rngs(0)))
    prompts_BL = np.arange(12, dtype=np.int32).reshape(2, 6) % 5
    size = config.model.vocab_size
    program = jax.jit(functools.partial(evaluation_samples._continuations, graph, 4))
    made_Bn = np.asarray(program(nnx.to_pure_dict(params), prompts_BL, np.ones(size, bool)))
    whole_BL = np.concatenate([prompts_BL, made_Bn], axis=1)
    logits_BLV = jax.jit(lambda params, ids: nnx.merge(graph, params)(ids, jnp.ones_like(ids)))(params, whole_BL)
    np.testing.assert_array_equal(np.asarray(logits_BLV).argmax(axis=2)[:, 5:-1], made_Bn)


def test_the_inputs_are_held_out_pairs(tmp_path: Path):
    _, sampler, params = made(pairs_config(tmp_path))
    assert [(one['input'], one['target']) for one in sampler.make(params)] == [
        ('red 0', '0 red'),
        ('king 6', '6 king'),
        ('dog 13', '13 dog'),
    ]


def test_a_run_may_have_no_samples(tmp_path: Path):
    config = language_model_config(tmp_path)
    assert made(dataclasses.replace(config, eval=dataclasses.replace(config.eval, samples=0)))[1] is None
    with pytest.raises(InputError, match=r'eval\.samples'):
        dataclasses.replace(config.eval, samples=-1)


@pytest.mark.parametrize('config_of', [masked_config, language_model_config, pairs_config])
def test_sharded_parameters_give_the_same_samples(tmp_path: Path, config_of):
    _, sampler, params = made(config_of(tmp_path))
    mesh = jax.sharding.Mesh(np.asarray(EIGHT[:2]), ('fsdp',))

    def shard(leaf: jax.Array) -> jax.Array:
        axes = [None] * (leaf.ndim - 1) + ['fsdp'] if leaf.ndim and leaf.shape[-1] % 2 == 0 else []
        return jax.device_put(leaf, jax.NamedSharding(mesh, jax.P(*axes)))

    sharded = jax.tree.map(shard, params)
    assert not all(leaf.is_fully_replicated for leaf in jax.tree.leaves(sharded))
    gathered = local_params(sharded)
    assert {device for leaf in jax.tree.leaves(gathered) for device in leaf.devices()} == {EIGHT[0]}
    assert sampler.make(gathered) == sampler.make(params)


def test_replicated_parameters_are_not_copied_and_those_of_several_processes_are_refused():
    mesh = jax.make_mesh((2,), ('data',), devices=EIGHT[:2])
    whole = jax.device_put(np.arange(4.0, dtype=np.float32), jax.NamedSharding(mesh, jax.P()))
    pointers = [one.addressable_data(0).unsafe_buffer_pointer() for one in (whole, local_params({'a': whole})['a'])]
    assert pointers[0] == pointers[1]
    part = SimpleNamespace(is_fully_replicated=False, is_fully_addressable=False, addressable_data=lambda _: whole)
    with pytest.raises(InputError, match='^samples need all parameters in one process, .* sharded over several$'):
        local_params({'a': part})
