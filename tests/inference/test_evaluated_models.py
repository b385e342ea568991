"""Tests that language models of folders and runs are evaluated on text that the caller names."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import efficient_attention as ea
from efficient_attention.errors import InputError
from efficient_attention.inference import evaluated_models
from efficient_attention.inference.evaluate_workdir import evaluate_workdir
from efficient_attention.interop.pretrained import open_pretrained
from efficient_attention.programs.eval import main
from efficient_attention.training.run import build_run
from tests.interop.folders import FIXTURES
from tests.interop.gpt2_folders import LANGUAGE_MODELS, copied, run_config, start_fields, with_tokenizer
from tests.training.tiny_run import drawn_workdir, fresh_workdir, write_corpus

pytestmark = pytest.mark.lenient_promotion
TEXT = 'the dog runs, the old dog sings. ' * 4 + 'a tree falls near the house; who sings?' + ' ∑'
PARTS = {'context': 16, 'stride': 16}, {'context': 16, 'stride': 5}, {'context': 20, 'stride': 19}, {'context': 57}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns a GPT-2 folder with a tokenizer; beside it is text.txt, and the working folder is empty."""
    (tmp_path / 'text.txt').write_text(TEXT)
    (tmp_path / 'empty').mkdir()
    monkeypatch.chdir(tmp_path / 'empty')
    return with_tokenizer(copied('gpt2_1', tmp_path / 'gpt2'))


def source_beside(folder: Path) -> str:
    return f'text:{folder.parent}/text.txt'


def check_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name] == (value if isinstance(value, str) else pytest.approx(value, rel=1e-5)), name


def window_losses(folder: Path, ids: np.ndarray, context: int, stride: int) -> np.ndarray:
    """Returns the loss of each token except the first, computed window by window with a model outside the library's
    evaluation.
    """
    model = ea.load(folder, ea.Decoder).model
    log_probabilities = nnx.jit(
        lambda model, row_1L: jax.nn.log_softmax(model(row_1L, jnp.ones_like(row_1L)).astype(jnp.float32))
    )
    losses: list[float] = []
    start = 0
    while len(losses) < len(ids) - 1:
        tokens, targets = ids[start : start + context], ids[start + 1 : start + context + 1]
        row_1L = jnp.asarray(np.pad(tokens, (0, context - len(tokens)))[None])
        log_LV = np.asarray(log_probabilities(model, row_1L)[0])
        row = [-log_LV[place, target] for place, target in enumerate(targets)]
        losses += row[len(losses) - start :]
        start += stride
    return np.array(losses)


@pytest.mark.parametrize('parts', PARTS)
def test_a_folder_scores_as_a_loop_over_its_windows(parts: dict[str, int], folder: Path):
    found = evaluate_workdir(folder, source=source_beside(folder), batch_size=3, **parts)
    ids = ea.load(folder, ea.Decoder).tokenizer.encode(TEXT)
    stride = parts.get('stride', parts['context'])
    losses = window_losses(folder, ids, parts['context'], stride)
    assert len(losses) == len(ids) - 1 == found['causal_lm_weight'] > 57
    assert found['causal_lm_loss'] == pytest.approx(losses.mean(), abs=1e-4)
    assert found['bits_per_byte'] == pytest.approx(losses.sum() / math.log(2) / len(TEXT.encode()), rel=1e-4)
    assert found['causal_lm_perplexity'] == pytest.approx(math.exp(losses.mean()), rel=1e-4)
    told = {name: found[name] for name in ('source', 'context', 'stride', 'protocol')}
    name = 'no_context' if stride == parts['context'] else 'sliding_window'
    settings = {'source': source_beside(folder), 'context': parts['context'], 'stride': stride, 'protocol': name}
    assert told == settings and not {'step', 'split', 'causal_lm_unigram_loss'} & found.keys()


def test_neither_the_chunks_of_the_loss_nor_the_batch_matter(folder: Path, monkeypatch: pytest.MonkeyPatch):
    found = evaluate_workdir(folder, source=source_beside(folder))
    monkeypatch.setattr(evaluated_models, 'FOLDER_CHUNK', 7)
    check_same(evaluate_workdir(folder, source=source_beside(folder), batch_size=2), found)


