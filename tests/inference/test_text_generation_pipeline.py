"""Tests of `ea.pipeline('text-generation')`: the generator's texts for one prompt or a list, and one-line errors."""

from pathlib import Path

import pytest

import efficient_attention as ea
from efficient_attention.errors import InputError
from efficient_attention.inference.generate import TextGenerator
from efficient_attention.inference.sampling import Sampling
from efficient_attention.workdir.config_file import claim_workdir
from tests.inference.test_generate import workdir_of
from tests.inference.tiny_checkpoint import write_checkpoint
from tests.training.tiny_run import tiny_config

pytestmark = pytest.mark.lenient_promotion  # A built run has an optimizer; Optax mixes Python floats with int32.
PROMPT = 'The old dog'


@pytest.fixture(scope='module')
def workdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return workdir_of(tmp_path_factory.mktemp('generation'))


def test_texts_are_those_of_the_generator(workdir: Path):
    options = {'max_tokens': 9, 'seed': 3, 'temperature': 0.9, 'top_k': 12, 'top_p': 0.8}
    run = ea.pipeline('text-generation', workdir, **options)
    expected = ''.join(TextGenerator(workdir)(PROMPT, max_tokens=9, seed=3, sampling=Sampling(0.9, 12, 0.8)))
    assert run(PROMPT) == {'text': expected} and expected.startswith(PROMPT) and len(expected) == len(PROMPT) + 9
    assert run([PROMPT, PROMPT]) == [{'text': expected}] * 2
    assert ea.pipeline('text-generation', str(workdir), **options | {'seed': 4})(PROMPT) != {'text': expected}


def test_a_search_gives_scores(workdir: Path):
    options = {'max_tokens': 4, 'beams': 3}
    found = TextGenerator(workdir).beam_search(PROMPT, best=2, **options)
    rows = ea.pipeline('text-generation', workdir, best=2, **options)(PROMPT)
    assert [(row['text'], row['score']) for row in rows] == found and rows[0]['score'] >= rows[1]['score']


@pytest.mark.parametrize(
    'options, said',
    [
        ({'tokens': 3}, '^unknown options: tokens; known: max_tokens, temperature, top_k, top_p, seed, beams, best$'),
        ({'max_tokens': 0}, '^max_tokens is 0; it must be at least 1$'),
        ({'seed': 0.5}, '^seed is 0.5; it must be a whole number$'),
        ({'temperature': 'hot'}, "^temperature is 'hot'; it must be a number$"),
        ({'top_p': 0}, '^top_p is 0; it must'),
        ({'best': 2}, '^best is 2; it must be at most beams, which is 0$'),
        ({'beams': 2, 'top_k': 3}, '^top_k is 3; a search with beams samples nothing$'),
        ({'length': 8}, '^text-generation reads one prompt at a time, of any length; leave out batch_size and length$'),
        ({'checkpoint': '7'}, '^there is no checkpoint of step 7 in '),
    ],
)
def test_bad_options_are_named(workdir: Path, options: dict, said: str):
    with pytest.raises(InputError, match=said):
        ea.pipeline('text-generation', workdir, **options)


def test_bad_prompts_are_named(workdir: Path):
    run = ea.pipeline('text-generation', workdir, max_tokens=2)
    with pytest.raises(InputError, match=r'^item 2 of 3: 5 \(of type int\) is no text'):
        run(['a', 5, 'b'])
    with pytest.raises(InputError, match="^item 1 of 2: the prompt has '#', which the vocabulary of the run lacks$"):
        run(['a#', 'b'])


def test_other_models_are_refused(workdir: Path, tmp_path: Path):
    with pytest.raises(InputError, match="was trained for 'classification'; generating text needs a language model$"):
        ea.pipeline('text-generation', write_checkpoint(tmp_path / 'folder', 'classification'))
    claim_workdir(tmp_path / 'run', tiny_config(tmp_path))
    with pytest.raises(InputError, match="holds a run of the task 'pretraining'; generating text needs language_mod"):
        ea.pipeline('text-generation', tmp_path / 'run')
    with pytest.raises(InputError, match="the pipeline 'text-generation' generate text with a language model"):
        ea.pipeline('fill-mask', workdir)
