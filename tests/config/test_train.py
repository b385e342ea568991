"""Tests that each out-of-range field of the group `train` is refused in one clear line."""

import pytest

from efficient_attention.config.train import TrainConfig
from efficient_attention.errors import InputError


@pytest.mark.parametrize('field', ['steps', 'batch_size', 'micro_batches', 'log_every_steps', 'max_skipped_in_row'])
def test_counts_are_at_least_one(field: str):
    with pytest.raises(InputError, match=rf'^train\.{field} is 0; it must be '):
        TrainConfig(**{field: 0})


@pytest.mark.parametrize('field', ['seed', 'early_stop', 'stall_seconds'])
def test_numbers_are_not_negative(field: str):
    with pytest.raises(InputError, match=rf'^train\.{field} is -1; it must be '):
        TrainConfig(**{field: -1})


def test_sizes_come_from_somewhere():
    with pytest.raises(InputError, match=r'^train\.start_random is True; it needs train\.start_from'):
        TrainConfig(start_random=True).check_start_checkpoint()


def test_trackers_are_a_list_of_known_names():
    assert TrainConfig().tracker_names == ('tensorboard',)
    assert (
        TrainConfig(trackers='csv, wandb').tracker_names == ('csv', 'wandb')
        and not TrainConfig(trackers='').tracker_names
    )
    for trackers, line in (
        ('csv,comet', "is 'comet'; known: tensorboard, csv,"),
        ('csv,csv', "is 'csv,csv'; a tracker"),
    ):
        with pytest.raises(InputError, match=rf'^train\.trackers {line}'):
            TrainConfig(trackers=trackers)
