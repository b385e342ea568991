"""Tests that lm-evaluation-harness gets this project's scores and texts, and runs its tasks with them, offline.

`make harness` makes the environment; then .venv-harness/bin/python -m pytest tests/scoring/test_harness.py
"""

import importlib
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from efficient_attention.errors import InputError, MissingExtraError
from efficient_attention.scoring.decoder_scorer import DecoderScorer, encode_with_units, separator_ids
from efficient_attention.scoring.open_scorer import open_scorer
from efficient_attention.scoring.pairs import Pair, PairTokens, windows_of_text
from efficient_attention.scoring.problems import PROBLEMS, answer_questions, summarize
from tests.interop.gpt2_folders import copied, with_tokenizer
from tests.scoring.fixed_scorer import FixedScorer

HAS_HARNESS = importlib.util.find_spec('lm_eval') is not None
needs_harness = pytest.mark.skipif(not HAS_HARNESS, reason='lm_eval is not installed (make harness)')
pytestmark = pytest.mark.lenient_promotion  # Flax's norms compute in float32.
if HAS_HARNESS:
    import lm_eval
    from lm_eval.tasks import TaskManager
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

    from efficient_attention.scoring.harness import HarnessModel, parse_generation

PAIRS = [('a dog', ' runs'), ('the dog ', 'runs.'), ('', 'the dog'), ('a dog', ' the'), ('cat.\n', 'a')]
LONG = 'the dog runs. a cat, a hen; ' * 5  # longer than the model's 57 positions
QUESTIONS = [('a dog', ['runs', 'the cat'], 1), ('the', ['dog', 'a hen'], 0), ('dog runs the', ['dog', 'hen', 'a'], 2)]


def request(*args):
    return SimpleNamespace(args=args)


@pytest.fixture(scope='module')
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_tokenizer(copied('gpt2_1', tmp_path_factory.mktemp('harness') / 'gpt2'))


@pytest.fixture(scope='module')
def scorer(folder: Path) -> DecoderScorer:
    opened = open_scorer(folder, batch_size=4)
    assert isinstance(opened, DecoderScorer)
    return opened


@pytest.fixture(scope='module')
def model(folder: Path) -> 'HarnessModel':
    return HarnessModel(folder, batch_size='4')


def ids_of(scorer: DecoderScorer, text: str) -> list[int]:
    return scorer.units.encode(text).tolist()


@needs_harness
def test_pairs_have_the_scores_of_the_scorer(model: 'HarnessModel', scorer: DecoderScorer):
    expected = [(score.log_prob, score.is_greedy) for score in scorer.score(PAIRS)]
    assert model.loglikelihood([request(*pair) for pair in PAIRS]) == expected


@needs_harness
def test_long_contexts_lose_tokens_from_their_left(model: 'HarnessModel', scorer: DecoderScorer):
    ids = ids_of(scorer, LONG.rstrip() + ' the dog')
    cut = len(ids_of(scorer, LONG.rstrip()))
    kept = PairTokens(tuple(ids[-58:cut]), tuple(ids[cut:]))
    assert kept.positions == 57 and model.encode(LONG.rstrip(), ' the dog') == kept
    with pytest.raises(InputError, match='the continuation .* tokens; the model reads 57 at most'):
        model.loglikelihood([request('a', LONG)])


@needs_harness
def test_rolling_windows_are_those_of_the_harness(model: 'HarnessModel', scorer: DecoderScorer):
    [end] = separator_ids(scorer.units)
    for text in (LONG, 'a dog'):
        windows = get_rolling_token_windows(ids_of(scorer, text), end, 57, 1)
        pairs = [PairTokens(*map(tuple, make_disjoint_window(window))) for window in windows]
        assert list(windows_of_text(encode_with_units(scorer.units, Pair('', text)), 57, 57)) == pairs
        [found] = model.loglikelihood_rolling([request(text)])
        assert found == pytest.approx(sum(log_prob for log_prob, _ in scorer.score_tokens(pairs)), abs=1e-4)


