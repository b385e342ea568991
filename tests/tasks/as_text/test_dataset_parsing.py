"""Tests of several data sets of pairs in one text, and of the metrics for their generated texts."""

from pathlib import Path

import pytest

from efficient_attention.data.pairs.pair_datasets import PairDataset
from efficient_attention.errors import InputError
from efficient_attention.tasks.as_text.dataset_parsing import parse_text_datasets, score_generated_texts
from efficient_attention.tasks.as_text.glue_text_dataset import GlueTextDataset
from efficient_attention.tasks.metrics.translation import translation_scores


def written(path: Path, rows: str) -> Path:
    path.write_text('sentence\tlabel\n' + rows, encoding='utf-8')
    return path


def test_each_task_has_its_metric_and_all_other_sets_bleu(tmp_path: Path):
    """Two files of the same task are scored together, and pairs without a generated text are not scored."""
    first, second = written(tmp_path / 'a.tsv', 'good\t1\nbad\t0\n'), written(tmp_path / 'b.tsv', 'dull\t0\n')
    text = f'glue:sst2:{first}; toy:copy:2:3-3; glue:sst2:{second}'
    sets = parse_text_datasets(text, 'pairs.held_out')
    assert [type(one) for one in sets] == [GlueTextDataset, PairDataset, GlueTextDataset]
    pairs = [list(one.read_pairs()) for one in sets]
    copied = [pair.target for pair in pairs[1]]
    found = score_generated_texts(sets, pairs, [{0: 'positive', 1: 'maybe'}, dict(enumerate(copied)), {0: 'negative'}])
    assert found['sst2_accuracy'] == pytest.approx(2 / 3)
    assert {name: found[name] for name in found if name != 'sst2_accuracy'} == translation_scores(copied, copied)
    assert score_generated_texts(sets, pairs, [{0: 'positive'}, {}, {}]) == {'sst2_accuracy': 1.0}


def test_an_unknown_set_names_all_that_are_known():
    with pytest.raises(InputError, match=r'known: lines:.*; toy:.*; glue:<task>:<files>; squad:<files>; choices:'):
        parse_text_datasets('race:a', 'pairs.train')
