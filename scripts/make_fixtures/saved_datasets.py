"""Saves tiny datasets with the package `datasets` of Hugging Face, for tests of the reader of Arrow and Parquet files.

Run it by hand in an environment with datasets: python scripts/make_fixtures/saved_datasets.py
"""

import shutil
from pathlib import Path

import datasets

OUTPUT = Path(__file__).resolve().parents[2] / 'tests' / 'data' / 'sources' / 'saved_datasets'
REVIEWS = {
    'text': ['A grëat film.', 'Dull.', 'So slow!', 'A joy\nin two lines.', 'Fine.'],
    'label': [1, 0, 0, 1, 1],
    'stars': [4.5, 1.0, 1.5, 5.0, 3.0],
}
MOODS = datasets.ClassLabel(names=['bad', 'good'])
CONTEXT = 'The river Po flows through Turin.'
QUESTIONS = {
    'id': ['q0', 'q1'],
    'title': ['Po', 'Po'],
    'context': [CONTEXT, CONTEXT],
    'question': ['Which city is it?', 'Which sea is it?'],
    'answers': [
        {'text': ['Turin', 'Turin', 'Po'], 'answer_start': [27, 27, 10]},
        {'text': [], 'answer_start': []},
    ],
}
TAGS = ['O', 'B-LOC']
WORDS = {'tokens': [['The', 'Po', 'flows'], ['Through', 'Turin']], 'ner_tags': [[0, 1, 0], [0, 1]]}


def main() -> None:
    """Replaces the folder of saved datasets."""
    shutil.rmtree(OUTPUT, ignore_errors=True)
    features = {'text': datasets.Value('string'), 'label': MOODS, 'stars': datasets.Value('float32')}
    train = datasets.Dataset.from_dict(REVIEWS, features=datasets.Features(features))
    hidden = {'text': ['No label.'], 'label': [-1], 'stars': [0.0]}
    test = datasets.Dataset.from_dict(hidden, features=datasets.Features(features))
    splits = datasets.DatasetDict({'train': train, 'test': test})
    splits.save_to_disk(OUTPUT / 'reviews', num_shards={'train': 2, 'test': 1})
    train.select([4, 0]).save_to_disk(OUTPUT / 'selected')
    train.to_parquet(OUTPUT / 'reviews.parquet')
    answers = {'text': datasets.Value('string'), 'answer_start': datasets.Value('int32')}
    texts = {name: datasets.Value('string') for name in QUESTIONS if name != 'answers'}
    features = datasets.Features({**texts, 'answers': datasets.Sequence(answers)})
    datasets.Dataset.from_dict(QUESTIONS, features=features).to_parquet(OUTPUT / 'questions.parquet')
    tags = datasets.Sequence(datasets.ClassLabel(names=TAGS))
    features = datasets.Features({'tokens': datasets.Sequence(datasets.Value('string')), 'ner_tags': tags})
    datasets.Dataset.from_dict(WORDS, features=features).save_to_disk(OUTPUT / 'words')


if __name__ == '__main__':
    main()
