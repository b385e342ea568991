"""Tests that runs which share a compiled step (`shared_programs.py`) would have compiled the same one."""

from pathlib import Path
from typing import Any

import pytest

from efficient_attention.training.run import build_run
from efficient_attention.training.step import jit_train_step
from tests.training.shared_programs import compiled_fields
from tests.training.tiny_run import tiny_config

FIELDS: dict[str, Any] = {
    'checkpoint.every_steps': 9,
    'eval.every_steps': 7,
    'train.log_every_steps': 3,
    'train.max_skipped_in_row': 5,
    'train.seed': 1,
    'train.trackers': 'csv',
}


@pytest.mark.lenient_promotion  # Optax mixes Python floats with int32 counts, which strict promotion refuses
def test_no_step_reads_a_field_that_the_key_leaves_out(tmp_path: Path):
    texts = []
    for fields in ({}, FIELDS):
        run = build_run(tiny_config(tmp_path, **fields))
        texts.append(jit_train_step(run).lower(run.abstract_state, run.task.batch_shapes()).as_text())
    assert texts[0] == texts[1]
    keys = [compiled_fields(tiny_config(tmp_path, **fields), 'step') for fields in ({}, FIELDS, {'optimizer.eps': 0.5})]
    assert keys[0] == keys[1] != keys[2]
