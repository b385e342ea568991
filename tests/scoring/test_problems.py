"""Tests that each problem reads its files, compares the right scores and reports what it did."""

import json
import math
from pathlib import Path

import pytest

from efficient_attention.errors import InputError
from efficient_attention.scoring.problems import PROBLEMS, answer_questions, summarize
from efficient_attention.scoring.prompts import PromptForm, build_prompt, draw_examples
from efficient_attention.scoring.questions import Question
from efficient_attention.scoring.report import ScoreOptions, published_table, read_published, score_problem
from efficient_attention.scoring.whole_texts import detokenize, measure_texts, redo_wikitext, undo_wikitext
from tests.scoring.fixed_scorer import FixedScorer

pytestmark = pytest.mark.fast
SCHEMA = (
    'The trophy does not fit into the case because [MASK] is too large.\n[MASK]\nThe trophy ,The case\nThe trophy\n'
)


def write_rows(path, *rows):
    path.write_text(''.join(f'{json.dumps(row)}\n' for row in rows))
    return str(path)


def answered(name, scorer, files, fields=None, **options):
    problem = PROBLEMS[name]
    return list(answer_questions(scorer, problem, dict(enumerate(problem.read(files, fields or {}))), **options))


def test_minimal_pairs_count_ties_as_wrong_and_give_groups(tmp_path):
    words = [('a cat sleeps', 'a cat sleep'), ('two cats sleep', 'two cats sleeps'), ('zzz barks', 'zzz bark')]
    rows = [
        {'sentence_good': good, 'sentence_bad': bad, 'UID': 'agreement', 'field': 'syntax/semantics'}
        for good, bad in words
    ]
    scores = {'a cat sleeps': -3, 'a cat sleep': -4, 'two cats sleep': -5, 'two cats sleeps': -5, 'zzz barks': -1}
    found = answered('blimp', FixedScorer(scores), write_rows(tmp_path / 'pairs.jsonl', *rows))
    summary = summarize(found)
    assert summary['sum'] == {
        'accuracy': pytest.approx(2 / 3),
        'standard_error': pytest.approx(math.sqrt(2 / 9 / 2)),
        'questions': 3,
        'ties': 1,
    }
    assert summary['known_words'] | {'standard_error': 0} == {'accuracy': 0.5, 'standard_error': 0, 'questions': 2}
    assert summary['with_unknown_tokens'] == 1
    assert summary['by_paradigm'] == {'agreement': pytest.approx(2 / 3)}
    assert summary['by_field'] == {'syntax_semantics': pytest.approx(2 / 3)}
    assert summary['chance'] == 0.5


def test_last_word_accuracy_is_greedy_and_perplexity_is_of_the_word(tmp_path):
    files = write_rows(tmp_path / 'texts.jsonl', {'text': 'she took the boat'}, {'text': 'he saw the sea'})
    summary = summarize(answered('lambada', FixedScorer({' boat': -0.5, ' sea': -3.5}), files))
    assert summary['greedy']['accuracy'] == 0.5
    assert summary['perplexity'] == pytest.approx(math.exp(2))


def test_choices_are_compared_by_five_measures(tmp_path):
    row = {'context': 'It rains.', 'choices': ['wet', 'dry streets', 'é'], 'answer': 1}
    # 4 and 12 bytes with the space; the last option has 1 character and 2 bytes besides it.
    scores = {'It rains. wet': -4.0, 'It rains. dry streets': -5.5, 'It rains. é': -3.0}
    scores |= {' wet': -1.0, ' dry streets': -30.0, ' é': -1.0}
    [one] = answered('choice', FixedScorer(scores), write_rows(tmp_path / 'rows.jsonl', row))
    assert one.scores['sum'] == [-4, -5.5, -3]
    assert one.scores['per_token'] == pytest.approx([-4 / 4, -5.5 / 12, -3 / 3])
    assert one.scores['per_character'] == pytest.approx([-4 / 3, -5.5 / 11, -3])
    assert one.scores['per_byte'] == pytest.approx([-4 / 3, -5.5 / 11, -1.5])
    assert one.scores['against_empty'] == pytest.approx([-3, 24.5, -2])
    assert one.is_right == {
        'sum': False,
        'per_token': True,
        'per_character': True,
        'per_byte': True,
        'against_empty': True,
    }
    line = one.line('choice', 0)
    assert line['prompt'] == 'It rains.' and line['options'] == [' wet', ' dry streets', ' é'] and line['answer'] == 1


