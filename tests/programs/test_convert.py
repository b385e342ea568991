"""Tests conversion from the command line: folders to folders, longer models, and one line for bad input."""

import runpy
import shutil
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from efficient_attention.interop.pretrained import open_pretrained
from efficient_attention.programs.convert import changes_model, define_flags
from tests.interop.folders import FIXTURES, TEXT_TO_TEXT, copied
from tests.training.tiny_run import fresh_workdir

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture, tmp_path: Path):
    """Returns a function that runs the script in this process: exit code and errors; the output is in `run.printed`."""

    def run(source: Path, *arguments: str) -> tuple[int, str]:
        words = ['--model', str(source), '--output', str(tmp_path / 'out'), *arguments]
        monkeypatch.setattr(sys, 'argv', ['convert.py', *words])
        code = 0
        try:
            runpy.run_path(str(ROOT / 'scripts' / 'convert.py'), run_name='__main__')
        except SystemExit as exited:
            code = exited.code
        printed = capfd.readouterr()
        run.printed = printed.out
        return code, printed.err

    return run


def test_a_card_is_written_and_the_folder_is_uploaded(call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pushed = []
    monkeypatch.setattr('efficient_attention.interop.hub_upload.open_hub', lambda name: f'the hub of {name}')
    monkeypatch.setattr(
        'efficient_attention.interop.hub_upload.push_folder', lambda *words: pushed.append(words) or 'https://hub'
    )
    assert call(FIXTURES / 'albert_1', '--push', 'me/mine', '--license', 'mit')[0] == 0
    assert pushed == [('the hub of me/mine', tmp_path / 'out', 'me/mine')]
    assert 'uploaded to https://hub' in call.printed
    assert 'license: "mit"' in (tmp_path / 'out' / 'README.md').read_text()
    open_pretrained(tmp_path / 'out')  # the checksums allow the card


@pytest.mark.lenient_promotion  # building a run creates its optimizer
def test_the_card_claims_metrics_only_of_an_unchanged_model(call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    metrics, workdir = {'step': 0, 'loss': 2.5}, fresh_workdir(tmp_path)
    monkeypatch.setattr('efficient_attention.interop.model_card.checkpoint_metrics', lambda *_: metrics)
    for words, library, claims in (
        ((), 'transformers', True),
        (('--small',), 'efficient-attention', True),
        (('--quantize', 'int8'), 'efficient-attention', False),
    ):
        code, err = call(workdir, *words)
        assert code == 0, err
        card = (tmp_path / 'out' / 'README.md').read_text()
        assert f'library_name: "{library}"' in card and ('model-index' in card) == claims
        assert ('before the change: loss 2.5.' in card) == (not claims)
        shutil.rmtree(tmp_path / 'out')


@pytest.mark.parametrize(
    'word', ['--quantize=int8', '--low_rank=0.9', '--ranks=up=4', '--shrink', '--pattern=full', '--length=9',
             '--global_tokens=1', '--compressed']
)  # fmt: skip
def test_flags_that_change_the_model(word: str):
    options = define_flags()
    options(['convert.py', word])
    assert changes_model(options)
    unchanged = define_flags()
    unchanged(['convert.py', '--small', '--license=mit'])
    assert not changes_model(unchanged)


def test_a_bad_repository_name_is_found_before_anything_is_written(call, tmp_path: Path):
    code, err = call(FIXTURES / 'albert_1', '--push', 'a/b/c')
    assert code == 2 and 'error: --push a/b/c: ' in err and not (tmp_path / 'out').exists()


def test_a_folder_becomes_a_folder(call, tmp_path: Path):
    assert call(FIXTURES / 'albert_1')[0] == 0
    before, after = open_pretrained(FIXTURES / 'albert_1'), open_pretrained(tmp_path / 'out')
    assert before.model == after.model
    assert jax.tree.all(jax.tree.map(np.array_equal, before.params(), after.params()))


def test_an_encoder_decoder_becomes_a_folder(call, tmp_path: Path):
    assert call(TEXT_TO_TEXT / 'bart_1')[0] == 0
    before, after = open_pretrained(TEXT_TO_TEXT / 'bart_1'), open_pretrained(tmp_path / 'out')
    assert before.model == after.model and after.problem == 'text_to_text'


def test_a_longer_model(call, tmp_path: Path):
    pattern = 'window(8) | global_tokens(1)'
    code, _ = call(FIXTURES / 'bert_1', '--length', '64', '--pattern', pattern, '--global_tokens', '2')
    after = open_pretrained(tmp_path / 'out')
    assert code == 0
    assert (after.model.max_length, after.model.attention, after.model.global_tokens) == (64, pattern, 2)
    assert after.params()['encoder']['embeddings']['position']['embedding'].shape == (64, 16)


def test_codes_that_become_floats_are_said(call, tmp_path: Path):
    assert call(FIXTURES / 'bert_1', '--quantize', 'int8')[0] == 0
    assert 'codes are written as' not in call.printed
    assert f', from {FIXTURES / "bert_1"}\n' in call.printed and 'largest relative error of ' in call.printed
    (tmp_path / 'out').rename(tmp_path / 'codes')
    assert call(tmp_path / 'codes', '--small')[0] == 0
    assert 'codes are written as' not in call.printed  # they stay
    (tmp_path / 'out').rename(tmp_path / 'again')
    assert call(tmp_path / 'codes')[0] == 0
    assert 'the 8-bit weights are written as floats; with --small they stay 8-bit' in call.printed
    assert 'bytes as float32 before' in call.printed


def test_zeros_are_counted(call, tmp_path: Path):
    folder = copied('bert_1', tmp_path / 'zeros')
    tensors = load_file(folder / 'model.safetensors')
    name = next(name for name in tensors if name.endswith('intermediate.dense.weight'))
    tensors[name][:, :8] = 0.0
    save_file(tensors, folder / 'model.safetensors', metadata={'format': 'pt'})
    assert call(folder, '--small')[0] == 0
    left = sum(int(np.count_nonzero(tensor)) for tensor in jax.tree.leaves(open_pretrained(folder).params()))
    assert f'{left:,} of these are not 0; --small saves bytes of zeros' in call.printed
    assert call(FIXTURES / 'bert_1', '--small', '--output', str(tmp_path / 'other'))[0] == 0
    assert 'are not 0' not in call.printed


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        (('--low_rank', '0.5', '--ranks', 'up=3'), 'error: --low_rank and --ranks both set ranks'),
        (('--weigh_rows', '9'), 'error: --weigh_rows is the number of rows that --weigh reads; it needs --weigh'),
        (('--weigh', 'inputs'), 'error: --weigh changes how factors are computed; it needs --low_rank or --ranks'),
        (
            ('--weigh', 'inputs', '--ranks', 'up=3'),
            'error: --weigh reads the training rows of a fine-tuning',
        ),
        (('--small', '--compressed'), "error: --small writes this project's compact format, --compressed the"),
        (('--compressed',), "error: model.quantization is 'none'; the format compressed-tensors (--compressed) needs"),
        (('--float_layers', 'down'), 'error: --float_layers excludes layers from --quantize'),
        (('--shrink',), 'error: nothing to shrink: in no layer is a whole head or feed-forward unit zero'),
        (('--length', '8'), 'error: 8 positions; the model has 24 already'),
        (('--length', '64', '--pattern', 'windw(8)'), "error: attention 'windw(8)': unknown name 'windw'"),
        (('--checkpoint', 'best'), f'error: {ROOT}/tests/interop/fixtures/bert_1 has one set of parameters'),
    ],
)
def test_bad_input_gives_one_line(call, tmp_path: Path, arguments: tuple[str, ...], message: str):
    code, errors = call(FIXTURES / 'bert_1', *arguments)
    assert code == 2 and errors.startswith(message) and errors.count('\n') == 1
    assert not (tmp_path / 'out').exists()


def test_a_folder_that_is_no_checkpoint(call, tmp_path: Path):
    code, errors = call(tmp_path)
    assert code == 2 and 'no checkpoint there' in errors and errors.count('\n') == 1


def test_a_pickle_is_refused(call, tmp_path: Path):
    folder = copied('bert_1', tmp_path / 'in')
    (folder / 'model.safetensors').rename(folder / 'pytorch_model.bin')
    code, errors = call(folder)
    assert code == 2 and 'pytorch_model.bin is a pickle' in errors and errors.count('\n') == 1


def test_nothing_is_overwritten(call, tmp_path: Path):
    (tmp_path / 'out').mkdir()
    (tmp_path / 'out' / 'mine').touch()
    code, errors = call(FIXTURES / 'bert_1')
    assert code == 2 and 'there is something already' in errors
