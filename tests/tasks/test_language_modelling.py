"""Tests of language modelling: batches, metrics, a whole run with evaluation, and errors for bad input."""

import dataclasses
import json
import math

import jax
import numpy as np
import pytest
from flax import nnx
from PIL import Image

from configs.lm import books_characters, enwik8_small
from configs.lm.common import SMALL_DECODERS, language_modelling_config
from efficient_attention.config.dict_conversion import from_dict
from efficient_attention.config.evaluation import EvalConfig
from efficient_attention.config.run import RunConfig
from efficient_attention.errors import InputError
from efficient_attention.inference.evaluate import evaluate, make_eval_step
from efficient_attention.inference.evaluate_workdir import evaluate_workdir
from efficient_attention.models.decoder import Decoder, check_causal
from efficient_attention.models.flops import encoder_flops
from efficient_attention.tasks.language_modelling import LanguageModellingTask
from efficient_attention.training.loop import train
from tests.training.tiny_run import write_corpus

FIELDS = {
    'data.units': 'bytes',
    'data.vocab_size': 256,
    'data.splitting': 'end',
    'data.held_out': 0.1,
    'data.test': 0.05,
    'data.length': 32,
    'model.width': 16,
    'model.max_length': 32,
    'optimizer.learning_rate': 1e-2,
    'optimizer.warmup_steps': 2,
    'train.steps': 12,
    'train.batch_size': 8,
    'train.log_every_steps': 4,
    'checkpoint.every_steps': 6,
    'eval.every_steps': 6,
    'eval.batch_size': 8,
}


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp('language_modelling')


@pytest.fixture(scope='module')
def config(folder) -> RunConfig:
    return config_of(folder)


def config_of(folder, **fields) -> RunConfig:
    config = language_modelling_config()
    config.data.source = write_corpus(folder)
    config.data.cache = str(folder / 'cache')
    config.update_from_flattened_dict(FIELDS | fields)
    return from_dict(config.to_dict(), RunConfig)


def make(config: RunConfig, **model) -> LanguageModellingTask:
    return make_evaluated(dataclasses.replace(config, model=dataclasses.replace(config.model, **model)))


@pytest.fixture(scope='module')
def task(config) -> LanguageModellingTask:
    return make(config)


def test_every_held_out_token_but_the_first_is_predicted_once(config):
    for split in ('held_out', 'test'):
        task = make_evaluated(config, split=split)
        batches = list(task.evaluation_batches(0, 1))
        targets = np.concatenate([batch['targets'][batch['weights'] > 0] for batch in batches])
        np.testing.assert_array_equal(targets, task.text.splits[split][1:])
        assert not batches[-1]['weights'].all(), 'the last batch should need filling up'


def test_held_out_batches_carry_the_unigram_models_losses(task):
    counts = np.bincount(task.text.splits['train'], minlength=256) + 1
    for batch in task.evaluation_batches(0, 1):
        expected = -np.log(counts[batch['targets']] / counts.sum())
        np.testing.assert_allclose(batch['unigram_losses'], expected, rtol=1e-6)


def test_shapes_without_data_are_those_of_the_batches(config, task):
    batch = next(iter(task.training_batches(0, 1, 0, 1)))
    planned = LanguageModellingTask.without_data(config).batch_shapes()
    assert {name: (rows.shape, rows.dtype) for name, rows in batch.items()} == {
        name: (rows.shape, rows.dtype) for name, rows in planned.items()
    }


@pytest.mark.parametrize('batches', ['streams', 'windows'])
def test_processes_and_restarts_read_the_same_batches(config, batches):
    task = make(dataclasses.replace(config, data=dataclasses.replace(config.data, batches=batches)))
    whole = list(task.training_batches(0, 4, 0, 1))
    halves = [list(task.training_batches(2, 4, process, 2)) for process in (0, 1)]
    for name in whole[0]:
        joined = [np.concatenate([left[name], right[name]]) for left, right in zip(*halves, strict=True)]
        np.testing.assert_array_equal(joined, [batch[name] for batch in whole[2:]])