def test_race_questions_get_a_form_and_hellaswag_loses_its_brackets(tmp_path):
    race = tmp_path / 'race.jsonl'
    article = {'article': 'Tom ran.', 'questions': ['Who ran?'], 'options': [['Ann', 'Tom']], 'answers': ['B']}
    [question] = PROBLEMS['choice'].read(write_rows(race, article), {'format': 'race'})
    assert question.prompts == ('Tom ran.\n\nQ: Who ran?\n\nA:',) and question.options == (' Ann', ' Tom')
    fields = {'activity_label': 'Cooking', 'ctx_a': 'A man [step] cooks.', 'ctx_b': 'he and Ann', 'label': 1}
    rows = write_rows(tmp_path / 'swag.jsonl', fields | {'endings': ['sleeps.', 'stirs [title] Serve.']})
    [question] = PROBLEMS['choice'].read(rows, {'format': 'hellaswag'})
    assert question.prompts == ('Cooking: A man cooks. He and ann',)
    assert question.options == (' sleeps.', ' stirs. Serve.') and question.answer == 1


def test_winograd_compares_the_text_after_each_candidate(tmp_path):
    (tmp_path / 'schemas.txt').write_text(f'{SCHEMA}\n\n{SCHEMA}')
    scorer = FixedScorer({'because the trophy is too large.': -2, 'because the case is too large.': -4})
    found = answered('winograd', scorer, str(tmp_path / 'schemas.txt'))
    assert len(found) == 2 and found[0].scores['sum'] == [-2, -4] and found[0].is_right['sum']
    assert found[0].question.prompts[1] == 'The trophy does not fit into the case because the case'
    assert found[0].question.gap[2] == ('the trophy', 'the case')
    text = 'An oak is here. [MASK] said "no" to it.\n[MASK]\nthe man,the king\nthe king\n'
    (tmp_path / 'said.txt').write_text(text.replace('[MASK] said', '[MASK] "no"') + '\n' + text)
    quoted, said = PROBLEMS['winograd'].read(str(tmp_path / 'said.txt'), {})
    assert quoted.prompts[0] == 'An oak is here. The man' and quoted.options[0].startswith(' "no"')
    assert said.options == (' said "no" to it.',)
    row = {'context_options': ['Ann saw Bo so Ann', 'Ann saw Bo so Bo'], 'continuation': 'waved.', 'gold': 1}
    [other] = answered('winograd', FixedScorer({'so Bo waved.': -1}), write_rows(tmp_path / 'x.jsonl', row))
    assert other.is_right['sum'] and other.question.options == (' waved.',)


def test_exact_answers_accept_any_listed_text(tmp_path):
    rows = [{'question': 'Capital of France?', 'answers': ['Paris', 'paris']}, {'question': 'x', 'answers': ['y']}]
    scorer = FixedScorer({}, says=['paris', 'yes'])
    fields = {'template': 'Q: {question}\nA:', 'answer': 'answers'}
    found = answered('exact', scorer, write_rows(tmp_path / 'rows.jsonl', *rows), fields)
    assert [one.is_right['exact'] for one in found] == [True, False]
    assert scorer.seen == ['Q: Capital of France?\nA:', 'Q: x\nA:'] and found[0].line('exact', 0)['said'] == 'paris'


def test_a_score_that_is_no_number_is_refused(tmp_path):
    files = write_rows(tmp_path / 'pairs.jsonl', {'sentence_good': 'a b', 'sentence_bad': 'a c'})
    with pytest.raises(InputError, match='the log-probability of text 1 of 2 is not a number'):
        answered('blimp', FixedScorer({'a b': math.nan}), files)


