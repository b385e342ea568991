"""Tests what a run loses without some heads: each metric is that of a gated run, and importance is a gradient."""

import jax
import numpy as np
import pytest

from efficient_attention.errors import InputError
from efficient_attention.inference.evaluate_workdir import evaluate_workdir
from efficient_attention.inspection.head_removal import GatedRun, measure_removal
from efficient_attention.inspection.head_report import heads_page
from efficient_attention.training.run import build_run
from tests.inference.test_generate import workdir_of
from tests.training.tiny_run import drawn_workdir, tiny_config

pytestmark = pytest.mark.lenient_promotion  # Optax mixes Python floats with int32 counts.
METRIC = 'masked_lm_loss'


@pytest.fixture(scope='module')
def workdir(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp('removal')
    config = tiny_config(folder, **{'model.layers': 1, 'model.init_std': 0.5})
    return drawn_workdir(build_run(config, jax.devices()[:1]), folder / 'workdir')


def test_each_value_is_that_of_an_evaluation_without_heads(workdir):
    found = measure_removal(workdir, METRIC)
    assert found['all'] == pytest.approx(evaluate_workdir(workdir)[METRIC])
    without = {(one['layer'], one['head']): one['value'] for one in found['without']}
    assert without.keys() == {(0, 0), (0, 1)}
    assert without[0, 1] == pytest.approx(evaluate_workdir(workdir, mask_heads=[(0, 1)])[METRIC])
    # Of two heads in one layer, the only one left is the one that was not removed.
    assert [one['value'] for one in found['only']] == [without[0, 1], without[0, 0]]
    [least] = [one['head'] for one in found['importance'] if one['importance'] < 0.5**0.5]
    first, last = found['by_importance']
    assert (first['removed'], last['removed']) == (1, 2) and first['value'] == without[0, least]
    assert found['by_chance'][1] == {'removed': 2, 'mean': last['value'], 'deviation': 0.0}
    html = heads_page({'model': 'm', 'removal': found})
    assert 'Removed heads' in html and html.count('<rect') == 4


def test_importance_is_the_change_of_the_loss_by_a_gate(workdir):
    run = GatedRun(workdir)
    importance_NH = run.importance()
    np.testing.assert_allclose(np.square(importance_NH).sum(), 1.0)
    assert importance_NH.shape == (1, 2) and (importance_NH > 0).all()


def test_bad_requests_are_one_line(workdir, tmp_path):
    with pytest.raises(InputError, match="^--removal names 'f1'; the run has .*masked_lm_loss"):
        measure_removal(workdir, 'f1')
    fields = {'model.cell': 'gru', 'model.attention': 'causal', 'model.positions': 'none'}
    with pytest.raises(InputError, match='recurrent layers have no attention weights'):
        measure_removal(workdir_of(tmp_path, **fields), 'causal_lm_loss')
