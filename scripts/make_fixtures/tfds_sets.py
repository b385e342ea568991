"""Prepares tiny stand-ins of public TFDS datasets with TFDS itself, for tests of the TFDS reader.

Run it by hand: `make tfds NAME=scripts/make_fixtures/film_notes.py`, which installs the environment, then
`.venv-tfds/bin/python scripts/make_fixtures/tfds_sets.py`. The features of a stand-in come from TFDS's own builder of
the public dataset; only the rows are invented. film_notes is prepared by `make tfds`, in two file formats.
"""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tensorflow_datasets as tfds

ROOT = Path(__file__).resolve().parents[2]
OUTPUT = ROOT / 'tests' / 'data' / 'sources' / 'prepared_tfds'
NOTES = 'scripts/make_fixtures/film_notes.py'
TEXTS = ('The first text has a few words.', 'Here is a second text.', 'The third one ends.')
CONTEXT = 'The river Po flows through Turin.'
ANSWERS = [
    {'text': ['Turin', 'Turin', 'Po'], 'answer_start': [27, 27, 10]},
    {'text': ['Po'], 'answer_start': [10]},
]

Rows = list[dict[str, Any]]


def main() -> None:
    """Replaces the folder of prepared datasets."""
    shutil.rmtree(OUTPUT, ignore_errors=True)
    for file_format in ('array_record', 'tfrecord'):
        shutil.rmtree(ROOT / 'data' / 'tfds' / 'film_notes', ignore_errors=True)
        subprocess.run(['make', 'tfds', f'NAME={NOTES}', f'FORMAT={file_format}'], cwd=ROOT, check=True)
        shutil.copytree(ROOT / 'data' / 'tfds' / 'film_notes', OUTPUT / file_format / 'film_notes')
    for name, splits in public_sets().items():
        prepare(name, splits, OUTPUT / 'public')


def prepare(name: str, splits: dict[str, Rows], folder: Path) -> None:
    """Writes these rows as the prepared dataset `name`, in two TFRecord files per split."""
    builder = tfds.builder(name, data_dir=folder, file_format='tfrecord', try_gcs=False)

    def split_generators(dl_manager: Any) -> dict[str, Iterator[tuple[int, dict[str, Any]]]]:
        del dl_manager  # Nothing is downloaded.
        return {split: iter(enumerate(rows)) for split, rows in splits.items()}

    builder._split_generators = split_generators
    settings = tfds.download.DownloadConfig(try_download_gcs=False, num_shards=2, compute_stats='skip')
    builder.download_and_prepare(download_dir=folder / 'downloads', download_config=settings)
    shutil.rmtree(folder / 'downloads', ignore_errors=True)


def public_sets() -> dict[str, dict[str, Rows]]:
    """Returns the invented rows of each public dataset, by its name and split."""
    sentences = [{'sentence': text, 'label': index % 2, 'idx': index} for index, text in enumerate(TEXTS)]
    pairs = [
        {'premise': text, 'hypothesis': TEXTS[0], 'label': index, 'idx': index} for index, text in enumerate(TEXTS)
    ]
    scores = [
        {'sentence1': text, 'sentence2': TEXTS[0], 'label': index + 0.5, 'idx': index}
        for index, text in enumerate(TEXTS)
    ]
    hidden = [row | {'label': -1} for row in sentences]
    mnli = {'train': pairs, 'validation_matched': pairs[:2], 'validation_mismatched': pairs[1:]}
    reviews = [{'text': text, 'label': index % 2} for index, text in enumerate(TEXTS)]
    texts = [{'text': text} for text in TEXTS]
    questions: Rows = [
        {'id': f'q{index}', 'title': 'Po', 'context': CONTEXT, 'question': TEXTS[index], 'answers': answers}
        for index, answers in enumerate(ANSWERS)
    ]
    plausible = {'plausible_answers': {'text': [], 'answer_start': []}}
    with_flag = [row | plausible | {'is_impossible': False} for row in questions]
    none = {'answers': {'text': [], 'answer_start': []}, 'is_impossible': True, 'id': 'q2'}
    return {
        'glue/sst2': {'train': sentences, 'validation': sentences[:2], 'test': hidden},
        'glue/mnli': mnli,
        'glue/stsb': {'train': scores, 'validation': scores[:2]},
        'imdb_reviews': {
            'train': reviews,
            'test': reviews[:2],
            'unsupervised': [row | {'label': -1} for row in reviews],
        },
        'lm1b': {'train': texts, 'test': texts[:2]},
        'wikipedia/20230601.simple': {'train': [row | {'title': 'Po'} for row in texts]},
        'squad/v1.1': {'train': questions, 'validation': questions},
        'squad/v2.0': {'train': [*with_flag, with_flag[0] | none], 'validation': [with_flag[1], with_flag[0] | none]},
    }


if __name__ == '__main__':
    main()