@pytest.mark.parametrize(('other', 'is_tied'), [(-30.00001, True), (-30.001, False)])
def test_scores_within_rounding_are_equal(tmp_path, other, is_tied):
    files = write_rows(tmp_path / 'pairs.jsonl', {'sentence_good': 'a b', 'sentence_bad': 'a c'})
    [one] = answered('blimp', FixedScorer({'a b': -30.0, 'a c': other}), files)
    assert one.is_tied['sum'] == is_tied and one.is_right['sum'] != is_tied


def test_room_is_kept_for_the_longest_accepted_answer():
    question = Question('line 1', ('Q',), (' a',), 0, accepted=('long answer',))
    assert build_prompt(FixedScorer({}, longest=12), question, [], PromptForm()).examples == 0
    with pytest.raises(InputError, match='line 1: the question is too long: 12 tokens'):
        build_prompt(FixedScorer({}, longest=11), question, [], PromptForm())


def test_examples_are_drawn_by_seed_and_question_and_never_hold_the_question():
    pool = [Question(f'line {n}', (f'Q{n}',), (f' A{n}',), 0) for n in range(6)]
    forms = {seed: PromptForm(shots=5, seed=seed) for seed in (0, 1)}
    drawn = {seed: [draw_examples(pool, pool[n], n, form) for n in range(6)] for seed, form in forms.items()}
    assert drawn[0] == [draw_examples(pool, pool[n], n, forms[0]) for n in range(6)] != drawn[1]
    for number, examples in enumerate(drawn[0]):
        assert sorted(examples) == sorted(one.solved for n, one in enumerate(pool) if n != number)
    assert len({tuple(examples) for examples in drawn[0]}) > 1
    with pytest.raises(InputError, match='6 examples per question are asked for .* have 5 other questions'):
        draw_examples(pool, pool[0], 0, PromptForm(shots=6))


def test_prompt_loses_whole_examples_from_its_left_and_never_the_question():
    question = Question('x.jsonl: line 3', ('What?',), (' yes',), 0)
    form = PromptForm('Answer.', '\n')
    examples = ['first example', 'second', 'third']
    whole = build_prompt(FixedScorer({}), question, examples, form)
    assert whole.examples == 3 and whole.pairs[0].context == 'Answer.\nfirst example\nsecond\nthird\nWhat?'
    size = len(whole.pairs[0].context) + len(' yes') - 1
    assert build_prompt(FixedScorer({}, longest=size), question, examples, form).examples == 3
    cut = build_prompt(FixedScorer({}, longest=size - 1), question, examples, form)
    assert cut.examples == 2 and cut.pairs[0].context == 'Answer.\nsecond\nthird\nWhat?'
    with pytest.raises(
        InputError, match='x.jsonl: line 3: the question is too long: 16 tokens; the model reads 15 at most'
    ):
        build_prompt(FixedScorer({}, longest=15), question, examples, form)


def test_shots_stand_before_each_question(tmp_path):
    rows = [{'context': f'\nQ: {n}\nA:', 'completion': f' {n}'} for n in range(3)]
    train = list(PROBLEMS['exact'].read(write_rows(tmp_path / 'train.jsonl', *rows), {}))
    scorer = FixedScorer({}, says=['0'])
    question = write_rows(tmp_path / 'test.jsonl', rows[0])
    [one] = answered('exact', scorer, question, form=PromptForm(delimiter='', shots=2), pool=train)
    assert one.prompt.examples == 2 and sorted(scorer.seen[0].split('\nQ: ')) == ['', '0\nA:', '1\nA: 1', '2\nA: 2']
    assert scorer.seen[0].endswith('\nQ: 0\nA:') and one.is_right['exact']


