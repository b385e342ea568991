"""Tests that encoder-decoders match transformers: states, logits and weights to 5e-5, and all tokens of `generate`."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from tokenizers import Tokenizer, models, pre_tokenizers

from efficient_attention.attention.attend import attention_weights
from efficient_attention.attention.parsing import parse_mechanism
from efficient_attention.config import layer
from efficient_attention.inference.pipeline import pipeline
from efficient_attention.inference.search_settings import SearchSettings
from efficient_attention.inference.seq2seq_generator import Seq2SeqGenerator, SourceBatching
from efficient_attention.inference.translator import DecodingOptions, open_translator
from efficient_attention.interop.pretrained import open_pretrained
from efficient_attention.models.encoder_decoder import EncoderDecoder
from tests.interop.folders import TEXT_TO_TEXT, TEXT_TO_TEXT_NAMES, family_of, text_to_text_arrays

TOLERANCE = 5e-5


def module(name: str, dtype: str = 'float32') -> EncoderDecoder:
    """Returns the model of a fixture; fails if the names of its parameters differ."""
    pretrained = open_pretrained(TEXT_TO_TEXT / name)
    params = jax.tree.map(lambda param: param.astype(dtype), pretrained.params())
    config = dataclasses.replace(pretrained.model, dtype=dtype)
    graph, state = nnx.split(nnx.eval_shape(lambda: EncoderDecoder(config, rngs=nnx.Rngs(0))))
    assert jax.tree.structure(nnx.to_pure_dict(state)) == jax.tree.structure(params)
    return nnx.merge(graph, params)


@nnx.jit
def outputs(model: EncoderDecoder, batch: dict[str, jax.Array]) -> dict[str, Any]:
    """Returns the encoder's hidden states, the logits, and the cross-attention weights [N, B, H, L, M]."""
    source_segments_BM, segments_BL = batch['attention_mask'], batch['decoder_attention_mask']
    other = model.encode(batch['input_ids'], source_segments_BM)
    hidden_BLD, taps = model.decoder.with_layer_activations(batch['decoder_input_ids'], segments_BL, other=other)
    operands = taps.attention['cross_attention']
    options = {'query_segments': segments_BL, 'key_segments': source_segments_BM}
    weights = [
        attention_weights(q_BLHK, k_BMHK, parse_mechanism('full'), **options)
        for q_BLHK, k_BMHK in zip(operands.query_BLHK, operands.key_BMHK, strict=True)
    ]
    return {'encoder': other.states_BMD, 'logits': model.logits(hidden_BLD), 'cross': jnp.stack(weights)}


@pytest.mark.lenient_promotion  # Flax's norms compute in float32.
@pytest.mark.parametrize('name', TEXT_TO_TEXT_NAMES)
def test_vectors_logits_and_cross_weights(name: str, monkeypatch: pytest.MonkeyPatch):
    arrays = text_to_text_arrays(name)
    batch = {own.removeprefix('input/'): jnp.asarray(arrays[own]) for own in arrays if own.startswith('input/')}
    rough = jax.tree.map(np.asarray, outputs(module(name), batch))
    # These models amplify float32 rounding so much that, on some processors, it exceeds any useful tolerance.
    monkeypatch.setattr(layer, 'DTYPES', ('float32', 'float64'))
    with jax.enable_x64(True):
        ours = jax.tree.map(np.asarray, outputs(module(name, 'float64'), batch))
    for own, array in ours.items():
        assert rough[own].dtype == np.float32 and np.abs(rough[own] - array).max() < 1e-4 * np.abs(array).max()
    is_source_BM, is_target_BL = batch['attention_mask'] == 1, batch['decoder_attention_mask'] == 1
    layers = sum(own.startswith('output/cross/') for own in arrays)
    theirs = np.stack([arrays[f'output/cross/{layer}'] for layer in range(layers)])
    assert ours['cross'].shape == theirs.shape
    pairs = [
        (ours['encoder'][is_source_BM], arrays['output/encoder'][is_source_BM]),
        (ours['logits'][is_target_BL], arrays['output/logits'][is_target_BL]),
        (ours['cross'].swapaxes(2, 3)[:, is_target_BL], theirs.swapaxes(2, 3)[:, is_target_BL]),
    ]
    for one, other in pairs:
        np.testing.assert_allclose(one, other, atol=TOLERANCE, rtol=TOLERANCE)
        assert other.std() > 0.02  # Random parameters must not give constant outputs.


# scripts/make_fixtures/encoder_decoders.py ran `generate` with these settings.
SEARCHES = {'greedy': {'beams': 1}, 'beam': {'beams': 4}}
GREEDY = ('t5_1', 'bart_2', 'marian_1')  # Greedy search of the other models is slow and adds little to four beams.
# The test of texts already compares the four beams of these models token by token.
AS_TEXTS = ('t5_1', 'bart_1', 'bart_2')
NEW_TOKENS = 12


