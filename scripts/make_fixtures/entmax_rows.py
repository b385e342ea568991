"""Writes tests/attention/distributions/entmax_rows.json: outputs of the entmax package, which tests compare with.

    make peers
    .venv-peers/bin/python scripts/make_fixtures/entmax_rows.py

For rows of logits, the file has the weights of sparsemax and of entmax with alpha 1.5 in float64. It also has the
gradients of sum(weights * cos(0, 1, ...)) with respect to the logits.
"""

import importlib.metadata
import json
from pathlib import Path

import entmax
import torch

PATH = Path(__file__).resolve().parents[2] / 'tests' / 'attention' / 'distributions' / 'entmax_rows.json'
FUNCTIONS = {'sparsemax': entmax.sparsemax, 'entmax': entmax.entmax15}
SCALES = (0.1, 1.0, 5.0)  # with the smallest scale of logits, all keys have nonzero weights; with the largest, few have
LENGTHS = (1, 2, 7, 40)


def main() -> None:
    """Computes the weights and gradients for random logits, and writes the JSON file."""
    torch.manual_seed(0)
    cases = []
    for scale in SCALES:
        for length in LENGTHS:
            z = (torch.randn(length, dtype=torch.float64) * scale + 3.0).to(torch.float32).to(torch.float64)
            case = {'z': z.tolist()}
            for name, function in FUNCTIONS.items():
                z = z.detach().requires_grad_()
                weights = function(z, dim=-1)
                (weights * torch.cos(torch.arange(length, dtype=torch.float64))).sum().backward()
                case[name] = {'weights': weights.tolist(), 'gradient': z.grad.tolist()}
            cases.append(case)
    found = {'entmax': importlib.metadata.version('entmax'), 'cases': cases}
    PATH.parent.mkdir(exist_ok=True)
    PATH.write_text(json.dumps(found) + '\n', encoding='utf-8')
    print(f'{PATH}: {PATH.stat().st_size:,} bytes')


if __name__ == '__main__':
    main()