def scored(task: LanguageModellingTask, params: dict) -> dict[str, float]:
    """Returns the held-out metrics of a task with these parameters."""
    graph, _ = nnx.split(nnx.eval_shape(lambda: task.make_model(nnx.Rngs(0))))
    # Compiles as for users: the tests' fast compilation adds losses in an order with larger rounding errors.
    options = {'xla_backend_optimization_level': 3}
    step = jax.jit(make_eval_step(graph, task.objective), compiler_options=options)
    batches = task.evaluation_batches(0, 1)
    return task.finish_metrics(evaluate(step, params, batches, jax.device_put))


def zeros_of(task: LanguageModellingTask) -> dict:
    """Returns the parameters of a task's model, all zero."""
    state = nnx.split(nnx.eval_shape(lambda: task.make_model(nnx.Rngs(0))))[1]
    return jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), nnx.to_pure_dict(state))


def test_a_uniform_model_scores_exactly_log2_of_the_vocabulary(task):
    metrics = scored(task, zeros_of(task))
    assert metrics['bits_per_byte'] == pytest.approx(math.log2(256), rel=1e-7)
    assert metrics['causal_lm_weight'] == len(task.text.splits['held_out']) - 1
    assert metrics['causal_lm_below_unigram'] < 0


@pytest.mark.parametrize(
    'units, name, value',
    [
        ('bytes', 'bits_per_byte', 3.0),
        ('characters', 'bits_per_character', 3.0),
        ('tokenizer', 'causal_lm_perplexity', 8),
        ('words', 'word_perplexity', 8),
    ],
)
def test_each_unit_has_its_metric(folder, units, name, value):
    task = make(config_of(folder, **{'data.units': units, 'data.tokenizer': 'train:bpe', 'data.vocab_size': 300}))
    metrics = task.finish_metrics({'causal_lm_loss': math.log(8), 'causal_lm_unigram_loss': math.log(64)})
    assert metrics[name] == pytest.approx(value) and metrics['causal_lm_below_unigram'] == pytest.approx(0.5)
    assert name in task.held_out_metrics
    others = {'bits_per_byte', 'bits_per_character', 'causal_lm_perplexity', 'word_perplexity'} - {name}
    assert not others & task.held_out_metrics