def generated(name: str, kind: str) -> list[list[int]]:
    """Returns the tokens that `generate` made of each source, without start symbol, end symbol and padding."""
    end = open_pretrained(TEXT_TO_TEXT / name).generation['eos_token_id']
    rows = [row[1:] for row in text_to_text_arrays(name)[f'output/{kind}'].tolist()]
    return [row[: row.index(end)] if end in row else row for row in rows]


def sources_of(name: str) -> list[np.ndarray]:
    """Returns the sources of `generate`, without padding."""
    arrays = text_to_text_arrays(name)
    return [
        row[mask == 1] for row, mask in zip(arrays['source/input_ids'], arrays['source/attention_mask'], strict=True)
    ]


@pytest.mark.parametrize('name', TEXT_TO_TEXT_NAMES)
def test_the_stored_texts_tell_searches_apart(name: str):
    """The stored texts detect a wrong search: one that ignores sources, beams or end symbols finds other texts."""
    greedy, beam = generated(name, 'greedy'), generated(name, 'beam')
    for texts in (greedy, beam):
        assert len(set(map(tuple, texts))) == len(texts) == 4 and all(len(set(text)) > 1 for text in texts)
    assert sum(one != other for one, other in zip(greedy, beam, strict=True)) > 1
    lengths = sorted(map(len, beam))
    assert lengths[0] < NEW_TOKENS - 1 <= lengths[-1]
    assert [family_of(own) for own in TEXT_TO_TEXT_NAMES] == ['bart', 'bart', 'marian', 'pegasus', 't5', 't5']


def search_of(name: str, kind: str) -> SearchSettings:
    """Returns the settings of `generate`'s search, with the tokens that generation_config.json forces."""
    generation = open_pretrained(TEXT_TO_TEXT / name).generation
    forced = {'first': generation.get('forced_bos_token_id', -1), 'forces_end': 'forced_eos_token_id' in generation}
    fields = {'max_tokens': NEW_TOKENS, 'end': generation['eos_token_id']}
    return SearchSettings(**SEARCHES[kind], penalty='length', alpha=1.0, **fields, **forced)


@pytest.mark.parametrize(
    ('name', 'kind'),
    [
        pytest.param(name, kind, marks=() if kind == 'beam' or name in GREEDY else pytest.mark.slow)
        for name in TEXT_TO_TEXT_NAMES
        for kind in SEARCHES
        if kind == 'greedy' or name not in AS_TEXTS
    ],
)
def test_tokens_of_generate(name: str, kind: str):
    start = open_pretrained(TEXT_TO_TEXT / name).generation['decoder_start_token_id']
    graph, params = nnx.split(module(name))
    batching = SourceBatching(rows=4, ratio=0.0, extra=NEW_TOKENS)
    transducer = Seq2SeqGenerator(graph, params, search_of(name, kind), prompt=[start], batching=batching)
    found = [targets[0].ids.tolist() for targets in transducer(sources_of(name))]
    assert found == generated(name, kind)


# ---- Tests of texts, through the functions that users call ----

T5_PIECES = {0: '<pad>', 1: '</s>', 2: '<unk>', 59: '<extra_id_1>', 60: '<extra_id_0>'}
PIECES = {'t5': T5_PIECES, 'bart': {0: '<s>', 1: '<pad>', 2: '</s>', 3: '<unk>'}}


def with_tokenizer(name: str, folder: Path) -> list[str]:
    """Copies a fixture, writes a tokenizer.json whose words are numbers, and returns its pieces."""
    shutil.copytree(TEXT_TO_TEXT / name, folder)
    special = PIECES[family_of(name)]
    pieces = [special.get(id, str(id)) for id in range(61)]
    tokenizer = Tokenizer(models.WordLevel({piece: id for id, piece in enumerate(pieces)}, unk_token='<unk>'))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(list(special.values()))
    tokenizer.save(str(folder / 'tokenizer.json'))
    return pieces


@pytest.mark.parametrize('name', AS_TEXTS)
def test_texts_of_a_folder_are_those_of_generate(name: str, tmp_path: Path):
    """The texts of a folder equal those of `generate`.

    For bart_1 two tokens are forced. bart_2 has a forced token only in config.json, which transformers ignores too.
    """
    pieces = with_tokenizer(name, tmp_path / name)
    texts = [' '.join(pieces[id] for id in ids if id > 3) for ids in sources_of(name)]
    fields = {'penalty': 'length', 'alpha': 1.0, 'max_tokens': NEW_TOKENS, 'ratio': 0.0, 'extra': NEW_TOKENS}
    made = open_translator(tmp_path / name, decoding=DecodingOptions(**fields, batch_size=4))(texts)
    theirs = generated(name, 'beam')
    assert [best[0].pieces for best in made] == [tuple(pieces[id] for id in ids) for ids in theirs]
    expected = [' '.join(pieces[id] for id in ids if id > 3) for ids in theirs]
    assert [best[0].text for best in made] == expected
    if name == 't5_1':  # A pipeline gives the same texts, sentinels included.
        assert any('<extra_id_' in text for text in expected)
        use = pipeline('text2text-generation', tmp_path / name, **fields, batch_size=4)
        assert [one['text'] for one in use(texts)] == expected
