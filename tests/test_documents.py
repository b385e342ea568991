"""Tests that every code block in README.md, CONTRIBUTING.md and docs/ runs, and that every measured figure has its
command.

The commands of a bash block run at tiny sizes. Commands that tests/documents/tiny.py lists, with a reason, are only
parsed. Few runs are trained to their end (tests/documents/running.py).
"""

import fnmatch
import json
import re
from pathlib import Path

import pytest

from efficient_attention.programs.dispatch import COMMAND
from tests.documents.figures import without_record
from tests.documents.pages import NAMES, ROOT, Block, Command, all_blocks, all_commands, blocks, commands, read
from tests.documents.running import Reader, parse, reason_to_skip
from tests.documents.tiny import BEFORE, BEGUN, FIELDS, SHRUNK, SKIPPED, TRAINED, fields_pattern, make_folder, shrunk

pytestmark = [
    pytest.mark.lenient_promotion,  # Optax mixes Python floats with int32 counts, which strict promotion refuses
    pytest.mark.filterwarnings('ignore:the load_module'),  # ml_collections uses load_module
    # it comes where matplotlib needs over a second, on a busy machine
    pytest.mark.filterwarnings('ignore:Creating legend'),
]

# Numbers with a unit that are not measurements: (page, number) -> its meaning.
NOT_MEASURED = {
    ('docs/pretraining.md', '50 %'): 'how often a pair is random or swapped, by rule',
    ('docs/pretraining.md', '80 %'): "BERT's rule of replacement",
    ('docs/pretraining.md', '10 %'): "BERT's rule of replacement",
    ('docs/reliability.md', '300 s'): 'a limit that the code sets',
    ('docs/reliability.md', '20 s'): 'a limit that the code sets',
    ('docs/reliability.md', '30 s'): 'a limit that the code sets',
    ('docs/reliability.md', '64 MiB'): 'a limit that the code sets',
}
LANGUAGES = ('bash', 'python', 'json', 'text')


@pytest.fixture(scope='module')
def reader(tmp_path_factory: pytest.TempPathFactory) -> Reader:
    folder = tmp_path_factory.mktemp('documents')
    make_folder(folder)
    return Reader(folder)


# ---- the effect of the blocks ----


@pytest.mark.parametrize('page', [name for name in NAMES if any(blocks(name, read(name)))])
def test_the_blocks_of_a_page_run(reader: Reader, page: str):
    reader.read(page)


def last_line(reader: Reader, start: str) -> dict:
    """Returns the JSON object in the last output line of the only command that begins with `start`."""
    [text] = [text for text in reader.printed if f'{text} '.startswith(f'{COMMAND} {start} ')]
    return json.loads(reader.printed[text].splitlines()[-1])


def test_the_walk_of_fine_tuning_ends_in_its_files(reader: Reader):
    reader.read('docs/finetuning.md')
    evaluated = last_line(reader, 'eval --workdir runs/sst2 --checkpoint best')
    assert 0 <= evaluated['accuracy'] <= 1 and evaluated['fine_tuning_weight'] == 9
    seeds = last_line(reader, 'seeds')
    assert set(seeds['seeds']) == {'0', '1'} and 0 <= seeds['mean']['accuracy'] <= 1
    scored = last_line(reader, 'predict --model runs/sst2 --output dev_predictions')
    assert scored['metrics']['accuracy'] == pytest.approx(evaluated['accuracy'])
    predicted = last_line(reader, 'predict --model runs/sst2 --output submission')
    lines = (reader.folder / 'submission' / 'SST-2.tsv').read_text(encoding='utf-8').splitlines()
    assert lines[0] == 'index\tprediction' and len(lines) == 6 and predicted['files'] == ['submission/SST-2.tsv']
    config = json.loads((reader.folder / 'exported' / 'sst2' / 'config.json').read_text(encoding='utf-8'))
    assert config['architectures'] == ['BertForSequenceClassification']
    long = json.loads((reader.folder / 'checkpoints' / 'minilm_long' / 'config.json').read_text(encoding='utf-8'))
    assert long['max_position_embeddings'] == 1024
    own = (reader.folder / 'out' / 'predictions.jsonl').read_text(encoding='utf-8').splitlines()
    assert [str(json.loads(line)['id']) for line in own] == ['7', '8', '9']
    [said] = [out for text, out in reader.printed.items() if 'a dull one' in text]
    assert said.count("'label'") == 2


def test_the_walk_from_text_to_text_ends_in_its_texts(reader: Reader):
    reader.read('docs/text_to_text.md')
    scores = last_line(reader, 'eval --workdir runs/reverse')
    assert {'target_loss', 'bleu', 'chrf', 'exact_match'} < scores.keys() and 'tok:13a' in scores['bleu_signature']
    of_run, of_export = (
        (reader.folder / f'my_digits_{name}.txt').read_text(encoding='utf-8') for name in ('reversed', 'exported')
    )
    assert of_run == of_export and of_run.count('\n') == 2
    labels = last_line(reader, 'eval --workdir runs/sst2_text')
    assert 0 <= labels['sst2_accuracy'] <= 1


# ---- the kinds of blocks, and skipped commands ----

LEFT_OUT = [command for command in all_commands() if reason_to_skip(command)]


@pytest.mark.parametrize('command', LEFT_OUT, ids=lambda command: f'{reason_to_skip(command)} - {command.text[:60]}')
def test_a_command_that_is_skipped_parses(command: Command, monkeypatch: pytest.MonkeyPatch):
    parse(command, monkeypatch)


