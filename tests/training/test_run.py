"""Tests building a run from its config, and the error line for each thing that does not fit."""

import jax
import numpy as np
import pytest

from efficient_attention.errors import InputError
from efficient_attention.training.run import build_run
from tests.training.tiny_run import tiny_config, write_corpus

pytestmark = [pytest.mark.lenient_promotion, pytest.mark.devices]  # Optax mixes Python floats with int32 counts


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp('run')


@pytest.fixture(scope='module')
def on_mesh(folder):
    run = build_run(tiny_config(folder, **{'mesh.fsdp': 2, 'mesh.tensor': 2}))
    return run, run.init_random_state()


def test_the_drawn_state_is_laid_out_as_promised(on_mesh):
    run, state = on_mesh
    for leaf, abstract in zip(jax.tree.leaves(state), jax.tree.leaves(run.abstract_state), strict=True):
        assert (leaf.shape, leaf.dtype, leaf.sharding) == (abstract.shape, abstract.dtype, abstract.sharding)
    assert int(state.step) == 0
    assert run.parameter_count() == sum(leaf.size for leaf in jax.tree.leaves(state.params))
    assert run.describe_run() == f'{run.parameter_count():,} parameters on 8 cpu device(s) (data 2 x fsdp 2 x tensor 2)'


def test_initial_parameters_follow_the_seed_and_not_the_mesh(folder, on_mesh):
    def params(seed: int) -> dict:
        return (
            build_run(tiny_config(folder, **{'train.seed': seed}), devices=jax.devices()[:1]).init_random_state().params
        )

    same, other = params(0), params(1)
    jax.tree.map(np.testing.assert_array_equal, same, on_mesh[1].params)
    kernels = [tree['masked_lm']['transform']['kernel'] for tree in (same, other)]
    assert np.abs(kernels[0] - kernels[1]).max() > 1e-3


def test_an_albert_has_no_axis_of_layers(folder):
    shared, separate = (
        build_run(tiny_config(folder, **{'model.sharing': sharing})).abstract_state.params['encoder']['stack']['layers']
        for sharing in ('all', 'none')
    )
    jax.tree.map(lambda one, many: np.testing.assert_equal(many.shape, (2, *one.shape)), shared, separate)


@pytest.mark.parametrize(
    'fields, message',
    [
        ({'train.batch_size': 12}, r'train\.batch_size 12 does not divide over 8 devices'),
        ({'train.micro_batches': 2}, r'train\.batch_size 8 does not divide over 8 devices .* x 2 micro-batches'),
        ({'eval.batch_size': 4}, r'eval\.batch_size 4 does not divide over 8 devices'),
        ({'mesh.tensor': 4, 'model.heads': 2}, r'model\.heads 2 does not divide over mesh\.tensor 4'),
        ({'mesh.data': 5}, r'mesh\.data 5 x .* = 5 devices, but there are 8'),
        ({'data.source': 'txet:x'}, r"data\.source is 'txet:x'; known: stdlib, text:"),
        ({'data.source': 'text:nowhere/*.txt'}, r"data\.source 'text:nowhere/\*\.txt': no file matches"),
        ({'data.tokenizer': 'nowhere/vocab.txt'}, r'nowhere/vocab\.txt'),
        ({'data.length': 64}, r'data\.length 64 is beyond the position table, model\.max_length 32'),
    ],
    ids=str,
)
def test_what_does_not_fit_is_named(folder, fields: dict, message: str):
    with pytest.raises(InputError, match=message) as caught:
        build_run(tiny_config(folder, **fields))
    assert '\n' not in str(caught.value)


@pytest.mark.parametrize(
    'content, message',
    [
        (b'', r'no text in it'),
        (b' \n\n \n', r'no text in it'),
        (b'A good line.\n\nA b\xe4d one.\n', r'corpus\.txt: byte 0xe4 at offset 17 is not UTF-8'),
        (b'One document alone.\n', r'one document'),
    ],
    ids=['empty', 'blank', 'not UTF-8', 'one document'],
)
def test_a_corpus_that_does_not_serve_is_named(tmp_path, content: bytes, message: str):
    config = tiny_config(tmp_path)
    (tmp_path / 'corpus.txt').write_bytes(content)
    with pytest.raises(InputError, match=message):
        build_run(config)


def test_a_vocabulary_without_a_mask_token_is_named(tmp_path):
    write_corpus(tmp_path)
    vocabulary = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', *'abcdefghijklmnopqrstuvwxyz']
    (tmp_path / 'vocab.txt').write_text('\n'.join(vocabulary) + '\n', encoding='utf-8')
    fields = {'data.tokenizer': str(tmp_path / 'vocab.txt'), 'data.vocab_size': len(vocabulary)}
    with pytest.raises(InputError, match=r'vocab\.txt.*\[MASK\]'):
        build_run(tiny_config(tmp_path, **fields))


def test_a_batch_with_an_id_beyond_the_vocabulary_goes_to_no_device(on_mesh):
    run, _ = on_mesh
    batch = next(run.task.training_batches(0, 1, 0, 1))
    batch['masked_tokens'][2, 0] = run.config.model.vocab_size
    for on_devices in (run.put_batch_on_devices, run.evaluation.put_batch_on_devices):
        with pytest.raises(InputError, match="^row 2 of a batch has the token id 70 in 'masked_tokens'"):
            on_devices(batch)


def test_a_batch_whose_lengths_contradict_its_segments_goes_to_no_device(on_mesh):
    run, _ = on_mesh
    batch = next(run.task.training_batches(0, 1, 0, 1))
    tokens = int(batch['lengths'][2])
    batch['segments'][2, tokens - 1] = 2
    expected = f'^a batch contradicts itself: lengths of row 2 is {tokens}, but segments of this row is not {tokens} '
    for on_devices in (run.put_batch_on_devices, run.evaluation.put_batch_on_devices):
        with pytest.raises(InputError, match=expected):
            on_devices(batch)


def test_rounding_that_rounds_nothing_is_refused(folder):
    nothing = {'model.quantization': 'int8', 'model.float_layers': ('.',)}
    with pytest.raises(InputError, match=r'^model.float_layers \. leaves no layer to round'):
        build_run(tiny_config(folder, **nothing))
