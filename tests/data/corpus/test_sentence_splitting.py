"""Tests of sentence boundaries, by examples and by properties of the splitter."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from efficient_attention.data.corpus.sentence_splitting import split_sentences

# '|' marks the boundaries between sentences; every other character is text.
EXAMPLES = {
    'plain': 'It rained.| We stayed in.| Did you go?| No!| Then why...| He left.',
    'titles': 'Mr. Dashwood met Dr. Who at St. Paul vs. the Rev. J. Smith.| They spoke.',
    'initials': 'J. R. R. Tolkien and C. S. Lewis wrote.| So do I.| He went on.',
    'acronyms': 'The U.S. Army left D.C. Monday.| It was 5 p.m. when he came.',
    'latin': 'Use a list, e.g. Numbers, i.e. Integers, cf. Knuth et al. for more.| Etc.',
    'decimals': 'It costs 3.50 or $4.00.| Version 3.11.7 is out.| 42 is even.',
    'numbered': 'See No. 5 and pp. 3-4, Fig. 2, on Jan. 3.| She said no.| He left.',
    'the word no': 'Was it?| No.| He was not there.',
    'quotes': '"Stop!" he cried.| "Why?"| "Because."| She said: \'Go.\'| He went.',
    'curly quotes': '“Stop!” he cried.| “Why?”| “Because.”| (He smiled.)| She left.',
    'inside': 'Call os.path.join. it is lower case here.| Then stop.',
    'file names': 'Open setup.py or http://a.b/c.html?x=1.y now.| Done.',
    'ellipsis': 'He waited... and waited.| Then… nothing.| “Well…”| He left.',
    'dash': '"Yes!"-he said.| "No!" - he said again.| End.',
    'cjk': '我们去北京。|他说：“好！”我笑了。|再见！|走',
}


@pytest.mark.parametrize('name', EXAMPLES)
def test_prose(name):
    expected = [part.strip() for part in EXAMPLES[name].split('|')]
    assert split_sentences(EXAMPLES[name].replace('|', '')) == expected


def test_wrapped_lines_join_and_blank_lines_divide():
    text = 'CHAPTER I\n\nIt was a dark\n   and stormy\tnight\n\nwithout a full stop. \r\n\r\n  \n\nEnd'
    assert split_sentences(text) == ['CHAPTER I', 'It was a dark and stormy night', 'without a full stop.', 'End']


def test_lists_headings_code_and_rulers():
    text = """
# Heading
Text of the
paragraph:
- one item
  that wraps. And goes on.
* another
1. First
2) second
(a) third
======
:param x: the first
:return: nothing
>>> f(1. + 2)
3
>>> g()
... h()
* * *
The end.
"""
    assert split_sentences(text) == [
        '# Heading',
        'Text of the paragraph:',
        '- one item that wraps.',
        'And goes on.',
        '* another',
        '1. First',
        '2) second',
        '(a) third',
        ':param x: the first',
        ':return: nothing',
        '>>> f(1. + 2)',
        '3',
        '>>> g()',
        '... h()',
        'The end.',
    ]


def test_a_line_that_begins_with_an_initial_or_a_year_goes_on():
    assert split_sentences('It was written by\nJ. Smith in\n1914. It sold.') == [
        'It was written by J. Smith in 1914.',
        'It sold.',
    ]


@pytest.mark.parametrize('text', ['', ' \n\t\n', '-----\n\n=====\n'])
def test_no_text_has_no_sentences(text):
    assert split_sentences(text) == []


words = st.sampled_from(
    ['The', 'cat', 'Mr', 'etc', '"Yes', 'no', 'No', '3', '1.5', 'I', '(so', '—', 'é', '北京。', 'U.S', '- x']
)
tokens = st.builds(''.join, st.tuples(words, st.sampled_from(['', '.', '!"', '?', '...', ',', ')', '."'])))
texts = st.lists(tokens | st.sampled_from(['\n', '\n\n', '\n \n', '>>> '])).map(' '.join)


@given(texts)
def test_nothing_is_lost_but_white_space_and_rulers(text):
    sentences = split_sentences(text)
    assert re.findall(r'\w', ' '.join(sentences)) == re.findall(r'\w', text)
    assert all(sentence and sentence == ' '.join(sentence.split()) for sentence in sentences)


@given(texts, texts)
def test_a_blank_line_cuts_all_ties(first, second):
    assert split_sentences(f'{first}\n\n{second}') == split_sentences(first) + split_sentences(second)


@given(st.text())
def test_any_text_can_be_split(text):
    assert all(sentence.strip() for sentence in split_sentences(text))


def test_time_grows_with_length_alone():
    hostile = [
        '.' * 100_000,
        'a.' * 50_000,
        '" ' * 50_000,
        '. ' * 50_000,
        'A. ' * 50_000,
        '-' * 100_000,
        '\n' * 100_000,
    ]
    for text in [*hostile, *(f'{text} End.' for text in hostile)]:
        split_sentences(text)  # Quadratic time would exceed the suite's time limit.