@pytest.mark.parametrize(
    ('name', 'row', 'fields', 'words'),
    [
        ('choice', {'context': 'x', 'choices': ['a'], 'answer': 0}, {}, "line 1: field 'choices' is not a list of two"),
        ('choice', {'context': 'x', 'choices': ['a', 'b']}, {}, 'line 1: no answer'),
        ('choice', {'context': 'x', 'choices': ['a', 'b'], 'answer': 2}, {}, "line 1: field 'answer' is '2'"),
        (
            'choice',
            {'context': 'x', 'choices': ['a', ' '], 'answer': 0},
            {},
            'has an entry that is no text or is empty',
        ),
        (
            'choice',
            {'context': 'x', 'choices': ['a', 'b'], 'answer': 0},
            {'template': '{passage}'},
            "line 1: the template has {passage}; known columns: 'context', 'question'",
        ),
        (
            'choice',
            {'body': 'x', 'choices': ['a', 'b'], 'answer': 0},
            {},
            "line 1: no column 'context'; known: 'body', 'choices', 'answer'; set text with --set to one of them",
        ),
        ('exact', {'context': 'x', 'completion': ' '}, {}, "line 1: field 'completion' has no answer"),
        ('exact', {'question': 'x', 'completion': 'y'}, {}, 'the template has {context}'),
        ('lambada', {'text': 'word'}, {}, 'line 1: the text has one word only'),
        ('blimp', {'sentence_good': 'x'}, {}, "line 1: no column 'sentence_bad'"),
        ('winograd', {'context_options': ['a b', 'c d'], 'continuation': 'e', 'gold': 3}, {}, "field 'gold' is '3'"),
    ],
)
def test_bad_rows_are_named_by_file_and_line(tmp_path, name, row, fields, words):
    with pytest.raises(InputError) as error:
        list(PROBLEMS[name].read(write_rows(tmp_path / 'rows.jsonl', row), fields))
    assert words in str(error.value) and str(tmp_path / 'rows.jsonl') in str(error.value)


@pytest.mark.parametrize(
    ('change', 'words'),
    [
        (('[MASK] is', 'it is'), 'line 1: no [MASK] in the text'),
        (('The case\n', 'The box\n'), "the answer 'The trophy' must be one of"),
        ((' is too large.', ''), 'no text after the gap'),
        (('\nThe trophy\n', '\n'), 'line 1: 3 lines; a schema has four'),
    ],
)
def test_bad_winograd_blocks_are_refused(tmp_path, change, words):
    text = SCHEMA.replace(*change)
    if 'box' in change[1]:
        text = text.replace('The trophy ,', 'The bag ,')
    (tmp_path / 'schemas.txt').write_text(text)
    with pytest.raises(InputError) as error:
        list(PROBLEMS['winograd'].read(str(tmp_path / 'schemas.txt'), {}))
    assert words in str(error.value)


@pytest.mark.parametrize(
    ('options', 'words'),
    [
        ({'name': 'blimps'}, "problem is 'blimps'"),
        ({'shots': (0, 4)}, '--shots 4 needs --train_files'),
        ({'shots': (-1,)}, 'shots is [-1]'),
        ({'shots': (2,), 'train_files': 'FILES'}, 'has 1 questions'),
        ({'shots': (0, 1), 'train_files': 'FILES'}, 'rows.jsonl has 0 questions other than that of '),
        ({'output': 'FILES'}, 'rows.jsonl: this file is read, and would be lost'),
        ({'train_files': 'FILES'}, '--train_files has no effect without --shots above 0'),
        ({'empty_prompt': 'Answer:'}, '--empty_prompt has no effect on the problem exact'),
        ({'fields': {'format': 'race'}}, '--set format: the problem exact has the fields template, answer'),
        ({'name': 'blimp', 'fields': {'label': 'x'}}, '--set label: the problem blimp has no fields'),
        ({'name': 'choice', 'fields': {'format': 'conll'}}, "format is 'conll'"),
        ({'fields': {'template': 'Q: {context'}}, "template 'Q: {context': a brace without its other half"),
        ({'name': 'text', 'fields': {'stride': '-4'}}, '--set stride=-4: it must be a whole number, at least 0'),
        ({'name': 'text', 'seed': 3}, '--seed has no effect on the problem text'),
        ({'output': Path('missing/x.jsonl')}, '--output missing/x.jsonl: there is no folder missing'),
        ({'output': Path('/')}, '--output /: this is a folder; name a file'),
        ({'name': 'text', 'shots': (1,)}, '--shots has no effect on the problem text'),
        ({'name': 'text', 'fields': {'format': 'race'}}, '--set format: the problem text has the fields detokenizer'),
    ],
)
def test_bad_options_are_refused_before_a_model_is_opened(tmp_path, options, words):
    files = write_rows(tmp_path / 'rows.jsonl', {'context': 'x', 'completion': 'y'})
    name = options.get('name', 'exact')
    before = (tmp_path / 'rows.jsonl').read_text()
    given = {field: files if value == 'FILES' else value for field, value in options.items() if field != 'name'}
    if 'output' in given:
        given['output'] = Path(given['output'])
    with pytest.raises(InputError) as error:
        score_problem(tmp_path / 'no_model', name, files, ScoreOptions(**given))
    assert words in str(error.value) and (tmp_path / 'rows.jsonl').read_text() == before


