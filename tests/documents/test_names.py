"""Every name that a guide has in backquotes is a name of the code: files, functions, config fields, metrics, attention.

The words of comments and docstrings are no names of the code. Their own backquotes and file names are checked too.
"""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from efficient_attention.attention.parsing import MECHANISMS, PATTERNS, parse_mechanism
from tests.documents.pages import ROOT, read

PAGES = ['README.md', 'CONTRIBUTING.md', 'SECURITY.md']
PAGES += [f'docs/{path.name}' for path in sorted((ROOT / 'docs').glob('*.md'))]
FILE = re.compile(r'[\w./-]*\w\.py\b')
NAME = re.compile(r'[A-Za-z_]\w*')
FENCED = re.compile(r'^```.*?^```$', re.MULTILINE | re.DOTALL)
# A reference to one thing, such as `run_cell`, `model.attention` or `parse(...)`: each word of it is a name.
REFERENCE = re.compile(r'\w+(\.\w+)*(\(.*\))?', re.DOTALL)
Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef

# Names that are not in the code: name: whose it is.
OTHERS = {
    'is_': 'the start of names',
    'has_': 'the start of names',
    'can_': 'the start of names',
    'uses_': 'the start of names',
    'third_': 'the start of arguments of configs/prune/glue.py',
    '_2x128': 'the end of arguments of configs/distill/glue.py',
    '_below_unigram': 'the end of metrics',
    'target_accuracy': 'a metric: a task and what is measured',
    'mrpc_f1': 'a metric: a task and what is measured',
    'squad_exact_match': 'a metric: a task and what is measured',
    'squad_f1': 'a metric: a task and what is measured',
    'swag_accuracy': 'a metric: a task and what is measured',
    'lra_release': 'the folder of the released Long Range Arena',
    'jacfwd': 'JAX',
    'xla_gpu_deterministic_ops': 'XLA',
    'reached_preemption_sync_point': 'JAX',
    'save_model': 'safetensors',
    'im_start': 'a token of Qwen',
    '_tokenize': 'transformers',
    '_convert_token_to_id': 'transformers',
    '_truncate_seq_pair': "BERT's code",
    'random_spans_noise_mask': "T5's code",
    'random_spans_helper': "T5's code",
    'f1_score_with_invalid': "T5's code",
    'DenoisingDataset': 'fairseq',
    'DOCKER': 'Beam',
    'SparkRunner': 'Beam',
    'DataflowRunner': 'Beam',
    'environment_type': 'Beam',
    'environment_config': 'Beam',
    'spark_master_url': 'Beam',
    'temp_location': 'Beam',
    'sdk_container_image': 'Beam',
}
OTHER_FILES = {
    'name.py': 'any file',
    'run_squad.py': "BERT's code",
    'evaluate-v1.1.py': 'SQuAD',
    'evaluate-v2.0.py': 'SQuAD',
    'hotpot_evaluate_v1.py': 'HotpotQA',
}


# ---- what there is ----


@functools.cache
def code_files() -> tuple[Path, ...]:
    """The Python files of the repository, without this one."""
    folders = ('efficient_attention', 'configs', 'docs', 'scripts', 'tests')
    found = [path for folder in folders for path in sorted((ROOT / folder).rglob('*.py'))]
    return (*(path for path in found if path != Path(__file__)), ROOT / 'train.py', ROOT / 'eval.py')


@functools.cache
def docstring_nodes(path: Path) -> tuple[ast.Constant, ...]:
    """The docstrings of a file, its classes and its functions."""
    found = []
    statements: list[ast.AST] = [ast.parse(path.read_text(encoding='utf-8'))]
    for node in statements:  # which grows
        statements += [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt)]
        if isinstance(node, Documented) and isinstance(first := node.body[0] if node.body else None, ast.Expr):
            found += [first.value] if isinstance(first.value, ast.Constant) else []
    return tuple(found)


@functools.cache
def names_of_code() -> frozenset[str]:
    """The names, and the words of strings, in Python files without docstrings and comments, in JSON and settings."""
    found: set[str] = set()
    for path in code_files():
        found |= set(path.relative_to(ROOT).with_suffix('').parts) | set(NAME.findall(without_prose(path)))
    saved = [*(ROOT / 'docs' / 'results').rglob('*.json'), *(ROOT / 'tests').rglob('*.json')]
    for path in (*saved, ROOT / 'Makefile', ROOT / 'pyproject.toml'):
        found |= set(NAME.findall(path.read_text(encoding='utf-8')))
    return frozenset(found | {Path(__file__).stem})


def without_prose(path: Path) -> str:
    """A file's text without docstrings and comments."""
    lines: list[str] = path.read_text(encoding='utf-8').split('\n')
    for node in docstring_nodes(path):
        lines[node.lineno - 1 : node.end_lineno] = [''] * ((node.end_lineno or node.lineno) - node.lineno + 1)
    return '\n'.join(re.sub(r'(^ *|  )# .*', '', line) for line in lines)


@functools.cache
def file_names() -> frozenset[str]:
    """The Python files of the repository, each with none, some or all of its folders."""
    parts = [path.relative_to(ROOT).parts for path in (*code_files(), Path(__file__))]
    return frozenset('/'.join(some[start:]) for some in parts for start in range(len(some)))


