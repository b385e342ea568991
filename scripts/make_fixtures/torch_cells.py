"""Writes tests/recurrence/torch_cells.json: outputs of PyTorch's recurrent layers, which test_torch.py compares with.

    make peers
    .venv-peers/bin/python scripts/make_fixtures/torch_cells.py

For each cell, the file has weights, inputs, outputs, and the gradients of sum(outputs * cos(0, 1, ...)) with respect to
weights and inputs.
"""

import json
from pathlib import Path

import torch

PATH = Path(__file__).resolve().parents[2] / 'tests' / 'recurrence' / 'torch_cells.json'
CELLS = {'tanh': torch.nn.RNN, 'gru': torch.nn.GRU, 'lstm': torch.nn.LSTM}
ROWS, LENGTH, INPUTS, UNITS = 2, 5, 3, 4


def tensor_to_lists(tensor: torch.Tensor) -> list | float:
    """Returns a tensor as nested lists of numbers with nine digits, which are enough for float32."""
    if tensor.ndim:
        return [tensor_to_lists(one) for one in tensor]
    return float(f'{tensor.item():.9g}')


def main() -> None:
    """Computes the outputs and gradients of random recurrent layers, and writes the JSON file."""
    torch.manual_seed(0)
    found = {'torch': torch.__version__.split('+')[0]}
    for name, kind in CELLS.items():
        layer = kind(INPUTS, UNITS, batch_first=True)
        for weight in layer.parameters():
            torch.nn.init.normal_(weight, std=0.6)
        x = torch.randn(ROWS, LENGTH, INPUTS, requires_grad=True)
        out = layer(x)[0]
        (out * torch.cos(torch.arange(out.numel(), dtype=torch.float32)).reshape(out.shape)).sum().backward()
        weights = {
            key: {'value': tensor_to_lists(one), 'gradient': tensor_to_lists(one.grad)}
            for key, one in layer.named_parameters()
        }
        found[name] = {
            'x': tensor_to_lists(x),
            'of_x': tensor_to_lists(x.grad),
            'out': tensor_to_lists(out),
            'weights': weights,
        }
    PATH.write_text(json.dumps(found) + '\n', encoding='utf-8')
    print(f'{PATH}: {PATH.stat().st_size:,} bytes')


if __name__ == '__main__':
    main()