def image_config(folder, **fields) -> RunConfig:
    folder.mkdir(exist_ok=True)
    for number in range(30):
        pixels = np.random.default_rng(number).integers(0, 256, (4, 2, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f'{number:02d}.png')
    images = {'data.units': 'pixels', 'data.source': f'images:{folder}/*.png', 'data.image_shape': (4, 2, 3)}
    return config_of(folder, **images | {'data.length': 24, 'data.vocab_size': 257, 'model.max_length': 24} | fields)


def test_every_byte_of_a_held_out_image_is_predicted_and_measured(folder):
    task = make(image_config(folder / 'images'))
    rows = list(task.evaluation_batches(0, 1))
    images = len(task.text.splits['held_out']) // 24
    assert images == 3 and sum(batch['weights'].sum() for batch in rows) == images * 24
    assert task.finish_metrics({'causal_lm_loss': math.log(8)})['bits_per_dimension'] == pytest.approx(3)
    assert {int(batch['tokens'][row, 0]) for batch in rows for row in np.flatnonzero(batch['weights'][:, 0])} == {256}


def test_an_image_model_of_equal_values_scores_exactly_8_bits_per_dimension(folder):
    """All 256 values are equally probable, and the token before an image has probability 0."""
    task = make(image_config(folder / 'images'), output_bias=True)
    params = zeros_of(task)
    params['head']['bias'][256] = -1e9
    metrics = scored(task, params)
    assert metrics['bits_per_dimension'] == pytest.approx(8.0, rel=1e-6)
    assert metrics['causal_lm_weight'] == len(task.text.splits['held_out'])


def test_images_are_never_cut_by_an_evaluation(folder):
    config = image_config(folder / 'images')
    line = "eval.context 12 and eval.stride 12 cut images; with data.units 'pixels' they must be 0 or 24"
    with pytest.raises(InputError, match=f'^{line}$'):
        make_evaluated(config, context=12)
    assert make_evaluated(config, context=24).evaluation_protocol['stride'] == 24


def test_documents_are_cut_in_training_and_evaluation_where_asked(folder):
    fields = {'data.splitting': 'documents', 'data.test': 0.0, 'data.held_out': 0.5, 'data.batches': 'streams'}
    for cut in (False, True):
        config = config_of(folder / 'documents', **fields | {'data.cut_at_documents': cut})
        task = make(config)
        for batches in (task.training_batches(0, 40, 0, 1), task.evaluation_batches(0, 1)):
            kinds = {len(set(row[row > 0])) for batch in batches for row in batch['segments']}
            assert (max(kinds) > 1) == cut


def test_the_protocol_is_named(task):
    expected = {'split': 'held_out', 'protocol': 'no_context', 'context': 32, 'stride': 32, 'cut_at_documents': False}
    assert task.evaluation_protocol == expected


def make_evaluated(config: RunConfig, **fields) -> LanguageModellingTask:
    train = dataclasses.replace(config.train, batch_size=8, seed=0)
    return LanguageModellingTask(dataclasses.replace(config, train=train, eval=EvalConfig(batch_size=5, **fields)))


def test_stride_1_is_each_token_given_as_many_as_the_window_holds(config):
    """A stride of 1 equals brute force: one row for each token, with up to 16 tokens before it."""
    task = make_evaluated(config, split='test', context=16, stride=1)
    expected = {'split': 'test', 'protocol': 'sliding_window', 'context': 16, 'stride': 1, 'cut_at_documents': False}
    assert task.evaluation_protocol == expected
    ids = np.asarray(task.text.splits['test'], np.int32)[:60]
    task.text.splits['test'] = ids
    graph, params = nnx.split(nnx.jit(lambda: task.make_model(nnx.Rngs(0)))())
    means = evaluate(
        jax.jit(make_eval_step(graph, task.objective)), params, task.evaluation_batches(0, 1), jax.device_put
    )
    assert means['causal_lm_weight'] == len(ids) - 1
    model = nnx.merge(graph, params)
    read = jax.jit(lambda tokens, segments: jax.nn.log_softmax(model(tokens, segments)))
    losses = []
    for place in range(1, len(ids)):
        known = ids[max(0, place - 16) : place]
        row = np.zeros((1, 16), np.int32)
        row[0, : len(known)] = known
        log_p = np.asarray(read(row, (np.arange(16) < len(known)).astype(np.int32)[None]))
        losses.append(-log_p[0, len(known) - 1, ids[place]])
    assert means['causal_lm_loss'] == pytest.approx(np.mean(losses), rel=1e-5)


def test_a_step_costs_three_forward_passes(task, config):
    layers = encoder_flops(config.model, 32, predictions=0)
    assert task.training_flops() == 3 * 8 * (layers + 2 * 32 * 16 * 256)
    assert make(config, tied_output=False).training_flops() == task.training_flops()
    factorised = dataclasses.replace(config.model, embedding_width=8)
    layers = encoder_flops(factorised, 32, predictions=0)
    assert make(config, embedding_width=8).training_flops() == 3 * 8 * (layers + 2 * 32 * (16 * 8 + 8 * 256))


def test_the_vocabulary_is_left_in_the_workdir(folder, tmp_path):
    task = make(config_of(folder, **{'data.units': 'characters'}))
    task.save_assets(tmp_path)
    assert json.loads((tmp_path / 'characters.json').read_text()) == task.text.units.characters


def test_the_fingerprint_is_the_texts_own(config, folder, task):
    assert make(config).fingerprint == task.fingerprint == {'text': task.text.fingerprint}
    assert make(config_of(folder, **{'data.held_out': 0.2})).fingerprint != task.fingerprint


@pytest.mark.parametrize(
    'fields, line',
    [
        ({'data.length': 99_999, 'model.max_length': 99_999}, 'the text to train on has '),
        ({'model.vocab_size': 256, 'model.attention': 'window(4)'}, "model.attention 'window(4)' is not causal"),
        ({'data.units': 'characters', 'data.vocab_size': 9}, 'the text has a vocabulary of '),
        ({'data.units': 'words', 'data.vocab_size': 9}, 'the text has a vocabulary of '),
        ({'data.vocab_size': 100}, 'the text has a vocabulary of 256 bytes, above model.vocab_size 100'),
        ({'data.source': 'text:none.txt'}, "data.source 'text:none.txt': no file matches 'none.txt'"),
    ],
)
def test_bad_input_is_one_line(folder, fields, line):
    with pytest.raises(InputError) as caught:
        make(config_of(folder, **fields))
    assert '\n' not in str(caught.value) and str(caught.value).startswith(line)


def test_a_text_may_hold_out_nothing_but_not_too_little(folder, task):
    without = make(config_of(folder, **{'data.held_out': 0.0}))
    assert not len(without.text.splits['held_out']) and without.notes == []
    assert without.rows_per_epoch() > task.rows_per_epoch() == (len(task.text.splits['train']) - 1) // 32
    with pytest.raises(InputError, match='^the held-out text has 0 tokens, so nothing can be predicted in it; raise'):
        make(config_of(folder, **{'data.held_out': 1e-9}))


@pytest.mark.parametrize('mechanism', [*SMALL_DECODERS, 'books'])
def test_the_configs_are_small_causal_models(mechanism):
    made = books_characters.get_config() if mechanism == 'books' else enwik8_small.get_config(mechanism)
    config = from_dict(made.to_dict(), RunConfig)
    check_causal(config.model)
    shapes = nnx.eval_shape(lambda: Decoder(config.model, rngs=nnx.Rngs(0)))
    assert 7e5 < sum(leaf.size for leaf in jax.tree.leaves(nnx.state(shapes))) < 1e6


def test_an_unknown_mechanism_of_a_config_lists_the_known_ones():
    with pytest.raises(ValueError, match="unknown mechanism 'dense'; known: full, window, "):
        enwik8_small.get_config('dense')


@pytest.mark.lenient_promotion  # Optax multiplies Python floats by int32 counts, which the tests otherwise forbid.
def test_a_run_learns_and_its_workdir_evaluates_to_the_same_numbers(folder):
    workdir = folder / 'run'
    metrics = train(config_of(folder, **{'model.dropout_rate': 0.0, 'model.attention_dropout_rate': 0.0}), workdir)
    assert metrics['causal_lm_loss'] < math.log(256) - 1
    lines = [json.loads(line) for line in (workdir / 'metrics.jsonl').read_text().splitlines()]
    assert [line['step'] for line in lines if line['split'] == 'held_out'] == [6, 12]
    assert all('bits_per_byte' in line for line in lines)
    again = evaluate_workdir(workdir, batch_size=16)
    # One metric is a small difference of two losses, so it needs an absolute tolerance.
    assert {name: again[name] for name in metrics} == pytest.approx(metrics, rel=1e-5, abs=2e-6) and again['step'] == 12


@pytest.mark.parametrize(
    'split, context, message',
    [
        ('test', 0, r'^the run has no test split: it needs data\.test above 0'),
        ('held_out', 10**6, r'^eval\.context is 1000000; the held_out text has \d+ tokens$'),
    ],
)
def test_an_evaluation_that_the_text_has_too_little_for_is_refused(folder, split, context, message):
    config = config_of(folder, **{'data.test': 0.0, 'model.positions': 'sinusoidal'})
    with pytest.raises(InputError, match=message):
        make_evaluated(config, split=split, context=context)
