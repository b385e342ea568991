"""Tests of generation: greedy text follows the full model's argmax, streaming changes nothing, and errors are clear."""

import functools
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from configs.lm.common import language_modelling_config
from efficient_attention.config.dict_conversion import from_dict
from efficient_attention.config.run import RunConfig
from efficient_attention.errors import InputError
from efficient_attention.inference.generate import (
    TextGenerator,
    allowed_token_mask,
    generate_tokens,
    prompt_ids,
    read_prompts,
)
from efficient_attention.inference.restore import restore
from efficient_attention.inference.sampling import Sampling, SamplingInputs
from efficient_attention.models.cached_decoding import CachedDecoder
from efficient_attention.training.run import build_run
from efficient_attention.workdir.checkpoint_writer import CheckpointWriter
from tests.training.tiny_run import drawn_workdir, write_corpus

pytestmark = pytest.mark.lenient_promotion  # A built run has an optimizer; Optax mixes Python floats with int32.
FIELDS = {
    'data.units': 'characters',
    'data.vocab_size': 64,
    'data.splitting': 'end',
    'data.held_out': 0.1,
    'data.length': 32,
    'model.attention': 'causal & window(6)',
    'model.width': 16,
    'model.heads': 2,
    'model.layers': 1,
    'model.max_length': 32,
    'model.init_std': 0.5,
    'train.batch_size': 8,
    'eval.batch_size': 8,
}
GREEDY = Sampling(temperature=0.0)


def config_of(folder, **fields) -> RunConfig:
    config = language_modelling_config()
    config.data.source = write_corpus(folder)
    config.data.cache = str(folder / 'cache')
    config.update_from_flattened_dict(FIELDS | fields)
    return from_dict(config.to_dict(), RunConfig)


def workdir_of(folder, **fields):
    """Writes and returns the folder of a run with only its initial checkpoint."""
    return drawn_workdir(build_run(config_of(folder, **fields)), folder / 'workdir')


@pytest.fixture(scope='module')
def workdir(tmp_path_factory):
    return workdir_of(tmp_path_factory.mktemp('generate'))


@pytest.fixture(scope='module')
def generator(workdir) -> TextGenerator:
    return TextGenerator(workdir)


def test_greedy_text_is_the_models_argmax_again_and_again(generator):
    prompt, count = 'The old dog', 11
    parts = list(generator(prompt, max_tokens=count, sampling=GREEDY))
    assert parts[0] == prompt and [len(part) for part in parts[1:]] == [8, 3, 0]
    text = ''.join(parts)

    @jax.jit
    def logits_of(params, tokens: jax.Array) -> jax.Array:
        return nnx.merge(generator.graph, params)(tokens, jnp.ones_like(tokens))

    # One forward pass over the whole text shows whether each new character had the highest logit.
    ids = generator.units.encode(text)
    logits = np.array(logits_of(generator.params, jnp.asarray(ids[None], jnp.int32))[0])
    logits[:, ~np.asarray(generator.may_follow_V)] = -np.inf
    np.testing.assert_array_equal(logits[len(prompt) - 1 : -1].argmax(axis=1), ids[len(prompt) :])


def test_the_seed_decides_and_the_parts_do_not(generator):
    def text(seed: int) -> str:
        return ''.join(generator('The old dog', max_tokens=11, seed=seed))

    first = text(0)
    assert first == text(0) != text(1) and len(first) == 22
    parts = list(generator.stream(prompt_ids('The old dog', generator.units), 11, Sampling(), 0, at_once=4))
    assert ''.join(parts) == first and len(parts) == 5  # parts: the prompt, 4 + 4 + 3 tokens, and held-back text