def greedy_text(scorer: DecoderScorer, ids: list[int], count: int) -> str:
    """Returns the text of up to `count` most probable next ids, found by scoring every id as a continuation."""
    added: list[int] = []
    while len(added) < count and separator_ids(scorer.units) != added[-1:]:
        rows = [PairTokens((*ids, *added), (id,)) for id in range(scorer.units.size)]
        added.append([is_greedy for _, is_greedy in scorer.score_tokens(rows)].index(True))
    return scorer.units.decode(np.array(added))


@needs_harness
def test_generated_text_is_greedy_and_ends_before_the_first_stop_string(model: 'HarnessModel', scorer: DecoderScorer):
    contexts, options = ['the', 'a dog', LONG, ''], {'until': ['\n\n'], 'max_gen_toks': 8, 'do_sample': False}
    prompts = [ids_of(scorer, context)[-(57 - 8) :] or separator_ids(scorer.units) for context in contexts]
    expected = [greedy_text(scorer, ids, 8) for ids in prompts]
    assert model.generate_until([request(context, options) for context in contexts]) == expected
    whole = expected[0]
    assert len(whole) > 8 and len(set(expected)) == 4
    for stop in (whole[4], whole[3:6], 'ZZ'):
        asked = [request('the', options | {'until': ['YY', stop]}), request('a dog', options)]
        assert model.generate_until(asked) == [whole.split(stop)[0], expected[1]]


@needs_harness
@pytest.mark.parametrize(
    ('options', 'words'),
    [
        ({'do_sample': True}, 'the task samples its answers'),
        ({'temperature': 0.7}, 'the task samples its answers'),
        ({'num_beams': 4}, 'num_beams=4 in generation_kwargs'),
        ({'repetition_penalty': 1.1}, 'repetition_penalty=1.1 in generation_kwargs'),
        ({'max_gen_toks': 0}, 'max_gen_toks is 0; it must be at least 1'),
        ({'max_gen_toks': 57}, 'max_gen_toks is 57; it must be below 57'),
        ({}, 'max_gen_toks is 256; it must be below 57'),
    ],
)
def test_what_is_not_greedy_or_does_not_fit_is_refused_in_one_line(model: 'HarnessModel', options: dict, words: str):
    with pytest.raises(InputError, match=words) as caught:
        model.generate_until([request('a', options)])
    assert '\n' not in str(caught.value)


@needs_harness
def test_greedy_decoding_may_have_an_unused_temperature():
    asked = parse_generation({'until': 'Q:', 'do_sample': False, 'temperature': 1, 'max_new_tokens': 9}, 256)
    assert asked == (('Q:',), 9)
    assert parse_generation({'temperature': 0.0, 'until': ['', 'a']}, 256) == (('a',), 256)


@needs_harness
def test_bad_model_arguments_are_refused_in_one_line(folder: Path):
    for arguments, words in (
        (f'path={folder},dtype=float16', 'model argument dtype=float16: known are path'),
        (f'path={folder},batch_size=auto', "batch_size is 'auto'"),
        ('length=5', '--model_args needs path=FOLDER'),
    ):
        with pytest.raises(InputError, match=words) as caught:
            HarnessModel.create_from_arg_string(arguments, {'batch_size': 4, 'device': 'cpu', 'max_batch_size': None})
        assert '\n' not in str(caught.value)