def test_the_command_prints_the_metrics(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    flags = ['--workdir', str(folder), '--source', source_beside(folder), '--stride', '9']
    monkeypatch.setattr('sys.argv', ['eval', *flags])
    main()
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    check_same(found, ea.evaluate(folder, source=source_beside(folder), stride=9, batch_size=2))
    assert found['context'] == 57


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        ({'source': None}, 'is a Hugging Face folder, which has no held-out text; name the text .*--source=text:data'),
        ({'context': 58}, 'eval.context 58 is beyond the position table, model.max_length 57; .* at most 57$'),
        ({'context': 16, 'stride': 17}, 'eval.stride is 17, above eval.context 16: tokens would be left out$'),
        ({'stride': 58}, 'eval.stride is 58, above eval.context 57'),
        ({'checkpoint': '7'}, "has one set of parameters and no checkpoint '7': it is no workdir$"),
        ({'memory_length': 8}, 'memory_length does not apply to .*gpt2, a Hugging Face folder; context and stride do$'),
        ({'beams': 2}, 'beams does not apply to .*gpt2, a Hugging Face folder'),
        ({'split': 'test'}, "split names a part of a run's own text, and source is other text; give one of the two$"),
        ({'source': 'text.txt'}, "^source is 'text.txt'; known: stdlib, text:<glob>"),
        ({'source': 'text:none/*.txt'}, "^source 'text:none/.*txt': "),
        ({'batch_size': 0}, 'eval.batch_size is 0'),
    ],
)
def test_options_that_do_not_fit_a_folder_are_named(options: dict[str, Any], message: str, folder: Path):
    with pytest.raises(InputError, match=message) as raised:
        evaluate_workdir(folder, **{'source': source_beside(folder)} | options)
    assert '\n' not in str(raised.value)
    assert not list(Path().iterdir()), 'A refused evaluation prepares no text.'


def test_folders_that_cannot_be_evaluated_are_named(folder: Path):
    source = source_beside(folder)
    with pytest.raises(
        InputError, match=r'bert_1 is a Hugging Face folder, and no run .*`efficient-attention predict`'
    ):
        evaluate_workdir(FIXTURES / 'bert_1', source=source)
    with pytest.raises(InputError, match=r'no tokenizer there \(tokenizer.json, or vocab.json with merges.txt\)$'):
        evaluate_workdir(LANGUAGE_MODELS / 'gpt2_1', source=source)
    (folder.parent / 'text.txt').write_text('a')
    with pytest.raises(InputError, match=f"^source '{source}' has fewer than 2 tokens, so nothing can be predicted$"):
        evaluate_workdir(folder, source=source)
    encoder = fresh_workdir(folder.parent / 'encoder')
    with pytest.raises(InputError, match="holds a run of the task 'pretraining'; source names text for language"):
        evaluate_workdir(encoder, source=source)


# ---- Runs ----


def test_a_run_of_the_same_parameters_scores_the_same_on_the_same_text(folder: Path):
    tokens = {'data.units': 'tokenizer', **start_fields(folder.parent / 'run'), 'train.start_from': ''}
    run = build_run(run_config(folder.parent / 'corpus', **tokens))
    state = run.init_random_state()
    params = jax.tree.map(
        lambda leaf, own: jax.device_put(own, leaf.sharding), state.params, open_pretrained(folder).params()['decoder']
    )
    workdir = drawn_workdir(run, folder.parent / 'run' / 'workdir', dataclasses.replace(state, params=params))
    options = {'source': source_beside(folder), 'context': 12, 'stride': 4}
    of_run, of_folder = (evaluate_workdir(one, **options, batch_size=4) for one in (workdir, folder))
    assert of_run.pop('step') == 0
    check_same(of_run, of_folder)


@pytest.mark.parametrize('units', ['bytes', 'characters', 'words'])
def test_a_run_reads_other_text_in_its_own_vocabulary(units: str, folder: Path):
    corpus = write_corpus(folder.parent / 'corpus').removesuffix('#paragraphs')
    fields = {'data.units': units, 'data.tokenizer': '', 'data.vocab_size': 256, 'data.splitting': 'end'}
    fields |= {'data.held_out': 0.2, 'data.source': corpus, 'eval.split': 'test', 'data.test': 0.1}
    run = build_run(run_config(folder.parent / 'corpus', **fields))
    workdir = drawn_workdir(run, folder.parent / 'run')
    text = run.task.text
    (folder.parent / 'text.txt').write_text(text.units.decode(text.splits['held_out']))
    own = evaluate_workdir(workdir, split='held_out', stride=5)
    found = evaluate_workdir(workdir, source=source_beside(folder), stride=5)
    assert found.pop('source') == source_beside(folder) and own.pop('split') == 'held_out'
    of_unigram = {name for name in own if 'unigram' in name}
    assert len(of_unigram) == 2 and own.keys() - found.keys() == of_unigram
    bits = found.pop('bits_per_byte') if units != 'bytes' else own['bits_per_byte']
    if units == 'characters':  # The text has one byte per character, and all but the first are predicted.
        assert bits == pytest.approx(found['bits_per_character'], rel=1e-2)
    check_same(found, {name: own[name] for name in found})
