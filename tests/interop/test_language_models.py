"""Tests that GPT-2 folders match transformers, serve as workdirs do, and are exported or refused by name."""

import dataclasses
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file

import efficient_attention as ea
from efficient_attention.config.head import HeadConfig
from efficient_attention.config.model import ModelConfig
from efficient_attention.errors import InputError
from efficient_attention.inference.generate import TextGenerator, generate_tokens, read_prompts
from efficient_attention.inference.jax_export import open_exportable
from efficient_attention.inference.pretrained_models import pretrained_decoder
from efficient_attention.inference.sampling import Sampling, SamplingInputs
from efficient_attention.interop.compact_export import quantize, save_compact
from efficient_attention.interop.config_export import make_config_json
from efficient_attention.interop.config_import import parse_config_json, read_config_json
from efficient_attention.interop.config_json_keys import LANGUAGE_MODELLING
from efficient_attention.interop.encoder_adaptation import extend_positions, pick_layers
from efficient_attention.interop.huggingface_export import save_pretrained
from efficient_attention.interop.low_rank import low_rank
from efficient_attention.interop.pretrained import Pretrained, open_encoder, open_pretrained
from efficient_attention.interop.shrink import shrink
from efficient_attention.models.cached_decoding import CachedDecoder
from efficient_attention.models.decoder import Decoder
from efficient_attention.models.decoder_sizes import gpt2_fields
from efficient_attention.programs.convert import main as convert
from efficient_attention.training.initial_params import InitialParams
from efficient_attention.training.run import build_run
from tests.interop.folders import ARRAYS, FIXTURES
from tests.interop.gpt2_folders import (
    END,
    LANGUAGE_MODELS,
    SMALL,
    copied,
    run_config,
    start_fields,
    with_tokenizer,
)
from tests.training.tiny_run import drawn_workdir

NAMES = ('gpt2_1', 'gpt2_2')
PEERS = Path(__file__).resolve().parents[2] / '.venv-peers' / 'bin' / 'python'
DECODER = frozenset({'decoder'})
PROMPT = 'a dog runs'


@nnx.jit
def logits_of(model: nnx.Module, batch: dict[str, jax.Array]) -> jax.Array:
    return model(batch['input/input_ids'], batch['input/attention_mask'])


