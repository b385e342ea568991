"""The walk in docs/finetuning.md, command by command, on a small checkpoint and a few rows."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.evaluation.tiny_checkpoint import WORDS, write_checkpoint

ROOT = Path(__file__).resolve().parent.parent
WALK = (ROOT / 'docs' / 'finetuning.md').read_text(encoding='utf-8')
COMMANDS = [line for block in re.findall(r'```bash\n(.*?)```', WALK, re.DOTALL) for line in block.splitlines()]
[SNIPPET] = re.findall(r'```python\n(.*?)```', WALK, re.DOTALL)
# What a small checkpoint and a few rows need beside what the walk says.
SHORT = [
    '--config.data.length=24',
    '--config.examples.buckets=(24,)',
    '--config.train.steps=2',
    '--config.train.batch_size=8',
    '--config.eval.batch_size=8',
    '--config.optimizer.bias_correction=False',
]


@pytest.fixture(scope='module')
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the project's entry points, a checkpoint and SST-2 as the walk has them."""
    folder = tmp_path_factory.mktemp('walk')
    for name in ('train.py', 'eval.py', 'configs', 'scripts', 'efficient_attention'):
        (folder / name).symlink_to(ROOT / name)
    (folder / 'checkpoints').mkdir()
    (folder / 'checkpoints' / 'minilm').symlink_to(write_checkpoint(folder / 'made', 'fill_mask'))
    rng, data = np.random.default_rng(0), folder / 'data' / 'glue' / 'SST-2'
    data.mkdir(parents=True)
    for split, rows in (('train', 24), ('dev', 9), ('test', 5)):
        texts = [' '.join(rng.choice(WORDS[:10], 4)) for _ in range(rows)]
        is_test = split == 'test'
        lines = [f'{row}\t{text}' if is_test else f'{text}\t{row % 2}' for row, text in enumerate(texts)]
        header = 'index\tsentence' if is_test else 'sentence\tlabel'
        (data / f'{split}.tsv').write_text('\n'.join([header, *lines]) + '\n', encoding='utf-8')
    return folder


def run(folder: Path, command: list[str]) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_walk(folder: Path):
    """One test: each command goes on from what the one before wrote."""
    printed = {}
    for line in COMMANDS:
        python, script, *rest = shlex.split(line)
        assert python == '.venv/bin/python', line
        more = SHORT if Path(script).name in ('train.py', 'train_seeds.py') else []
        printed[line] = run(folder, [sys.executable, script, *rest, *more])
    evaluated, seeds, predicted, scored = (json.loads(printed[line].splitlines()[-1]) for line in COMMANDS[1:5])
    assert 0 <= evaluated['accuracy'] <= 1 and evaluated['fine_tuning_weight'] == 9
    assert set(seeds['seeds']) == {'0', '1'} and 0 <= seeds['mean']['accuracy'] <= 1
    assert scored['metrics']['accuracy'] == pytest.approx(evaluated['accuracy'])
    lines = (folder / 'submission' / 'SST-2.tsv').read_text(encoding='utf-8').splitlines()
    assert lines[0] == 'index\tprediction' and len(lines) == 6 and predicted['files'] == ['submission/SST-2.tsv']
    config = json.loads((folder / 'exported' / 'sst2' / 'config.json').read_text(encoding='utf-8'))
    assert config['architectures'] == ['BertForSequenceClassification']
    long = json.loads((folder / 'checkpoints' / 'minilm_long' / 'config.json').read_text(encoding='utf-8'))
    assert long['max_position_embeddings'] == 1024
    answers = run(folder, [sys.executable, '-c', SNIPPET])
    assert answers.count("'label'") == 2