@needs_harness
def test_only_decoders_are_served(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr('efficient_attention.scoring.harness.open_scorer', lambda *_, **__: FixedScorer({}))
    with pytest.raises(InputError, match='^runs/x: the harness needs a language model; this is no decoder$'):
        HarnessModel('runs/x')


def write_tasks(folder: Path, answers: list[str]) -> 'TaskManager':
    """Writes a multiple-choice task and a task of generated answers, as a user of the harness does."""
    rows = [{'q': context, 'options': options, 'a': answer} for context, options, answer in QUESTIONS]
    asked = [{'q': context, 'a': answer} for (context, _, _), answer in zip(QUESTIONS, answers, strict=True)]
    tasks = {
        'tiny_choice': (rows, {'output_type': 'multiple_choice', 'doc_to_choice': '{{options}}'}, ['acc', 'acc_norm']),
        'tiny_generation': (
            asked,
            {'output_type': 'generate_until', 'generation_kwargs': {'until': ['w6'], 'max_gen_toks': 8}},
            ['exact_match'],
        ),
    }
    for name, (questions, fields, metrics) in tasks.items():
        file = folder / f'{name}.jsonl'
        file.write_text(''.join(f'{json.dumps(row)}\n' for row in questions))
        task = {'task': name, 'dataset_path': 'json', 'dataset_kwargs': {'data_files': {'test': str(file)}}}
        task |= {'test_split': 'test', 'doc_to_text': '{{q}}', 'doc_to_target': '{{a}}', **fields}
        task |= {'metric_list': [{'metric': metric, 'aggregation': 'mean'} for metric in metrics]}
        (folder / f'{name}.yaml').write_text(json.dumps(task))  # JSON is YAML
    return TaskManager(include_path=str(folder))


@needs_harness
@pytest.mark.filterwarnings('default')  # warnings of the harness and of its packages
def test_tasks_of_the_harness_give_our_accuracies(
    model: 'HarnessModel', scorer: DecoderScorer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv('HF_HOME', str(tmp_path / 'cache'))
    monkeypatch.setattr('datasets.config.HF_DATASETS_CACHE', tmp_path / 'cache')
    texts = [greedy_text(scorer, ids_of(scorer, context), 8).split('w6')[0] for context, _, _ in QUESTIONS]
    answers = [texts[0], texts[1], f'{texts[2]}x']
    tasks = write_tasks(tmp_path, answers)
    with monkeypatch.context() as patch:
        patch.setenv('HF_HUB_OFFLINE', '1')
        found = lm_eval.simple_evaluate(
            model=model, tasks=['tiny_choice', 'tiny_generation'], task_manager=tasks, bootstrap_iters=0
        )['results']
    file = tmp_path / 'questions.jsonl'
    rows = [{'context': context, 'choices': options, 'answer': answer} for context, options, answer in QUESTIONS]
    file.write_text(''.join(f'{json.dumps(row)}\n' for row in rows))
    problem = PROBLEMS['choice']
    ours = summarize(list(answer_questions(scorer, problem, dict(enumerate(problem.read(str(file), {}))))))
    assert found['tiny_choice']['acc,none'] == pytest.approx(ours['sum']['accuracy'])
    assert found['tiny_choice']['acc_norm,none'] == pytest.approx(ours['per_character']['accuracy'])
    assert ours['sum']['accuracy'] not in (0, 1)
    assert found['tiny_generation']['exact_match,none'] == pytest.approx(2 / 3)


@needs_harness
def test_command_knows_the_model_and_ends_bad_input_in_one_line(tmp_path: Path):
    write_tasks(tmp_path, ['a'] * 3)
    command = [sys.executable, '-m', 'efficient_attention.scoring.harness', '--model', 'efficient_attention']
    command += ['--model_args', f'path={tmp_path / "none"},batch_size=4', '--include_path', str(tmp_path)]
    ended = subprocess.run([*command, '--tasks', 'tiny_choice'], capture_output=True, text=True, check=False)
    assert ended.returncode == 2 and f'error: {tmp_path / "none"}' in ended.stderr.splitlines()[-1]


@pytest.mark.skipif(HAS_HARNESS, reason='lm_eval is installed')
def test_missing_extra_is_named():
    with pytest.raises(MissingExtraError, match=r"needs: pip install 'efficient-attention\[harness\]'"):
        importlib.import_module('efficient_attention.scoring.harness')
