"""Tests of the built-in corpus: which texts it takes from Python's standard library, and in which order."""

import textwrap

import pytest

from efficient_attention.data.sources.stdlib_documents import MIN_WORDS, stdlib_documents, stdlib_files

LONG = 'This docstring has more than eight words of English in it.'


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text), encoding='utf-8')


def documents(root):
    """Returns the documents below `root`, read without the cache that holds the documents of the running Python."""
    return list(stdlib_documents.__wrapped__(stdlib_files(root)))


def test_docstrings_come_in_the_order_of_a_reader(tmp_path):
    write(
        tmp_path / 'module.py',
        '''
        """Module: this docstring has more than eight words of English in it."""
        raise SystemExit('importing this module would end the program')
        class A:
            """Class A: this docstring has more than eight words of English in it."""
            def method(self):
                """Method: this docstring has more than eight words of English.

                    Indented further.

                The end.
                """
                async def inner():
                    """Inner: this docstring has more than eight words of English in it."""
        try:
            pass
        except ImportError:
            def fallback():
                """Fallback: this docstring has more than eight words of English in it."""
        else:
            if A:
                def chosen():
                    """Chosen: this docstring has more than eight words of English in it."""
        ''',
    )
    found = documents(tmp_path)
    assert [text.split(':')[0] for text in found] == ['Module', 'Class A', 'Method', 'Inner', 'Fallback', 'Chosen']
    assert found[2].endswith('\n\n    Indented further.\n\nThe end.')


def test_repeats_and_near_empty_docstrings_are_left_out(tmp_path):
    write(
        tmp_path / 'a.py', f'"""{LONG}"""\ndef f():\n    """{LONG}"""\ndef g():\n    """Return self."""\ndef h(): pass'
    )
    write(tmp_path / 'b.py', f'"""{LONG}"""\ndef f():\n    """{" ".join(["1 + 2 ="] * 20)}"""')
    assert documents(tmp_path) == [LONG]
    assert len(LONG.split()) >= MIN_WORDS


def test_tests_installed_packages_and_broken_files_are_left_out(tmp_path):
    for name in ['test/a.py', 'json/tests/b.py', 'idlelib/idle_test/c.py', 'site-packages/d.py', 'lib2to3/tests/e.py']:
        write(tmp_path / name, f'"""{LONG} {name}"""')
    write(tmp_path / 'broken.py', f'"""{LONG} broken"""\nprint "python 2"')
    (tmp_path / 'bytes.py').write_bytes(b'"""\xff\xff"""')
    write(tmp_path / 'testing.py', f'"""{LONG} kept"""')
    assert documents(tmp_path) == [f'{LONG} kept']


def test_topics_come_sorted_by_name(tmp_path):
    write(tmp_path / 'pydoc_data' / 'topics.py', f'# made\ntopics = {{"b": "{LONG} two", "a": "{LONG} one"}}\n')
    assert documents(tmp_path) == [f'{LONG} one', f'{LONG} two']


@pytest.fixture(scope='module')
def running():
    return list(stdlib_documents(stdlib_files()))


def test_the_running_python_carries_two_megabytes_of_english(running):
    assert len(running) == len(set(running)) > 3000
    assert 1.2e6 < sum(map(len, running)) < 6e6
    words = ' '.join(running).lower().split()
    assert words.count('the') > 0.03 * len(words)
    assert any(text.startswith('The "assert" statement') for text in running)  # a topic


def test_files_come_in_a_fixed_order_and_none_twice():
    files = stdlib_files()
    assert list(files) == sorted(set(files))
    assert any(path.name == 'argparse.py' for path in files)
