"""Writes the predictions of a fine-tuned checkpoint for data files, in the formats that official scorers and test
servers read.
"""

import dataclasses
from pathlib import Path
from typing import Any, Unpack

from efficient_attention.atomic_files import atomic_folder
from efficient_attention.data.examples.text_encoder import unknown_words_note
from efficient_attention.errors import InputError
from efficient_attention.inference.keyword_option_types import ExampleOptions
from efficient_attention.inference.pipeline import PROBLEMS, TextPipeline, make_pipeline
from efficient_attention.interop.pretrained import open_pretrained
from efficient_attention.tasks.problems.problem import Problem

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
    """Writes predictions for a split; returns a dict with 'files', 'notes' and, if the rows have labels, the official
    'metrics'.

    The output folder appears only once all files are written.

    Args:
        path: a workdir, or a Hugging Face folder with a head.
        folder: the output folder; it must be missing or empty.
        split: 'dev', or 'test', which may lack labels. Thresholds stay as the run chose them on its dev files.
        checkpoint: the workdir's checkpoint, as in `pipeline`.
        batch_size: rows at a time.
        length: maximum tokens per row; 0 = as in training.
        fields: fields of the config's `examples` group that replace the run's, such as `test='my.csv'`.

    Raises:
        InputError: files or labels are missing, the checkpoint has no head, or the folder is not empty.
        RunError: the disk is full.
    """
    if split not in SPLITS:
        raise InputError(f'split is {split!r}; known: {", ".join(SPLITS)}')
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f'{folder}: there is something already; name another folder (--output)')
    pretrained = open_pretrained(path, checkpoint)
    trained = pretrained.run
    size = {'batch_size': batch_size, 'length': length or (trained.data.length if trained else 0)}
    run: TextPipeline = make_pipeline(pipeline_kind(path, pretrained.problem), path, pretrained, {}, **size)
    examples = trained.examples if trained else run.examples
    task = run.make_task(dataclasses.replace(examples, **fields))
    if not getattr(task.config, split):
        raise InputError(f'{path} names no files for examples.{split}; name them (--files)')
    found: dict[str, Any] = {'files': [], 'notes': [], 'metrics': {}}
    with atomic_folder(folder) as partial:
        for name in task.dev_splits if split == 'dev' else (split,):
            predict_split(task, run, name, partial, found)
    found['files'] = [str(folder / Path(file).relative_to(partial)) for file in found['files']]
    return found | {'notes': task.notes + found['notes']}


def predict_split(task: Problem[Any, Any], run: TextPipeline, split: str, folder: Path, found: dict[str, Any]) -> None:
    """Writes the prediction files of one split, and adds their names, metrics and notes to the dict `found`.

    Metrics need labels for all rows. If only some rows have labels, a note says so.
    """
    examples = task.read_examples(split)
    features = task.encode(examples)
    predictions = task.predict_from_outputs(examples, features, run.outputs(features))
    labelled = sum(map(task.is_labelled, examples))
    if split in task.dev_splits or labelled == len(examples):
        found['metrics'] |= task.score(examples, predictions, split)
    elif labelled:
        note = f'{labelled} of {len(examples)} examples of examples.{split} have labels; scores need labels for all'
        found['notes'].append(note)
    found['notes'] += unknown_words_note(run.encoder, features)
    found['files'] += map(str, task.write_predictions(examples, predictions, split, folder))


def pipeline_kind(path: Path, problem: str) -> str:
    """Returns the name of the pipeline for checkpoints of this problem, such as 'text-classification'.

    `path` is the checkpoint's path, for the error message.

    Raises:
        InputError: the checkpoint has no head for a problem.
    """
    for kind, problems in PROBLEMS.items():
        if problem in problems:
            return kind
    origin = 'has an encoder without a head' if problem == 'none' else f'was trained for {problem!r}'
    raise InputError(f'{path} {origin}; it has no head to predict with')
