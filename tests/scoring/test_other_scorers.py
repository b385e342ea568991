"""Tests of the scorers of encoders and encoder-decoders, and of scoring from the command line."""

import contextlib
import dataclasses
import io
import json
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from efficient_attention.attention.request import Lengths
from efficient_attention.errors import InputError
from efficient_attention.inference.generate import TextGenerator
from efficient_attention.inference.pretrained_models import pretrained_decoder
from efficient_attention.interop.pretrained import open_pretrained
from efficient_attention.programs.score import main
from efficient_attention.scoring.decoder_scorer import DecoderScorer
from efficient_attention.scoring.masked_scorer import MaskedScorer
from efficient_attention.scoring.ngram_scorer import ngram_scorer_of_run
from efficient_attention.scoring.open_scorer import open_scorer
from efficient_attention.scoring.pairs import Pair, PairTokens
from efficient_attention.scoring.problems import PROBLEMS, answer_questions
from efficient_attention.scoring.prompts import PromptForm, draw_examples
from efficient_attention.scoring.report import ScoreOptions, score_problem
from efficient_attention.scoring.seq2seq_scorer import Seq2SeqScorer
from efficient_attention.training.run import build_run
from tests.data.tokenizers.test_marian import write_marian
from tests.inference.test_generate import config_of
from tests.inference.tiny_checkpoint import WORDS, write_checkpoint
from tests.interop.folders import TEXT_TO_TEXT
from tests.interop.gpt2_folders import END, copied, with_tokenizer
from tests.training.tiny_run import drawn_workdir

pytestmark = pytest.mark.lenient_promotion
TEXTS = ['the old dog sleeps near a river.', 'a king runs', 'the old dog sleeps near a river.']


@pytest.fixture(scope='module')
def masked(tmp_path_factory) -> MaskedScorer:
    folder = write_checkpoint(tmp_path_factory.mktemp('encoder'), 'fill_mask')
    scorer = open_scorer(folder, batch_size=8)
    assert isinstance(scorer, MaskedScorer)
    return scorer


def log_probs_of_mask(scorer: MaskedScorer, ids: list[int], place: int) -> np.ndarray:
    """Returns the model's log-probabilities [V] at one position of a row alone."""
    model, tokens = scorer.filler.model, jnp.asarray([ids])
    logits = model.masked_logits(model.encoder(tokens, jnp.ones_like(tokens)), jnp.asarray([[place]]))
    return np.asarray(jax.nn.log_softmax(logits[0, 0]), np.float64)


def test_pseudo_log_likelihood_masks_each_token_and_the_rest_of_its_word(masked):
    vocabulary = masked.filler.vocabulary
    ids = list(masked.token_ids(TEXTS[1]))
    total, is_greedy = 0.0, True
    for place, id in enumerate(ids):
        row = [vocabulary.cls, *ids, vocabulary.sep]
        row[place + 1] = vocabulary.mask
        log_probs_V = log_probs_of_mask(masked, row, place + 1)
        total += log_probs_V[id]
        is_greedy &= int(log_probs_V.argmax()) == id
    scores = masked.score([Pair('', text) for text in TEXTS])
    assert scores[1].log_prob == pytest.approx(total, abs=1e-4) and scores[1].is_greedy == is_greedy
    assert scores[0] == scores[2] and scores[1].tokens == 3


def test_later_pieces_of_a_word_are_masked_with_each_piece(masked):
    first, second, third = 10, 11, 12
    masked.filler.vocabulary.is_continuation[second] = True
    try:
        rows = list(masked.masked_rows((first, second, third)))
    finally:
        masked.filler.vocabulary.is_continuation[second] = False
    vocabulary = masked.filler.vocabulary
    cls, sep, mask = vocabulary.cls, vocabulary.sep, vocabulary.mask
    assert rows == [
        ((cls, mask, mask, third, sep), (1,), (first,)),
        ((cls, first, mask, third, sep), (2,), (second,)),
        ((cls, first, second, mask, sep), (3,), (third,)),
    ]