def test_every_reason_to_skip_is_needed():
    texts = [command.installed for command in LEFT_OUT]
    assert [pattern for pattern in SKIPPED if not fnmatch.filter(texts, pattern)] == []


def test_every_smaller_size_is_needed():
    used = [shrunk(block.text)[1] for block in all_blocks('python')]
    assert set(SHRUNK) == set().union(*used)


def test_all_fields_that_make_a_config_small_are_needed():
    run = [command for command in all_commands() if not reason_to_skip(command)]
    assert set(FIELDS) == {fields_pattern(command.words) for command in run} - {''}


def test_runs_that_are_trained_or_begin_stand_on_a_page():
    named = [*TRAINED, *BEGUN]
    assert len(set(named)) == len(named) and set(named) <= set().union(*map(written_by, NAMES))


def test_a_page_goes_on_only_from_what_another_one_left():
    for page, before in BEFORE.items():
        assert written_by(before) & {word for command in run_on(page) for word in command.words}


def run_on(page: str) -> list[Command]:
    """Returns the commands of a page that are run."""
    found = [command for block in blocks(page, read(page)) if block.language == 'bash' for command in commands(block)]
    return [command for command in found if not reason_to_skip(command)]


def written_by(page: str) -> set[str]:
    """Returns the workdirs that the commands of a page train."""
    of_train = [command.words for command in run_on(page) if command.program == 'train']
    training = [words for words in of_train if '--help' not in words]
    return {words[words.index('--workdir') + 1] for words in training}


def test_parsing_finds_what_does_not_exist(monkeypatch: pytest.MonkeyPatch):
    for text in (
        '.venv/bin/python train.py --config configs/lm/gpt.py:small --workdir x --config.model.widht=3',
        '.venv/bin/python train.py --config configs/finetune/glue.py:sst3 --workdir x',
        '.venv/bin/python train.py --config configs/finetune/glue.py:sst2 --workdir x --config.examples.problem=chess',
        'efficient-attention train --config lm/gpt.py:smal --workdir x',
        'efficient-attention predict --modle x --output y',
        'efficient-attention tran --workdir x',
        '.venv/bin/python scripts/benchmark.py memory --parts width',
        '.venv/bin/python scripts/nothing.py',
        '.venv/bin/python -m pytest -m real tests/test_nothing.py',
    ):
        with pytest.raises((Exception, SystemExit)) as raised, monkeypatch.context() as patch:
            parse(Command('page', 1, text), patch)
        assert getattr(raised.value, 'code', 2) == 2


def test_every_block_says_what_it_is():
    others = [block for page in NAMES for block in blocks(page, read(page)) if block.language not in LANGUAGES]
    assert others == []
    for block in all_blocks('json'):
        assert json.loads(block.text)


def test_no_command_hides_in_a_text_block():
    is_command = re.compile(
        rf'^\s*(\$ |\.venv|python|pip|make |{COMMAND} \w|train\.py --|eval\.py --|scripts/[\w/]+\.py --)', re.MULTILINE
    )
    assert [block for block in all_blocks('text') if is_command.search(block.text)] == []


def test_commands_are_found_line_by_line():
    block = Block('page', 3, 'bash', "# 2026-01-01, here\na.py --x 'b #c' \\\n  --y  # why\n\nmake d && ./e\n")
    found = [(command.line, command.text) for command in commands(block)]
    assert found == [(4, "a.py --x 'b #c' --y"), (7, 'make d'), (7, './e')]


# ---- figures ----


@pytest.mark.parametrize('page', NAMES)
def test_every_measured_figure_has_its_record(page: str):
    found = [figure for figure in without_record(page, read(page)) if (page, figure.text) not in NOT_MEASURED]
    assert [f'{figure.page}:{figure.line}: {figure.text}' for figure in found] == []


def test_every_exception_is_needed():
    found = {(page, figure.text) for page in NAMES for figure in without_record(page, read(page))}
    assert set(NOT_MEASURED) <= found


PAGE = """# Title
It takes 3 ms.

## One
```bash
# 2026-01-01, a machine
python scripts/benchmark.py step
```
It takes 4 ms, or 5 % of the time.
![drawn](images/a.svg)

## Two
| a | loss |
|---|---|
| b | 1.5 |

A perplexity of 7, and 8 layers, and `9 s`.
```bash
# measured once
python scripts/benchmark.py step
```

## Three
```bash
# 2026-01-01, a machine
python draw.py docs/images/b.svg
```
![drawn](images/b.svg)
"""


def test_a_figure_without_record_is_found():
    found = [(figure.line, figure.text) for figure in without_record('docs/results/page.md', PAGE)]
    assert found == [(2, '3 ms'), (10, '![drawn](images/a.svg)'), (15, '| b | 1.5 |'), (17, 'perplexity of 7')]


def test_a_guide_has_no_figure_of_its_own():
    found = [figure.line for figure in without_record('docs/page.md', PAGE)]
    assert found == [2, 9, 9, 10, 15, 17]


def test_published_figures_name_their_source():
    published = '## Published\n\nA loss of 3.\n\nSource: Somebody 2020, arXiv 2001.00001, table 1\n'
    assert without_record('docs/results/page.md', published) == []
    assert len(without_record('docs/results/page.md', published.replace('Source', 'From'))) == 1


def test_pages_are_found():
    assert {'README.md', 'CONTRIBUTING.md', 'docs/attention.md'} <= set(NAMES)
    assert all(Path(ROOT, name).is_file() for name in NAMES)