# ---- what is written ----


def spans(text: str) -> list[str]:
    """What a text has in single backquotes, outside its fenced blocks."""
    return re.findall(r'(?<!`)`([^`]+)`(?!`)', FENCED.sub('', text)) if '`' in text else []


def names_of_span(span: str) -> set[str]:
    """The names of a span: of a reference all, else those with an underscore or capital inside, and what is called."""
    names = NAME.findall(FILE.sub('', span))
    if REFERENCE.fullmatch(span) and '(' not in span:
        return set(names)
    return {name for name in names if re.search(r'\w_\w|\w[A-Z]', name)} | set(re.findall(r'([A-Za-z_]\w*)\(', span))


def missing_names(text: str) -> list[str]:
    """The names in a text's spans that the code does not have."""
    known = names_of_code() | OTHERS.keys()
    return [f'{name} in `{span}`' for span in spans(text) for name in sorted(names_of_span(span)) if name not in known]


def missing_files(text: str) -> list[str]:
    """The Python files that a text names, in backquotes, blocks or plainly, and that do not exist."""
    found = {name: re.sub(r'^(\.+/)+', '', name) for name in (FILE.findall(text) if '.py' in text else ())}
    return [name for name, path in found.items() if name not in OTHER_FILES and path not in file_names()]


def docstrings(path: Path) -> Iterator[str]:
    yield from (str(node.value) for node in docstring_nodes(path))


def references(text: str) -> str:
    """The spans of a docstring that refer to one thing; others are formulas, texts of configs and output."""
    return ' '.join(f'`{span}`' for span in spans(text) if REFERENCE.fullmatch(span))


# ---- names and files ----


@pytest.mark.parametrize('page', PAGES)
def test_the_names_of_a_page_are_in_the_code(page: str):
    assert missing_names(read(page)) == []


@pytest.mark.parametrize('page', PAGES)
def test_the_files_of_a_page_exist(page: str):
    assert missing_files(read(page)) == []


@pytest.mark.parametrize('folder', ['efficient_attention', 'configs', 'docs', 'scripts', 'tests'])
def test_docstrings_name_what_exists(folder: str):
    found = []
    for path in code_files():
        if path.is_relative_to(ROOT / folder):
            for text in docstrings(path):
                missing = missing_files(text) + missing_names(references(text))
                found += [f'{path.relative_to(ROOT)}: {one}' for one in missing]
    assert found == []


def test_every_exception_is_needed():
    of_code = [text for path in code_files() for text in docstrings(path)]
    named = [*map(read, PAGES), *map(references, of_code)]
    names = {name for text in named for span in spans(text) for name in names_of_span(span)}
    assert OTHERS.keys() - (names - names_of_code()) == set()
    files = {name for text in [*map(read, PAGES), *of_code] for name in FILE.findall(text)}
    assert OTHER_FILES.keys() - (files - file_names()) == set()


def test_what_does_not_exist_is_found():
    assert missing_names('Call `spread_over(x)`, `mechanism.lacks_all` or `Sided(1)`; `spread` is a name.') == [
        'spread_over in `spread_over(x)`',
        'lacks_all in `mechanism.lacks_all`',
        'Sided in `Sided(1)`',
    ]
    assert missing_files('`attend.py`, `models/attend.py` and attention/attend.py') == ['models/attend.py']


# ---- texts of attention ----


def attention_texts(page: str) -> list[str]:
    """The spans of a page that call a pattern or a mechanism, and those that begin a row of a table with a call."""
    text = FENCED.sub('', read(page)).replace('\\|', '|')
    in_rows = re.findall(r'^\| `(\w+\([^`]*\))` \|', text, re.MULTILINE)
    bare = [re.sub(r"^'([^']*)'$", r'\1', ' '.join(span.split())) for span in spans(text)]
    known = {*PATTERNS, *MECHANISMS}
    return in_rows + [span for span in bare if span[0].isalpha() and known & set(re.findall(r'(\w+)\(', span))]


def filled(text: str) -> str:
    """A text with a pattern or a number for each placeholder, as `window(radius)` has one."""
    tree = ast.parse(text.replace(', ...', '').replace('...', '8'), mode='eval')
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            node.args = [filler(argument) for argument in node.args]
    return ast.unparse(tree)


def filler(argument: ast.expr) -> ast.expr:
    if not isinstance(argument, ast.Name) or argument.id in ('full', 'causal'):
        return argument
    return ast.Name('causal') if argument.id == 'pattern' else ast.Constant(8)


@pytest.mark.parametrize('page', ['docs/attention.md', 'docs/taxonomy.md'])
def test_texts_of_attention_are_read(page: str):
    texts = attention_texts(page)
    assert len(texts) >= 5
    for text in texts:
        for one in text.split(';'):
            parse_mechanism(filled(one.strip()))


def test_the_defaults_in_the_tables_are_those_of_the_code():
    rows = re.findall(r'^\| `(\w+)\((\w+=[^`]*)\)` \|', read('docs/attention.md'), re.MULTILINE)
    assert len(rows) >= 6
    for name, options in rows:
        assert parse_mechanism(f'{name}({options})') == parse_mechanism(f'{name}()'), name