def test_an_encoder_fills_the_gap_of_a_winograd_schema(masked, tmp_path):
    (tmp_path / 'schemas.txt').write_text(
        'the dog runs near the king, [MASK] sings.\n[MASK]\nthe dog,the old king\nthe dog\n'
    )
    problem = PROBLEMS['winograd']
    questions = list(problem.read(str(tmp_path / 'schemas.txt'), {}))
    [found] = answer_questions(masked, problem, dict(enumerate(questions)))
    vocabulary, expected = masked.filler.vocabulary, []
    for candidate in ('the dog', 'the old king'):
        left, inside, right = (masked.token_ids(text) for text in ('the dog runs near the king,', candidate, 'sings.'))
        row = [vocabulary.cls, *left, *[vocabulary.mask] * len(inside), *right, vocabulary.sep]
        places = range(1 + len(left), 1 + len(left) + len(inside))
        expected.append(np.mean([log_probs_of_mask(masked, row, p)[id] for p, id in zip(places, inside, strict=True)]))
    np.testing.assert_allclose(found.scores['in_gap'], expected, atol=1e-4)
    rows = tmp_path / 'rows.jsonl'
    rows.write_text(json.dumps({'context_options': ['a dog', 'a king'], 'continuation': 'runs', 'gold': 0}))
    with pytest.raises(InputError, match=r'rows.jsonl: line 1: an encoder needs the form with \[MASK\]'):
        list(answer_questions(masked, problem, dict(enumerate(problem.read(str(rows), {})))))
    with pytest.raises(InputError, match='is an encoder, which reads neither examples'):
        list(answer_questions(masked, problem, dict(enumerate(questions)), form=PromptForm(shots=1), pool=questions))


@pytest.mark.parametrize(
    ('pair', 'words'),
    [
        (Pair('the dog', ' runs'), 'is an encoder, which scores whole texts; a continuation after a context needs'),
        (Pair('', ' '.join(WORDS * 2)), 'pair 1 is too long: .* with its special tokens; the model reads 24 at most'),
        (Pair('', ''), "the text '' has no token"),
    ],
)
def test_an_encoder_refuses_what_it_cannot_score(masked, pair, words):
    with pytest.raises(InputError, match=words):
        masked.score([pair])


def test_an_encoder_scores_whole_texts_as_one_row_each(masked):
    [text], [pair] = masked.score_texts(TEXTS[:1]), masked.score([Pair('', TEXTS[0])])
    assert text.log_prob == pair.log_prob and text.unknown_tokens == 0
    assert masked.score_texts(['the dog zebra'])[0].unknown_tokens == 1
    with pytest.raises(InputError, match='is too long: .* with its special tokens'):
        masked.score_texts([' '.join(WORDS * 2)])
    with pytest.raises(InputError, match='reads each text as one row, so context and stride have no effect'):
        masked.score_texts(TEXTS, stride=4)


def test_an_encoder_does_not_generate(masked):
    with pytest.raises(InputError, match='cannot generate the answer; this problem needs a language model'):
        masked.generate(['the'], [3])


def test_targets_of_an_encoder_decoder_equal_one_full_pass_each(tmp_path):
    folder = shutil.copytree(TEXT_TO_TEXT / 'marian_1', tmp_path / 'in')
    write_marian(folder, size=61)
    scorer = open_scorer(folder, batch_size=4)
    assert isinstance(scorer, Seq2SeqScorer)
    pairs = [Pair('the quick fox', one) for one in ('jumps', 'the lazy dog', 'a', 'fox', 'over')]
    pairs.append(Pair('over', 'the lazy dog'))  # batches hold four targets, so the five of one source are split

    @nnx.jit
    def log_probs(model, source, tokens):
        return jax.nn.log_softmax(model(source, Lengths(jnp.full(1, source.shape[1])), tokens, jnp.ones_like(tokens)))

    for pair, score in zip(pairs, scorer.score(pairs), strict=True):
        row = scorer.encode(pair)
        read = jnp.asarray([[*scorer.start, *row.continuation[:-1]]])
        found = np.asarray(log_probs(scorer.model, jnp.asarray([row.context]), read)[0], np.float64)
        found = found[len(scorer.start) - 1 :]
        expected = found[np.arange(len(row.continuation)), row.continuation].sum()
        assert score.log_prob == pytest.approx(expected, abs=1e-4)
        assert score.is_greedy == bool((found.argmax(axis=1) == row.continuation).all())
        assert row.context[-1] == scorer.encoder.source.symbols.end and len(row.continuation) == score.tokens


@pytest.fixture(scope='module')
def workdir(tmp_path_factory):
    folder = tmp_path_factory.mktemp('decoder')
    return drawn_workdir(build_run(config_of(folder, **{'model.vocab_size': 64})), folder / 'workdir')


