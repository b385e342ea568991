"""Predictions of a fine-tuned checkpoint for whole files, in the form that official scripts and servers want."""

import dataclasses
from pathlib import Path
from typing import Any, Unpack

from efficient_attention.data.examples.text_encoder import unknown_words
from efficient_attention.errors import InputError
from efficient_attention.inference.options import ExampleOptions
from efficient_attention.inference.pipeline import PROBLEMS, TextPipeline, make_pipeline
from efficient_attention.interop.pretrained import open_pretrained
from efficient_attention.tasks.problems.problem import Problem
from efficient_attention.whole_files import whole_folder

SPLITS = ('dev', 'test')


def predict_files(
    path: Path,
    folder: Path,
    *,
    split: str = 'test',
    checkpoint: str = '',
    batch_size: int = 32,
    length: int = 0,
    **fields: Unpack[ExampleOptions],
) -> dict[str, Any]:
    """Writes predictions; returns 'files', 'notes' and, of labelled rows, the official 'metrics'.

    The folder appears when all is written.

    Args:
        path: a workdir, or a Hugging Face folder with a head.
        folder: must be missing or empty.
        split: 'dev', or 'test', which may lack labels. Thresholds stay as a run chose them on its dev files.
        checkpoint: of a workdir, as `pipeline` takes it.
        batch_size: rows at a time.
        length: most tokens a row; 0 = as in training.
        fields: of a config's `examples` group in place of the run's own, such as `test='my.csv'` and `text='review'`.

    Raises:
        InputError: there are no such files or labels, the checkpoint has no head, or the folder is not empty.
        RunError: the disk is full.
    """
    if split not in SPLITS:
        raise InputError(f'split is {split!r}; known: {", ".join(SPLITS)}')
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f'{folder}: there is something already; name another folder (--output)')
    pretrained = open_pretrained(path, checkpoint)
    trained = pretrained.run
    size = {'batch_size': batch_size, 'length': length or (trained.data.length if trained else 0)}
    run: TextPipeline = make_pipeline(kind_of(path, pretrained.problem), path, pretrained, {}, **size)
    examples = trained.examples if trained else run.examples
    task = run.task(dataclasses.replace(examples, **fields))
    if not getattr(task.config, split):
        raise InputError(f'{path} names no files for examples.{split}; name them (--files)')
    found: dict[str, Any] = {'files': [], 'notes': [], 'metrics': {}}
    with whole_folder(folder) as partial:
        for name in task.dev_splits if split == 'dev' else (split,):
            predict_split(task, run, name, partial, found)
    found['files'] = [str(folder / Path(file).relative_to(partial)) for file in found['files']]
    return found | {'notes': task.notes + found['notes']}


def predict_split(task: Problem[Any, Any], run: TextPipeline, split: str, folder: Path, found: dict[str, Any]) -> None:
    """Writes the files of one split; adds to `found`: files, metrics where all is labelled, a note where a part is."""
    examples = task.read(split)
    features = task.encode(examples)
    predictions = task.decode(examples, features, run.outputs(features))
    labelled = sum(map(task.is_labelled, examples))
    if split in task.dev_splits or labelled == len(examples):
        found['metrics'] |= task.score(examples, predictions, split)
    elif labelled:
        note = f'{labelled} of {len(examples)} examples of examples.{split} have labels; without all no scores'
        found['notes'].append(note)
    found['notes'] += unknown_words(run.encoder, features)
    found['files'] += map(str, task.write(examples, predictions, split, folder))


def kind_of(path: Path, problem: str) -> str:
    """The name of the pipeline that serves a checkpoint of this problem; `path` is for the message.

    Raises:
        InputError: it has no head for a problem.
    """
    for kind, problems in PROBLEMS.items():
        if problem in problems:
            return kind
    raise InputError(f'{path} was trained for {problem!r}; it has no head to predict with')
