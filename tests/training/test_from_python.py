"""Tests of `ea.train` and `ea.evaluate`: a run from a config file, from a dict and in a thread, with a mechanism of the
user, and one-line errors.
"""

import json
import re
import sys
import threading
from pathlib import Path

import jax
import pytest

import efficient_attention as ea
from efficient_attention.attention.registry import ADDED, OWN_MODULES
from efficient_attention.programs import eval as eval_program
from efficient_attention.training.from_python import config_values
from efficient_attention.workdir.config_file import read_config
from tests.training.tiny_run import get_config, write_corpus

pytestmark = pytest.mark.lenient_promotion  # Optax mixes Python floats with int32
FILE = 'tests/training/tiny_run.py'


MECHANISM = """
import dataclasses
import jax.numpy as jnp
import efficient_attention as ea

@dataclasses.dataclass(frozen=True)
class Halved(ea.PatternAttention):
    name = 'halved'

    def normalise_logits(self, logits_BHLM, allowed_bhLM):
        scores = jnp.where(allowed_bhLM, jnp.exp(logits_BHLM / 2), 0.0)
        return scores / (1.0 + scores.sum(-1, keepdims=True)), None

ea.add_mechanism(ea.make_pattern_implementation(Halved))
"""


@pytest.fixture
def forget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Writes a module with a mechanism of the user; returns a function that makes this process as if it were new."""
    (tmp_path / 'my_mechanism.py').write_text(MECHANISM)
    monkeypatch.setenv(OWN_MODULES, 'my_mechanism')
    monkeypatch.syspath_prepend(tmp_path)

    def run() -> None:
        sys.modules.pop('my_mechanism', None)
        ADDED.pop('halved', None)

    yield run
    run()


def test_a_run_with_a_mechanism_of_the_user_is_trained_and_evaluated(
    tmp_path: Path, forget, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    workdir, found = tmp_path / 'run', []
    fields = {'data.source': write_corpus(tmp_path), 'data.cache': str(tmp_path / 'cache'), 'data.pairs': 'none'}
    fields |= {'model.layers': 1, 'model.attention': 'halved(window(9))', 'train.steps': 2, 'eval.every_steps': 2}
    fields |= {'train.trackers': ['csv', 'tensorboard']}

    def run() -> None:
        with jax.numpy_dtype_promotion('standard'), jax.numpy_rank_promotion('allow'):  # rules of this thread only
            found.append(ea.train(FILE, str(workdir), fields))

    # Only the main thread may handle signals; a run in another thread trains without.
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    [metrics] = found
    config = read_config(workdir)
    assert (config.train.steps, config.train.trackers) == (2, 'csv,tensorboard') and metrics['masked_lm_loss'] > 0
    forget()
    again = ea.evaluate(workdir, batch_size=8)
    assert again['step'] == 2 and again['masked_lm_loss'] == pytest.approx(metrics['masked_lm_loss'], rel=1e-4)
    values = json.loads((workdir / 'config.json').read_text(encoding='utf-8'))
    with pytest.raises(ea.InputError, match=f'^{re.escape(str(workdir))}.*train.steps'):
        ea.train(values, workdir, {'train.steps': 3})
    forget()
    monkeypatch.setattr(sys, 'argv', ['eval', f'--workdir={workdir}'])
    capsys.readouterr()
    eval_program.main()
    assert json.loads(capsys.readouterr().out)['masked_lm_loss'] == pytest.approx(metrics['masked_lm_loss'], rel=1e-4)
    forget()
    monkeypatch.delenv(OWN_MODULES)
    with pytest.raises(
        ea.InputError, match=f"config.json: .*unknown name 'halved'; .*variable {OWN_MODULES} to its module"
    ):
        eval_program.main()
    monkeypatch.setenv(OWN_MODULES, 'my_mechanisms')
    with pytest.raises(
        ea.InputError, match=f'{OWN_MODULES} names my_mechanisms, which cannot be imported .*PYTHONPATH'
    ):
        eval_program.main()


def test_configs_of_all_kinds_have_the_same_values():
    given = {'data.vocab_size': 80, 'data.source': 'stdlib'}
    config = get_config()
    expected = config_values(config, given)
    assert expected == config_values(FILE, given) == config_values(config.to_dict(), {**given, 'model.vocab_size': 80})
    assert expected == config_values(FILE, {'data': {'vocab_size': 80, 'source': 'stdlib'}})
    # A field that follows another one keeps following it, and the user's config stays as it is.
    assert expected['model']['vocab_size'] == 80 and config.data.vocab_size == 70
    assert config_values({'train': {'steps': 7}}, {})['optimizer'] == config_values({}, {})['optimizer']


def test_a_config_of_the_package_has_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    values = config_values('finetune/glue.py:sst2', {'train.steps': 9})
    assert values['examples']['name'] == 'sst2' and values['train']['steps'] == 9


@pytest.mark.parametrize(
    'config, fields, line',
    [
        ('quickstat.py', {}, r'config: there is no file .*; did you mean quickstart\.py'),
        (FILE, {'train.step': 9}, r'unknown config field train\.step; did you mean train\.steps\?$'),
        (FILE, {'training.steps': 9}, r'unknown config field training\.steps; did you mean train\.steps\?$'),
        (FILE, {'train.steps': 'many'}, r"train\.steps is 'many'; it must be a whole number"),
        ({'trai': {}}, {}, r'unknown config field trai; did you mean train\?$'),
    ],
)
def test_a_bad_config_is_one_line_and_leaves_no_workdir(config, fields: dict, line: str, tmp_path: Path):
    with pytest.raises(ea.InputError, match=f'^{line}'):
        ea.train(config, tmp_path / 'run', fields)
    assert not (tmp_path / 'run').exists()


def test_a_folder_without_a_run_is_one_line(tmp_path: Path):
    with pytest.raises(ea.InputError, match=r': no run there \(config.json is missing\)$'):
        ea.evaluate(tmp_path)