def test_published_accuracies_beside_answers_with_examples_are_marked(tmp_path):
    theirs = read_published(write_rows(tmp_path / 'published.jsonl', {'UID': 'a', 'lstm': 0.5}))
    by_paradigm = {'by_paradigm': {'a': 0.75}}
    table = published_table({'ours': {1: by_paradigm, 8: by_paradigm}}, theirs)
    assert table.split('\n')[0].split() == ['paradigm', 'ours,', '1', 'examples', 'lstm']


def test_published_accuracies_stand_beside_ours(tmp_path):
    rows = {'UID': 'a', 'lstm': 0.5, 'gpt2': 1}, {'UID': 'b', 'lstm': 0.25}, {'UID': 'other', 'lstm': 0.9}
    theirs = read_published(write_rows(tmp_path / 'published.jsonl', *rows))
    table = published_table({'ours': {0: {'by_paradigm': {'a': 0.75, 'b': 0.5}}}}, theirs)
    assert [line.split() for line in table.split('\n')] == [
        ['paradigm', 'ours', 'lstm', 'gpt2'],
        ['a', '75.0', '50.0', '100.0'],
        ['b', '50.0', '25.0', '-'],
        ['mean', 'of', '2', '62.5', '37.5', '100.0'],
    ]


def test_wikitext_lines_become_ordinary_text_only_if_they_can_be_restored():
    line = 'In 2000 Boulter had a well @-@ known role ( " Scott " ) , worth 1 @,@ 000 @.@ 5 .'
    assert undo_wikitext(line) == 'In 2000 Boulter had a well-known role ("Scott"), worth 1,000.5.'
    assert redo_wikitext(undo_wikitext(line)) == line
    assert detokenize(f'{line}\nNo. 5 , x\nbad-hyphen ,', 'wikitext') == (
        f'{undo_wikitext(line)}\nNo. 5 , x\nbad-hyphen ,',
        len('No. 5 , x') + len('bad-hyphen ,'),
    )
    with pytest.raises(InputError, match="detokenizer is 'wiki'"):
        detokenize(line, 'wiki')


def test_texts_are_measured_per_token_word_character_and_byte(tmp_path):
    (tmp_path / 'text.txt').write_text('é ab\n')
    found = measure_texts(FixedScorer({'é ab\n': -6.0}), str(tmp_path / 'text.txt'))
    assert found['tokens'] == 6 and found['perplexity'] == pytest.approx(math.e)
    assert found['word_perplexity'] == pytest.approx(math.exp(3))
    assert found['bits_per_byte'] == pytest.approx(1 / math.log(2))
    assert found['bits_per_character'] == pytest.approx(6 / 5 / math.log(2))
    (tmp_path / 'tokenized.txt').write_text('a dog , a cat\nNo. 5 , x\n')
    ordinary = 'a dog, a cat\nNo. 5 , x\n'
    found = measure_texts(FixedScorer({ordinary: -6.0}), str(tmp_path / 'tokenized.txt'), detokenizer='wikitext')
    assert found['characters_left_tokenized'] == pytest.approx(9 / 24)
    (tmp_path / 'empty.txt').write_text(' \n')
    with pytest.raises(InputError, match='empty.txt: the file has no text'):
        measure_texts(FixedScorer({}), str(tmp_path / 'empty.txt'))
