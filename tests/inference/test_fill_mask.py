"""Tests of filling masks: the candidates are the model's most probable tokens, and bad texts are named."""

import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from efficient_attention.errors import InputError
from efficient_attention.inference.fill_mask import MaskFiller
from efficient_attention.interop.pretrained import open_pretrained
from efficient_attention.models.pretraining import PretrainingModel
from efficient_attention.workdir.checkpoint_writer import CheckpointWriter
from efficient_attention.workdir.config_file import read_config
from tests.tolerances import assert_close
from tests.training.tiny_run import fresh_workdir

# Optax multiplies Python floats by int32 counts, which the tests otherwise forbid.
pytestmark = pytest.mark.lenient_promotion
TEXT = 'The old [MASK] sleeps near the [MASK].'


@pytest.fixture(scope='module')
def workdir(tmp_path_factory):
    return fresh_workdir(tmp_path_factory.mktemp('fill_mask'), **{'model.layers': 1})


@pytest.fixture(scope='module')
def fill(workdir):
    return MaskFiller(workdir)


def test_candidates_are_the_best_of_the_models_probabilities(fill):
    rows = fill(TEXT, top=5)
    assert [len(row) for row in rows] == [5, 5]
    for row in rows:
        probabilities = [candidate.probability for candidate in row]
        assert probabilities == sorted(probabilities, reverse=True) and 0 < sum(probabilities) < 1
    everything = fill(TEXT, top=fill.vocabulary.size)
    ordinary = fill.vocabulary.size - len(fill.vocabulary.special)
    for row in everything:
        assert sum(candidate.probability for candidate in row[:ordinary]) == pytest.approx(1, abs=1e-5)
        assert {candidate.probability for candidate in row[ordinary:]} == {0.0}


def test_they_equal_a_direct_use_of_the_model(fill):
    ids = fill.tokenizer.encode(TEXT, add_special_tokens=False).ids
    ids = [fill.vocabulary.cls, *ids, fill.vocabulary.sep]
    places = [place for place, id in enumerate(ids) if id == fill.vocabulary.mask]
    tokens = np.asarray([ids], np.int32)

    @nnx.jit
    def logits_of(model: PretrainingModel, tokens: jax.Array) -> jax.Array:
        return model.masked_lm(model.encoder(tokens, jnp.ones_like(tokens)), model.encoder.embeddings.token)

    logits = np.array(logits_of(fill.model, jnp.asarray(tokens)))[0, places]
    logits[:, list(fill.vocabulary.special)] = -np.inf
    best = [fill.readable_token(int(id)) for id in logits.argmax(-1)]
    assert [row[0].token for row in fill(TEXT)] == best


def test_the_mask_is_the_one_structural_token_that_may_be_typed(fill):
    [(ids, places)] = fill.mask_windows('the [SEP] [PAD] sleeps [MASK]')
    assert [ids[place] for place in places] == [fill.vocabulary.mask]
    assert fill.vocabulary.sep not in ids[1:-1] and fill.vocabulary.pad not in ids


def test_what_stands_around_a_mask_matters(fill):
    near, far = fill('the red [MASK] sleeps')[0], fill('the small king walks over the [MASK]')[0]
    assert near != far


def test_bad_texts_are_named(fill):
    with pytest.raises(InputError, match=r"no \[MASK\] in the text 'no gap here'"):
        fill('no gap here')
    with pytest.raises(InputError, match='top is 0; it must be at least 1'):
        fill('a [MASK]', 0)


def test_the_checkpoint_is_the_users_choice(fill, workdir, tmp_path):
    """The user chooses the checkpoint. Of the steps 0, 1 and 3, the last is not the best; step 0 has no evaluation."""
    shutil.copytree(workdir, tmp_path, dirs_exist_ok=True)
    params = jax.device_get(open_pretrained(workdir).params())
    config = read_config(tmp_path)
    with CheckpointWriter(tmp_path, config.checkpoint) as checkpoints:
        for step, loss in ((1, 1.5), (3, 2.5)):
            state = {'params': jax.tree.map(lambda leaf, step=step: leaf + np.float32(step), params)}
            checkpoints.save(step, state, record={}, metrics={config.checkpoint.best_metric: loss})
    for checkpoint, step in (('last', 3), ('best', 1), ('0', 0)):
        found, before = (
            np.asarray(one.model.encoder.embeddings.token.embedding[...])
            for one in (MaskFiller(tmp_path, checkpoint=checkpoint), fill)
        )
        assert_close(found, before + np.float32(step))


def test_a_folder_without_a_run_is_named(tmp_path):
    with pytest.raises(InputError, match='no checkpoint there'):
        MaskFiller(tmp_path)


def test_only_pretraining_runs_fill_masks(workdir, tmp_path):
    config = json.loads((workdir / 'config.json').read_text(encoding='utf-8')) | {'task': 'translation'}
    (tmp_path / 'config.json').write_text(json.dumps(config), encoding='utf-8')
    with pytest.raises(InputError, match="task is 'translation'"):
        MaskFiller(tmp_path)


def test_a_long_text_is_read_in_a_window_around_each_mask(fill):
    before, after = 'the red house ' * 20, ' sleeps near the river' * 20
    ids, places = fill.mask_windows(f'{before}[MASK]{after}')[0]
    assert len(ids) == fill.length and places == [fill.length // 2]
    inner = fill(f'{before}[MASK]{after}')[0]
    assert fill(f'{before * 2}[MASK]{after * 2}')[0] == inner  # The window does not reach the added tokens.
    both = fill(f'[MASK] {before}[MASK]')
    assert len(both) == 2 and both[0] != both[1]


def test_texts_together_get_what_each_gets_alone(fill):
    texts = ['the red [MASK] sleeps', 'a [MASK] near the [MASK] ' + 'house ' * 40, '[MASK]']
    for together, text in zip(fill.fill_masks(texts, batch_size=2), texts, strict=True):
        alone = fill(text)
        assert [[one.token for one in row] for row in together] == [[one.token for one in row] for row in alone]