def test_generated_lines_are_those_of_greedy_decoding(workdir):
    scorer, generator = open_scorer(workdir, batch_size=2), TextGenerator(workdir)
    prompts = ['The dog sees', 'A king', 'The']
    texts = scorer.generate(prompts, [6, 6, 6])
    for prompt, text in zip(prompts, texts, strict=True):
        [one] = generator.beam_search(prompt, max_tokens=6, beams=1)
        assert text == one.text[len(prompt) :].lstrip(' ').split('\n')[0].strip()


def test_command_prints_a_table_and_writes_a_line_per_question(workdir, tmp_path, capsys):
    rows = [{'context': f'the {word}', 'choices': ['list', 'dict'], 'answer': n % 2} for n, word in enumerate('abcd')]
    files = tmp_path / 'rows.jsonl'
    files.write_text('\n'.join(map(json.dumps, rows)))
    options = {'train_files': str(files), 'shots': (0, 1), 'fields': {'template': '{context}'}, 'ngram': 2}
    choice = ScoreOptions(output=tmp_path / 'lines.jsonl', limit=3, **options)
    found = score_problem(workdir, 'choice', str(files), choice)
    table = capsys.readouterr().out
    assert 'against_empty' in table and 'chance: 50.00 %' in table and '2-gram' in table
    lines = [json.loads(line) for line in (tmp_path / 'lines.jsonl').read_text().splitlines()]
    assert len(lines) == 2 * 2 * 3 and {line['shots'] for line in lines} == {0, 1}
    of_model = [line for line in lines if line['model'] == str(workdir) and line['shots'] == 1]
    for number, line in enumerate(of_model):
        assert line['prompt'].endswith(f'\n\nthe {"abcd"[number]}') and line['examples'] == 1
        scores = line['scores']['sum']
        assert line['right']['sum'] == (max(scores) == scores[line['answer']] and scores[0] != scores[1])
    right = [line['right']['sum'] for line in of_model]
    assert found['results'][str(workdir)][1]['sum']['accuracy'] == pytest.approx(sum(right) / 3)


def gpt2_log_prob(scorer: DecoderScorer, row: PairTokens) -> float:
    """Returns the log-probability of a pair's continuation by one full pass over the pair alone."""
    ids = jnp.asarray([[*row.context, *row.continuation]])
    model = pretrained_decoder(open_pretrained(Path(scorer.name)))
    log_probs_LV = np.asarray(jax.nn.log_softmax(model(ids, jnp.ones_like(ids))[0]), np.float64)[len(row.context) - 1 :]
    return float(log_probs_LV[np.arange(len(row.continuation)), row.continuation].sum())


def test_a_gpt2_folder_is_scored_with_its_own_tokens(tmp_path, capsys):
    folder = with_tokenizer(copied('gpt2_1', tmp_path / 'gpt2'))
    scorer = open_scorer(folder, batch_size=4)
    assert isinstance(scorer, DecoderScorer)
    pairs = [Pair('', 'the dog'), Pair('the ', 'dog'), Pair('a dog', ' runs'), Pair('a dog', ' the')]
    rows = [scorer.encode(pair) for pair in pairs]
    assert rows[0].context == (END,)  # an empty context is the document separator
    assert scorer.units.decode(np.array(rows[1].continuation)) == ' dog'  # the space moved to the continuation
    found = [one.log_prob for one in scorer.score(pairs)]
    np.testing.assert_allclose(found, [gpt2_log_prob(scorer, row) for row in rows], atol=1e-4)
    (tmp_path / 'rows.jsonl').write_text('{"text": "a dog runs"}\n{"text": "the cat the dog"}\n')
    files = str(tmp_path / 'rows.jsonl')
    result = score_problem(folder, 'lambada', files, ScoreOptions(train_files=files, shots=(0, 1)))
    assert result['longest'] == 57 and result['results'][str(folder)][1]['examples'] == 1.0
    assert 'perplexity' in capsys.readouterr().out


SENTENCES = {'sentence_good': 'the dog runs', 'sentence_bad': 'the dog run', 'UID': 'agreement', 'field': 'syntax'}
SMALL_PROBLEMS = {
    'blimp': SENTENCES,
    'lambada': {'text': 'the dog runs'},
    'winograd': {'context_options': ['the dog', 'the cat'], 'continuation': ' runs', 'gold': 0},
    'exact': {'context': 'the dog', 'completion': 'runs'},
    'text': {'any': 'the dog runs'},
}


