"""Bad workdirs that a user may name by mistake or get from a stranger; they extend the table of tests/bad_inputs.py."""

import shutil

from tests.bad_files import DEEP, RECORD, fields, unsealed, written
from tests.bad_inputs import BadInput, run

BAD_WORKDIRS = {
    'workdir missing': BadInput('eval.py --workdir={here}/none', '{here}/none: no run there (config.json is missing)'),
    'workdir a file': BadInput(
        'eval.py --workdir={base}/corpus.txt', '{base}/corpus.txt is a file, and a workdir is a folder'
    ),
    'workdir a file to train in': BadInput(
        'train.py --config=tests/training/tiny_run.py --workdir={base}/corpus.txt',
        '{base}/corpus.txt is a file, and a workdir is a folder; name another --workdir',
    ),
    'workdir of something else': BadInput(
        'train.py --config=tests/training/tiny_run.py --workdir={here}',
        '{here} is no workdir: thesis.docx is in it, and training writes into its folder; name a new --workdir',
        {'thesis.docx': 'chapter one'},
    ),
    'workdir an exported model': BadInput(
        'eval.py --workdir={base}/model', '{base}/model is a Hugging Face folder, and no run that `train` wrote; such'
    ),
    'checkpoint a link': run(
        'no checkpoint in {here}/run/checkpoints is undamaged; kept steps: 0',
        lambda folder: (folder / 'checkpoints' / '0').rename(folder / 'elsewhere'),
        lambda folder: (folder / 'checkpoints' / '0').symlink_to(folder / 'elsewhere'),
    ),
    'config deep': run('{here}/run/config.json: not JSON (nested too deeply)', written('config.json', DEEP)),
    'config of another version': run('{here}/run/config.json: unknown config field new; known:', fields(new=3)),
    'config mesh': run('{here}/run/config.json: mesh.tensor is 0; it must be at least 1', fields(mesh__tensor=0)),
    'config wide': run('the run needs at least', fields(model__width=2 * 10**9, eval__batch_size=8000)),
    'checkpoint unknown': BadInput(
        'eval.py --workdir={base}/run --checkpoint=7', 'there is no checkpoint of step 7 in'
    ),
    'checkpoint by a path': BadInput(
        'eval.py --workdir={base}/run --checkpoint=../x', "checkpoint '../x' is none of last"
    ),
    'checkpoint outside': run(
        'no checkpoint in {here}/run/checkpoints is undamaged; kept steps: 0',
        lambda folder: (folder / 'checkpoints' / '0' / 'record' / 'x').symlink_to('/etc/passwd'),
    ),
    'checkpoint without files': run(
        'checkpoint {here}/run/checkpoints/0 cannot be read',
        unsealed,
        lambda folder: shutil.rmtree(folder / 'checkpoints' / '0' / 'state'),
    ),
    'record a list': run('there is no checkpoint in {here}/run/checkpoints', unsealed, written(RECORD, '[' * 99_999)),
    'record of another kind': run(
        'checkpoint {here}/run/checkpoints/0 cannot be read: ValueError: its record is not a JSON object',
        unsealed,
        written(RECORD, '{"fingerprint": 3}'),
    ),
    'batch above memory': BadInput('eval.py --workdir={base}/run --batch_size=8000000000', 'the run needs at least'),
    'lock a link': run(
        '{here}/run/lock: a link to a file; a run writes files into its own folder only',
        lambda folder: ((folder / 'lock').unlink(missing_ok=True), (folder / 'lock').symlink_to('config.json')),
        command='train.py --config=tests/training/tiny_run.py --workdir={here}/run --config.data.cache={base}/cache'
        ' --config.data.source=text:{base}/corpus.txt#paragraphs',
    ),
}
