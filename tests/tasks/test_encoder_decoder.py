"""Tests of the base class of encoder-decoder tasks, without data: shapes, model and objectives."""

from pathlib import Path

import pytest
from flax import nnx

from efficient_attention.tasks.denoising import DenoisingTask
from efficient_attention.tasks.encoder_decoder import EncoderDecoderTask
from efficient_attention.tasks.text_to_text import TextToTextTask
from tests.shrunk_configs import shrunk_config


@pytest.mark.parametrize(
    'kind, name, argument, longest',
    [
        (TextToTextTask, 'configs.text_to_text.toy', 'copy', (64, 64)),
        (DenoisingTask, 'configs.text_to_text.books', 'bart', (64, 64)),
    ],
)
def test_model_shapes_and_objectives(
    tmp_path: Path, kind: type[EncoderDecoderTask], name: str, argument: str, longest: tuple[int, int]
):
    config = shrunk_config(name, argument, tmp_path)
    task = kind.without_data(config)
    assert task.max_lengths == longest
    shapes = task.batch_shapes()
    lengths = {name: shapes.pop(name).shape for name in ('source_lengths', 'lengths')}
    assert set(lengths.values()) == {(config.train.batch_size,)}
    assert {shape.shape for shape in shapes.values()} == {(config.train.batch_size, 64)}
    assert set(shapes) == {'source', 'source_segments', 'tokens', 'targets', 'segments', 'weights'}
    assert nnx.eval_shape(lambda: task.make_model(nnx.Rngs(0))).config == config.model
    assert task.objective.label_smoothing == config.train.label_smoothing
    assert task.evaluation_objective.label_smoothing == 0.0
    assert task.finish_metrics({'target_loss': 2.0}) == {'target_loss': 2.0}