def test_rows_of_unequal_prompts_go_on_as_each_alone(generator):
    """Each row of unequal prompts continues as it does by itself. Sampling shows that rows share no random numbers."""
    prompts = [generator.units.encode(text) for text in ('The old dog', 'A king')]
    tokens, segments = np.zeros((2, 11), np.int32), np.zeros((2, 11), np.int32)
    for row, ids in enumerate(prompts):
        tokens[row, : len(ids)], segments[row, : len(ids)] = ids, 1

    @functools.partial(jax.jit, static_argnames='sampling')
    def run_with_cache(params, tokens: jax.Array, segments: jax.Array, *, sampling: Sampling) -> jax.Array:
        cached = CachedDecoder(nnx.merge(generator.graph, params), 32)
        text = read_prompts(cached, tokens, segments)
        return generate_tokens(cached, text, 8, sampling, SamplingInputs(0, generator.may_follow_V))[0]

    both = run_with_cache(generator.params, jnp.asarray(tokens), jnp.asarray(segments), sampling=GREEDY)
    for row, ids in enumerate(prompts):
        alone = ''.join(generator(generator.units.decode(ids), max_tokens=8, sampling=GREEDY))
        assert generator.units.decode(np.asarray(both)[row]) == alone[len(ids) :]


def test_what_no_text_stands_for_is_never_drawn(generator):
    may_follow = np.asarray(allowed_token_mask(generator.units, 64))
    np.testing.assert_array_equal(np.flatnonzero(may_follow), np.arange(1, generator.units.size))
    text = ''.join(generator('The old dog', max_tokens=20, sampling=Sampling(temperature=50.0)))
    assert '\N{REPLACEMENT CHARACTER}' not in text


def test_pieces_may_end_a_document_but_are_no_other_special_token(tmp_path):
    generator = TextGenerator(
        workdir_of(tmp_path, **{'data.units': 'tokenizer', 'data.tokenizer': 'train:wordpiece', 'data.vocab_size': 70})
    )
    special = [id for id in range(70) if (generator.units.tokenizer.id_to_token(id) or '[').startswith('[')]
    may_follow = np.asarray(generator.may_follow_V)
    assert [id for id in special if may_follow[id]] == generator.units.separator.tolist()
    assert may_follow.sum() == generator.units.size - len([id for id in special if id < generator.units.size]) + 1
    with pytest.raises(InputError, match="the prompt has '家', which the vocabulary of the run lacks"):
        generator('the 家 dog')
    assert ''.join(generator('the old dog', max_tokens=3)).startswith('the old dog')


def test_a_text_of_words_goes_on_in_the_line_of_the_prompt(tmp_path):
    generator = TextGenerator(workdir_of(tmp_path, **{'data.units': 'words'}))
    may_follow = np.asarray(generator.may_follow_V)
    assert may_follow[0] and not may_follow[generator.units.unknown] and may_follow.sum() == generator.units.size - 1
    text = ''.join(generator('The  old dog', max_tokens=6))
    words = text.replace('\n', ' <eos> ').split()
    assert text.startswith('the old dog') and len(words) == 9 and set(words) <= set(generator.units.words)
    with pytest.raises(InputError, match="the prompt has 'zebra', which the vocabulary of the run lacks"):
        generator('the zebra dog')


def test_a_model_of_images_writes_no_text(workdir, tmp_path):
    shutil.copytree(workdir, tmp_path, dirs_exist_ok=True)
    config = json.loads((tmp_path / 'config.json').read_text(encoding='utf-8'))
    config['data'] |= {'units': 'pixels', 'source': 'images:*.png', 'image_shape': [4, 2, 3], 'length': 24}
    (tmp_path / 'config.json').write_text(json.dumps(config), encoding='utf-8')
    with pytest.raises(InputError, match=f'^{tmp_path} holds a model of images; only text can be generated$'):
        TextGenerator(tmp_path)


def test_the_checkpoint_is_the_users_choice(generator, workdir, tmp_path):
    shutil.copytree(workdir, tmp_path, dirs_exist_ok=True)
    metric = 'causal_lm_loss'
    config = json.loads((tmp_path / 'config.json').read_text(encoding='utf-8'))
    config['checkpoint']['best_metric'] = metric
    (tmp_path / 'config.json').write_text(json.dumps(config), encoding='utf-8')
    stacked = jax.device_get(restore(workdir).params)  # The generator has unstacked layers, a checkpoint stacked ones.
    with CheckpointWriter(tmp_path, from_dict(config, RunConfig).checkpoint) as checkpoints:
        for step, loss in ((1, 1.5), (3, 2.5)):
            state = {'params': jax.tree.map(lambda leaf, step=step: leaf + np.float32(step), stacked)}
            checkpoints.save(step, state, record={}, metrics={metric: loss})
    before = np.asarray(generator.params['embeddings']['token']['embedding'])
    for checkpoint, step in (('last', 3), ('best', 1), ('0', 0)):
        after = TextGenerator(tmp_path, checkpoint=checkpoint).params['embeddings']['token']['embedding']
        np.testing.assert_allclose(after, before + np.float32(step))