@pytest.mark.parametrize('name', SMALL_PROBLEMS)
def test_each_problem_is_scored_from_a_file_beside_ngrams(workdir, tmp_path, capsys, name):
    files = tmp_path / 'rows.jsonl'
    files.write_text(json.dumps(SMALL_PROBLEMS[name]) + '\n')
    (tmp_path / 'published.jsonl').write_text('{"UID": "agreement", "lstm": 0.875}\n')
    published = str(tmp_path / 'published.jsonl') if name == 'blimp' else ''
    fields = {'stride': '8', 'detokenizer': 'wikitext'} if name == 'text' else {}
    options = ScoreOptions(ngram=2, fields=fields, published=published, batch_size=2)
    found = score_problem(workdir, name, str(files), options)
    table = capsys.readouterr().out
    assert {*found['results']} == {str(workdir), '2-gram'} and found['rule'] and found['problem'] == name
    if name == 'text':
        of_model, of_ngrams = found['results'].values()
        assert of_model['tokens'] == of_ngrams['tokens'] > 20 and of_model['perplexity'] > 1
        assert 0.9 < of_model['characters_left_tokenized'] < 1.0 and 'bits_per_character' in table
    else:
        assert all(by_shots[0]['questions'] == 1 for by_shots in found['results'].values()) and '2-gram' in table
    assert ('87.5' in table) == (name == 'blimp')


def test_ngrams_need_the_training_text(workdir, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = json.loads((workdir / 'config.json').read_text())
    moved = tmp_path / 'moved'
    moved.mkdir()
    (moved / 'config.json').write_text(json.dumps(config | {'data': config['data'] | {'source': 'text:books/*.txt'}}))
    with pytest.raises(
        InputError, match='^--ngram reads the training text of .*moved again: .*books.* if its paths are'
    ):
        ngram_scorer_of_run(moved, 2)
    (tmp_path / 'config.json').write_text(json.dumps({'model_type': 'gpt2'}))
    with pytest.raises(InputError, match='--ngram needs the workdir of a training run, which names its training text$'):
        ngram_scorer_of_run(tmp_path, 2)


def test_a_limit_changes_no_example_and_a_stopped_run_keeps_what_it_has(workdir, tmp_path, monkeypatch):
    names = []
    for file in 'ab':
        rows = [{'context': f'the {file}', 'choices': ['list', 'dict'], 'answer': number % 2} for number in range(6)]
        (tmp_path / file).with_suffix('.jsonl').write_text('\n'.join(map(json.dumps, rows)))
        names.append(str((tmp_path / file).with_suffix('.jsonl')))
    output, files = tmp_path / 'lines.jsonl', ','.join(names)
    of_limit = {}
    for limit in (0, 2):
        options = ScoreOptions(train_files=names[0], shots=(2,), limit=limit, output=output)
        score_problem(workdir, 'choice', files, options)
        lines = [json.loads(line) for line in output.read_text().splitlines()]
        of_limit[limit] = {line['number']: line['prompt'] for line in lines}
    assert list(of_limit[2]) == [0, 1, 6, 7] and of_limit[2].items() <= of_limit[0].items()

    def stop_at_two(pool, question, number, form):
        if form.shots == 2:
            raise KeyboardInterrupt
        return draw_examples(pool, question, number, form)

    monkeypatch.setattr('efficient_attention.scoring.problems.draw_examples', stop_at_two)
    with pytest.raises(KeyboardInterrupt):
        score_problem(workdir, 'choice', files, dataclasses.replace(options, shots=(1, 2)))
    assert [json.loads(line)['shots'] for line in output.read_text().splitlines()] == [1] * 4


def test_flags_reach_the_options(monkeypatch):
    monkeypatch.setattr(
        'efficient_attention.scoring.report.score_problem', lambda *arguments: {'given': str(arguments)}
    )
    words = '--model m --problem choice --files f.jsonl --train_files t.jsonl --shots 0 2 --set format=race'.split()
    words += ['--delimiter', r'\n', '--set', r'template={context}\nQ:', '--batch_size', '4']
    monkeypatch.setattr('sys.argv', ['score', *words])
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        main()
    given = json.loads(printed.getvalue())['given']
    options = ScoreOptions(
        't.jsonl', [0, 2], '', '\n', fields={'format': 'race', 'template': '{context}\nQ:'}, batch_size=4
    )
    assert given == str((Path('m'), 'choice', 'f.jsonl', options))
