"""A pretraining run that takes seconds: a corpus and a model of some thousand words and parameters, 20 steps.

This is also a config file: python train.py --config tests/training/tiny_run.py --config.data.source=... --workdir ...
"""

from pathlib import Path
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from configs.common import default_config
from efficient_attention.config.dict_conversion import from_dict, to_dict
from efficient_attention.config.run import RunConfig
from efficient_attention.training.run import Run, build_run, make_state
from efficient_attention.training.state import TrainState
from efficient_attention.workdir.checkpoint_writer import CheckpointWriter
from efficient_attention.workdir.config_file import claim_workdir
from efficient_attention.workdir.inference_files import FILES, FINGERPRINT, file_hashes

WORDS = 'the a red old small river house dog king tree road falls sleeps runs sings waits near under over with'.split()
DOCUMENTS = 60


def write_corpus(folder: Path) -> str:
    """Writes `corpus.txt`, documents separated by blank lines, and returns the value of `data.source` for it."""
    rng = np.random.default_rng(0)

    def sentence() -> str:
        return ' '.join(rng.choice(WORDS, rng.integers(4, 9))).capitalize() + '.'

    documents = [' '.join(sentence() for _ in range(rng.integers(6, 14))) for _ in range(DOCUMENTS)]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / 'corpus.txt').write_text('\n\n'.join(documents) + '\n', encoding='utf-8')
    return f'text:{folder}/corpus.txt#paragraphs'


def get_config() -> ConfigDict:
    """Returns the config of masked-LM and next-sentence pretraining with dropout; the caller sets `data.source` and
    `data.cache`.
    """
    config = default_config()
    config.data.vocab_size = 70
    config.data.length = 32
    config.data.pairs = 'nsp'
    config.data.max_masked = 5
    config.data.held_out = 0.2
    config.model.width = 16
    config.model.heads = 2
    config.model.layers = 2
    config.model.max_length = 32
    config.optimizer.learning_rate = 1e-3
    config.optimizer.warmup_steps = 2
    config.train.steps = 20
    config.train.batch_size = 8
    config.train.log_every_steps = 4
    config.checkpoint.every_steps = 10
    config.eval.every_steps = 8
    config.eval.batch_size = 8
    config.eval.samples = 0  # tests/training/test_run_samples.py has them
    return config


def tiny_config(folder: Path, **fields: Any) -> RunConfig:
    """Writes the corpus into `folder` and returns the config for it; `fields` by dotted name, as in **{'train.steps':
    5}.
    """
    config = get_config()
    config.data.source = write_corpus(folder)
    config.data.cache = str(folder / 'cache')
    config.update_from_flattened_dict(fields)
    return from_dict(config.to_dict(), RunConfig)


def fresh_workdir(folder: Path, **fields: Any) -> Path:
    """Returns the workdir of a run that has saved only its initial state; this is quick, as no step is compiled."""
    return drawn_workdir(build_run(tiny_config(folder, **fields)), folder / 'workdir')


def drawn_workdir(run: Run, workdir: Path, state: TrainState | None = None) -> Path:
    """Returns the workdir of a given run that has saved only `state`, by default its initial state."""
    config = run.config
    claim_workdir(workdir, config)
    run.task.save_assets(workdir)
    with CheckpointWriter(workdir, config.checkpoint) as checkpoints:
        record = {FINGERPRINT: {'config': to_dict(config)} | run.fingerprint, FILES: file_hashes(workdir)}
        checkpoints.save(0, state or run.init_random_state(), record=record)
    return workdir


def one_by_one(run: Run) -> TrainState:
    """Returns `run.init_random_state()`, made an array at a time: the small programs are shared by runs of other
    models.
    """
    state = make_state(run.task, run.config, run.objective, run.pruner)
    # distinct buffers, because a step donates each array once
    return jax.device_put(jax.tree.map(np.array, state), run.shardings)
