"""Tests ONNX files: onnxruntime computes the model's outputs at any batch size, and one line names what ONNX lacks."""

import json
import logging
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from flax import nnx

from efficient_attention.config.head import HeadConfig
from efficient_attention.config.model import ModelConfig
from efficient_attention.errors import InputError
from efficient_attention.inference.jax_export import ExportableModel, exportable_encoder
from efficient_attention.inference.onnx_export import export_onnx
from efficient_attention.interop.pretrained import Pretrained
from efficient_attention.models.fine_tuning import FineTuningModel
from tests.inference.test_jax_export import rows_of
from tests.inference.tiny_checkpoint import random_params

WITHIN = 1e-4
# jax2onnx loads hundreds of plugins, and its packages warn about their own use of JAX.
pytestmark = pytest.mark.filterwarnings('ignore')


def model_of(attention: str, **fields) -> ExportableModel:
    """Returns a small encoder with a token head."""
    fields = {'width': 16, 'heads': 2, 'layers': 1, 'vocab_size': 30, 'max_length': 32, **fields}
    config = ModelConfig(attention=attention, attention_dropout_rate=0.0, **fields)
    head = HeadConfig(kind='token', outputs=3)
    params = random_params(lambda: FineTuningModel(config, head, rngs=nnx.Rngs(0)))
    made = Pretrained(config, head, (), 'token_classification', '', None, True, lambda: params)
    return exportable_encoder(Path('model'), made, 32)


@pytest.mark.parametrize('attention, sharing', [('longformer(4)', 'none'), ('full', 'all')])
def test_onnxruntime_computes_the_same(
    tmp_path: Path, attention: str, sharing: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture
):
    from onnxruntime import InferenceSession

    fields = {'global_tokens': 4} if attention.startswith('longformer') else {'layers': 2}
    model = model_of(attention, sharing=sharing, **fields)
    with caplog.at_level(logging.INFO):
        export_onnx(model, tmp_path / 'exported')
    assert not caplog.records and capfd.readouterr() == ('', '') and not logging.root.manager.disable
    described = json.loads((tmp_path / 'exported' / 'export.json').read_text())
    assert described['outputs'] == {'logits': 'float32 [batch, 32, 3]'}
    session = InferenceSession(tmp_path / 'exported' / 'model.onnx')
    inputs = rows_of(5, 32, 30, tuple(model.lengths))
    wanted = np.asarray(jax.jit(model.call)(model.params, *inputs.values())['logits'])
    [found] = session.run(['logits'], inputs)
    np.testing.assert_allclose(found, wanted, atol=WITHIN, rtol=WITHIN)


def test_a_missing_operation_is_named_and_nothing_is_written(tmp_path: Path):
    # jit: in loops on JAX 0.12, for which jax2onnx 0.13 was not made
    with pytest.raises(
        InputError, match='^ONNX: jax2onnx cannot convert the operation (jit|pad|rem) with a dynamic batch size$'
    ):
        export_onnx(model_of('linear'), tmp_path / 'exported')
    assert not list(tmp_path.iterdir())


def test_a_file_that_computes_something_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    class Session:
        def __init__(self, path: str) -> None:
            assert Path(path).is_file()

        def run(self, names: list[str], inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
            return [np.zeros((*inputs['tokens'].shape, 3), np.float32) for _ in names]

    monkeypatch.setattr('onnxruntime.InferenceSession', Session)
    with pytest.raises(InputError, match='onnxruntime computes other logits than JAX'):
        export_onnx(model_of('full'), tmp_path / 'exported')
    assert not list(tmp_path.iterdir())


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, 'jax2onnx', None)
    with pytest.raises(InputError, match=r"^--format onnx needs: pip install 'efficient-attention\[export\]'"):
        export_onnx(model_of('full'), tmp_path / 'exported')