def logits_and_expected(folder: Path, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns the logits of a folder and those of transformers, on tokens that are no padding."""
    arrays = load_file(LANGUAGE_MODELS / name / ARRAYS)
    batch = {own: jnp.asarray(arrays[own]) for own in arrays if own.startswith('input/')}
    is_token_BL = arrays['input/attention_mask'] == 1
    found = logits_of(pretrained_decoder(open_pretrained(folder)), batch)
    return np.asarray(found)[is_token_BL], arrays['output/logits'][is_token_BL]


@pytest.mark.lenient_promotion  # Flax's norms compute in float32.
@pytest.mark.parametrize('name', NAMES)
def test_logits(name: str):
    ours, theirs = logits_and_expected(LANGUAGE_MODELS / name, name)
    np.testing.assert_allclose(ours, theirs, atol=1e-4)
    assert theirs.std() > 0.5


@pytest.mark.lenient_promotion
@pytest.mark.parametrize('name', NAMES)
def test_fifty_greedy_tokens(name: str):
    arrays = load_file(LANGUAGE_MODELS / name / ARRAYS)
    prompts_BL, expected = jnp.asarray(arrays['prompt']), arrays['output/greedy']
    graph, state = nnx.split(pretrained_decoder(open_pretrained(LANGUAGE_MODELS / name)))

    @jax.jit
    def generated(state: Any) -> jax.Array:
        cached = CachedDecoder(nnx.merge(graph, state), expected.shape[1])
        text = read_prompts(cached, prompts_BL, jnp.ones_like(prompts_BL))
        draw = SamplingInputs(jnp.int32(0), jnp.arange(61) != END)
        return generate_tokens(cached, text, 50, Sampling(temperature=0.0), draw, most=50)[0]

    np.testing.assert_array_equal(generated(state), expected[:, prompts_BL.shape[1] :])


def test_prefix_mask_buffers_and_a_copied_head_change_nothing(tmp_path: Path):
    def other(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        bare = {own.removeprefix('transformer.'): value for own, value in tensors.items()}
        masks = {f'h.{layer}.attn.bias': np.ones((1, 1, 57, 57), np.uint8) for layer in range(3)}
        masks['h.0.attn.masked_bias'] = np.array(-1e4, np.float32)
        return bare | masks | {'lm_head.weight': bare['wte.weight']}

    before = open_pretrained(LANGUAGE_MODELS / 'gpt2_1').params()
    folder = copied('gpt2_1', tmp_path / 'bare', other, n_inner=None, architectures=None)
    assert jax.tree.all(jax.tree.map(np.array_equal, before, open_pretrained(folder).params()))
    attention = before['decoder']['stack']['layers']['attention']
    assert attention['query']['kernel'].shape == (3, 18, 18)
    fused = load_file(LANGUAGE_MODELS / 'gpt2_1' / 'model.safetensors')['transformer.h.1.attn.c_attn.weight']
    np.testing.assert_array_equal(attention['key']['kernel'][1], fused[:, 18:36])


@pytest.mark.parametrize('size', ['small', 'medium', 'large', 'xl'])
def test_the_released_sizes_are_read_and_written(size: str):
    model = ModelConfig(**gpt2_fields(size))
    values = make_config_json(model, HeadConfig(), DECODER)
    assert (values['model_type'], values['architectures']) == ('gpt2', ['GPT2LMHeadModel'])
    assert values['n_inner'] == 4 * values['n_embd'] and values['activation_function'] == 'gelu_new'
    assert parse_config_json(values).model == model and 'efficient_attention' not in values
    released = {key: values[key] for key in ('vocab_size', 'n_embd', 'n_layer', 'n_head', 'n_positions')}
    assert parse_config_json(released | {'model_type': 'gpt2', 'n_ctx': 1024}).model == model


# ---- What is refused ----


@pytest.mark.parametrize(
    ('config', 'message'),
    [
        ({'scale_attn_by_inverse_layer_idx': True}, 'scale_attn_by_inverse_layer_idx is True; read here: False'),
        ({'add_cross_attention': True}, 'add_cross_attention is True; read here: False'),
        ({'tie_word_embeddings': False}, 'tie_word_embeddings is False; read here: True'),
        ({'activation_function': 'tanh'}, "activation_function is 'tanh'; read here: gelu, gelu_python, gelu_new"),
        ({'embd_pdrop': 0.2}, 'embd_pdrop is 0.2; it must be 0.0, as resid_pdrop is'),
        ({'n_embd': None}, 'n_embd is None; it must be a whole number'),
        ({'scale_attn_weights': 1}, 'scale_attn_weights is 1; it must be true or false'),
        ({'architectures': ['GPT2DoubleHeadsModel']}, 'read here: GPT2Model, GPT2LMHeadModel$'),
        ({'auto_map': {'AutoModel': 'm.M'}}, r'auto_map is .*; the model is code in its folder \(trust_remote_code\)'),
        ({'efficient_attention': {'model': {'attention': 'full'}}}, 'efficient_attention.model.attention is unknown'),
    ],
)
def test_settings_that_are_not_followed_are_named(config: dict, message: str, tmp_path: Path):
    with pytest.raises(InputError, match=f'^{tmp_path}/x/config.json: .*{message}'):
        open_pretrained(copied('gpt2_1', tmp_path / 'x', **config))


def test_upcasting_of_attention_is_only_precision(tmp_path: Path):
    folder = copied('gpt2_1', tmp_path / 'x', reorder_and_upcast_attn=True)
    assert open_pretrained(folder).model == open_pretrained(LANGUAGE_MODELS / 'gpt2_1').model


def without(name: str) -> Callable[[dict], dict]:
    return lambda tensors: {own: value for own, value in tensors.items() if own != name}


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        (without('transformer.h.1.attn.c_attn.weight'), 'missing: h.1.attn.c_attn.weight$'),
        (
            lambda tensors: tensors | {'transformer.h.0.attn.c_attn.bias': np.zeros(53, np.float32)},
            r'of another shape: transformer.h.0.attn.c_attn.bias \(53,\), not \(54,\)$',
        ),
        (lambda tensors: tensors | {'transformer.h.3.ln_1.bias': np.zeros(18)}, 'unexpected: transformer.h.3.ln_1'),
        (lambda tensors: tensors | {'lm_head.weight': np.zeros((61, 18))}, 'lm_head.weight differs from .*wte.weight'),
    ],
)
def test_tensors_that_do_not_fit_are_named(change: Callable[[dict], dict], message: str, tmp_path: Path):
    with pytest.raises(InputError, match=message):
        open_pretrained(copied('gpt2_1', tmp_path / 'x', change)).params()


@pytest.mark.parametrize(
    ('fields', 'message'),
    [
        ({'attention': 'causal & window(8)'}, "model.attention 'causal & window(8)'"),
        ({'positions': 'none', 'rotary': True}, "model.rotary True, model.positions 'none'"),
        ({'norm': 'post', 'embedding_norm': True}, "model.norm 'post', model.embedding_norm True"),
        ({'attention_bias': False, 'tied_output': False}, 'model.attention_bias False, model.tied_output False'),
        ({'head_width': 8, 'memory_length': 4}, 'model.head_width 8, model.memory_length 4'),
        ({'cell': 'lstm', 'heads': 2, 'attention': 'full', 'positions': 'none', 'feed_forward': False}, 'model.cell'),
    ],
)
def test_decoders_that_gpt2_cannot_hold_are_named(fields: dict, message: str):
    with pytest.raises(InputError, match=f'^no Hugging Face family has .*{re.escape(message)}'):
        make_config_json(dataclasses.replace(SMALL, **fields), HeadConfig(), DECODER)


def test_what_only_training_reads_is_kept_under_our_key():
    model = dataclasses.replace(SMALL, remat='full', loss_chunk=16, feed_forward_dropout_rate=0.2)
    assert parse_config_json(make_config_json(model, HeadConfig(), DECODER)).model == model


@pytest.mark.parametrize(
    ('use', 'message'),
    [
        (lambda one, _: shrink(one), 'cannot be shrunk'),
        (lambda one, _: low_rank(one, share=0.5), 'cannot be factored'),
        (lambda one, _: quantize(one, 'int8'), 'cannot be quantized'),
        (lambda one, out: save_compact(out, one), 'cannot be written as a compact export'),
        (lambda one, out: save_pretrained(out, one, compresses=True), 'cannot be exported in 8 bits'),
        (lambda one, _: pick_layers(one, '1,3'), 'cannot be reduced to some of its layers'),
        (lambda one, _: extend_positions(one, length=99), 'cannot be given other positions or another attention'),
    ],
)
def test_changes_before_an_export_are_refused(use: Callable[[Pretrained, Path], Any], message: str, tmp_path: Path):
    with pytest.raises(InputError, match=f'^a language model {message}; only models with an encoder can$'):
        use(open_pretrained(LANGUAGE_MODELS / 'gpt2_1'), tmp_path / 'out')


# ---- Folders in place of workdirs ----


@pytest.mark.lenient_promotion
def test_a_folder_generates_and_loads(tmp_path: Path):
    folder = with_tokenizer(copied('gpt2_1', tmp_path / 'gpt2'))
    generator = TextGenerator(folder)
    text = ''.join(generator(PROMPT, max_tokens=9, sampling=Sampling(temperature=0.0)))
    assert ea.pipeline('text-generation', folder, max_tokens=9, temperature=0)(PROMPT) == {'text': text}
    loaded = ea.load(folder, ea.Decoder)
    ids = loaded.tokenizer.encode(PROMPT)
    assert loaded.tokenizer.decode(ids) == PROMPT and loaded.tokenizer.longest == 57
    model = nnx.jit(lambda model, tokens_BL: model(tokens_BL, jnp.ones_like(tokens_BL)))
    for _ in range(9):  # The model does not read later tokens, so all rows have one length.
        row_1L = jnp.asarray(np.pad(ids, (0, 20 - len(ids)))[None])
        ids = np.append(ids, np.asarray(model(loaded.model, row_1L)[0, len(ids) - 1]).argmax())
    assert loaded.tokenizer.decode(ids) == text and text.startswith(PROMPT)
    exported = open_exportable(folder, length=20)
    found = exported.call(exported.params, row_1L, jnp.ones_like(row_1L))
    np.testing.assert_allclose(found['logits'], model(loaded.model, row_1L), atol=1e-5)


def test_what_a_folder_is_not_is_said_in_one_line(tmp_path: Path):
    folder = copied('gpt2_1', tmp_path / 'gpt2')
    with pytest.raises(InputError, match=r'no tokenizer there \(tokenizer.json, or vocab.json with merges.txt\)$'):
        TextGenerator(folder)
    with pytest.raises(InputError, match="and no checkpoint '7': it is no workdir"):
        TextGenerator(folder, checkpoint='7')
    with pytest.raises(InputError, match="^.*bert_1 was trained for 'none'; generating text needs a language model$"):
        TextGenerator(FIXTURES / 'bert_1')
    with pytest.raises(InputError, match='holds a language model, and an encoder or an encoder-decoder is needed'):
        open_encoder(folder)
    with_tokenizer(copied('gpt2_1', tmp_path / 'few', lambda tensors: tensors, vocab_size=60))
    with pytest.raises(InputError, match='the tokenizer has 61 tokens; the model has 60$'):
        TextGenerator(with_tokenizer(tmp_path / 'few'))
    with pytest.raises(InputError, match='needs an encoder-decoder$'):
        ea.pipeline('translation', folder)


# ---- Runs ----


@pytest.mark.lenient_promotion
def test_a_run_starts_from_a_folder_and_is_exported(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    tokens = {'data.units': 'tokenizer'} | start_fields(tmp_path)
    folder = tmp_path / 'gpt2'
    window = {'model.attention': 'causal & window(16)'}  # as wide as the rows
    config = run_config(tmp_path / 'corpus', **tokens, **window)
    run = build_run(config)
    params = InitialParams(config).make_initial_state(run).params
    wanted = open_pretrained(folder).params()['decoder']
    assert jax.tree.all(jax.tree.map(np.array_equal, wanted, jax.device_get(params)))
    workdir = drawn_workdir(build_run(run_config(tmp_path / 'corpus', **tokens)), tmp_path / 'run')
    convert_flags = ['convert', '--model', str(workdir), '--output', str(tmp_path / 'out')]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr('sys.argv', convert_flags)
        convert()
    assert '57 positions, attention causal' in capsys.readouterr().out
    exported = open_pretrained(tmp_path / 'out')
    assert exported.extra['eos_token_id'] == END and 'text-generation' in (tmp_path / 'out' / 'README.md').read_text()
    assert jax.tree.all(jax.tree.map(np.array_equal, open_pretrained(workdir).params(), exported.params()))
    texts = [''.join(TextGenerator(one)(PROMPT, max_tokens=5, seed=3)) for one in (workdir, tmp_path / 'out')]
    assert texts[0] == texts[1]
    # A run may also start from a workdir.
    again = run_config(tmp_path / 'corpus', **tokens | {'train.start_from': str(workdir)})
    InitialParams(again).make_initial_state(run)


@pytest.mark.lenient_promotion
@pytest.mark.parametrize(
    'attention',
    ['causal & window(16)', 'sparse_fixed(16, 4)', 'sparse_strided(16)', 'causal; causal; causal & window(16)'],
)
def test_another_attention_changes_only_texts_beyond_its_reach(attention: str, tmp_path: Path):
    """Each of these mechanisms is full attention for texts of at most 16 tokens."""
    fields = {'data.units': 'tokenizer', 'data.length': 32, 'model.attention': attention} | start_fields(tmp_path)
    config = run_config(tmp_path / 'corpus', **fields)
    params = InitialParams(config).make_initial_state(build_run(config)).params
    ours = nnx.merge(nnx.split(nnx.eval_shape(lambda: Decoder(config.model, rngs=nnx.Rngs(0))))[0], params)
    theirs = ea.load(tmp_path / 'gpt2', ea.Decoder).model
    tokens_BL = jnp.asarray(np.random.default_rng(0).integers(0, END, (2, 32)))
    model = nnx.jit(lambda model, tokens_BL: model(tokens_BL, jnp.ones_like(tokens_BL)))
    for length in (9, 16):
        short_BL = tokens_BL[:, :length]
        np.testing.assert_allclose(model(ours, short_BL), model(theirs, short_BL), atol=1e-5)
    found, full = np.asarray(model(ours, tokens_BL)), np.asarray(model(theirs, tokens_BL))
    np.testing.assert_allclose(found[:, :16], full[:, :16], atol=1e-5)
    assert np.abs(found - full)[:, 17:].max(axis=(1, 2)).min() > 1e-2


@pytest.mark.lenient_promotion
@pytest.mark.parametrize(
    ('fields', 'message'),
    [
        ({'data.tokenizer': 'train:bpe', 'data.vocab_size': 300}, r'add --config.data.tokenizer=.*vocab.json$'),
        ({'model.feed_forward_width': 24}, r'feed_forward/down/kernel has the shape \(3, 72, 18\), not \(3, 24, 18\)$'),
    ],
)
def test_a_run_that_does_not_fit_its_start_is_named(fields: dict, message: str, tmp_path: Path):
    config = run_config(tmp_path / 'corpus', **{'data.units': 'tokenizer'} | start_fields(tmp_path) | fields)
    with pytest.raises(InputError, match=message):
        InitialParams(config).make_initial_state(build_run(config))


@pytest.mark.parametrize(
    ('fields', 'message'),
    [
        ({'data.units': 'bytes', 'data.tokenizer': ''}, "^data.units is 'bytes'; train.start_from .* has 'tokenizer'$"),
        ({'train.start_from': str(FIXTURES / 'bert_1')}, "bert_1 was trained for 'none'; needed: a language model$"),
        ({'task': 'pretraining'}, 'gpt2 holds a language model, and an encoder or an encoder-decoder is needed'),
    ],
)
def test_a_start_of_another_kind_is_named(fields: dict, message: str, tmp_path: Path):
    config = run_config(tmp_path / 'corpus', **{'data.units': 'tokenizer'} | start_fields(tmp_path) | fields)
    with pytest.raises(InputError, match=message):
        InitialParams(config).pretrained  # noqa: B018  a property that opens the checkpoint


# ---- Against transformers, if it is installed ----


@pytest.mark.real
@pytest.mark.skipif(not PEERS.exists(), reason='needs transformers, see `make peers`')
def test_exports_are_loaded_by_transformers_and_agree(tmp_path: Path):
    for name in NAMES:
        save_pretrained(tmp_path / name, dataclasses.replace(open_pretrained(LANGUAGE_MODELS / name), extra={}))
        shutil.copyfile(LANGUAGE_MODELS / name / ARRAYS, tmp_path / name / ARRAYS)
        (tmp_path / name / 'ending').write_text('LMHeadModel')
    program = Path(__file__).with_name('load_exports.py')
    folders = [tmp_path / name for name in NAMES]
    done = subprocess.run([PEERS, program, *folders], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    differences = json.loads(done.stdout.splitlines()[-1])
    assert len(differences) == len(NAMES) and all(own < 1e-4 for own in differences.values())


def test_exported_folders_hold_the_same_tensors(tmp_path: Path):
    for name in NAMES:
        pretrained = open_pretrained(LANGUAGE_MODELS / name)
        save_pretrained(tmp_path / name, pretrained)
        written, before = (load_file(one / name / 'model.safetensors') for one in (tmp_path, LANGUAGE_MODELS))
        plain = {f'transformer.{own.removeprefix("transformer.")}': value for own, value in before.items()}
        assert written.keys() == plain.keys()
        assert all(np.array_equal(written[own], value) for own, value in plain.items())
        assert pretrained.problem == LANGUAGE_MODELLING
        values = read_config_json(tmp_path / name)
        kept = read_config_json(LANGUAGE_MODELS / name) | {'architectures': ['GPT2LMHeadModel']}
        assert values == kept | {'n_inner': values['n_inner']}