@pytest.mark.parametrize(
    'prompt, options, line',
    [
        ('', {}, 'the prompt is empty'),
        ('Äh 家, 家!', {}, "the prompt has 'Ä', '家', ',', '!', which the vocabulary of the run lacks"),
        ('\udcff', {}, 'the prompt is not UTF-8'),
        ('dog', {'max_tokens': 0}, r'max_tokens is 0; it must be at least 1'),
        ('dog', {'seed': -1}, r'seed is -1; it must be from 0 to 2147483647'),
        ('dog', {'max_tokens': 31}, 'the model has 32 positions: max_tokens can be 30 at most'),
        ('dog ' * 9, {'max_tokens': 1}, 'the prompt has 36 tokens and the model has 32 positions: it'),
    ],
)
def test_bad_requests_are_named_before_anything_is_made(generator, prompt: str, options: dict, line: str):
    with pytest.raises(InputError, match=line) as caught:
        generator(prompt, **options)
    assert '\n' not in str(caught.value)


def test_the_position_table_may_be_used_to_its_end(generator):
    assert len(''.join(generator('dog', max_tokens=30, sampling=GREEDY))) == 33


def test_bad_workdirs_are_named(workdir, tmp_path):
    with pytest.raises(InputError, match=r'no checkpoint there \(config.json is missing'):
        TextGenerator(tmp_path)
    config = json.loads((workdir / 'config.json').read_text(encoding='utf-8'))

    def refuse(line: str, **model) -> None:
        (tmp_path / 'config.json').write_text(json.dumps(config | {'model': config['model'] | model}), encoding='utf-8')
        with pytest.raises(InputError, match=line) as caught:
            TextGenerator(tmp_path)
        assert '\n' not in str(caught.value)

    refuse(r'its vocabulary of characters cannot be read \(.*No such file')
    shutil.copy(workdir / 'characters.json', tmp_path)
    refuse('there is no checkpoint in ')
    refuse('lsh attention cannot decode token by token', attention='lsh(8, 2, causal=True)', shared_qk=True)
    refuse('routing attention cannot decode token by token', attention='routing(4, 6, causal=True)')
    (tmp_path / 'config.json').write_text('{"task": "pretraining"}', encoding='utf-8')
    with pytest.raises(InputError, match="holds a run of the task 'pretraining'; generating text needs language_"):
        TextGenerator(tmp_path)


def test_a_beam_search_finds_what_is_at_least_as_probable_as_greedy_text(generator):
    prompt, count = 'The old dog', 6
    [greedy] = generator.beam_search(prompt, max_tokens=count, beams=1)
    assert greedy.text == ''.join(generator(prompt, max_tokens=count, sampling=GREEDY))
    found = generator.beam_search(prompt, max_tokens=count, beams=8, best=3)
    assert found == sorted(found, key=lambda one: -one.log_prob) and len({one.text for one in found}) == 3
    assert found[0].log_prob >= greedy.log_prob - 1e-5
    ids = np.stack([generator.units.encode(one.text) for one in [greedy, *found]]).astype(np.int32)

    @jax.jit
    def log_probs(params, tokens: jax.Array) -> jax.Array:
        logits = nnx.merge(generator.graph, params)(tokens, jnp.ones_like(tokens))
        each = jnp.take_along_axis(jax.nn.log_softmax(logits)[:, :-1], tokens[:, 1:, None], -1)
        return each[:, len(prompt) - 1 :, 0].sum(1)

    sums = log_probs(generator.params, jnp.asarray(ids))
    np.testing.assert_allclose([one.log_prob for one in [greedy, *found]], sums, atol=1e-4)


def test_a_beam_search_says_what_is_out_of_range(generator):
    with pytest.raises(InputError, match='best .*3.* 1 to 2, the beams'):
        generator.beam_search('The', max_tokens=2, beams=2, best=3)
    with pytest.raises(InputError, match='max_tokens .*0'):
        generator.beam_search('The', max_tokens=0)
