"""Measures fine-tuning or inference of Hugging Face's BERT classifier in PyTorch.

This program runs in the environment of `make peers`; `scripts/benchmark.py` starts it with the shape as JSON. It
prints one JSON object. The peer gets its fastest settings: PyTorch's attention kernel, fused AdamW, no clipping,
inference mode, rows padded to the longest of their batch.
"""

import json
import sys
import time

import numpy as np
import torch
import transformers


def padded_batches(shape: dict) -> list[dict[str, torch.Tensor]]:
    """Returns batches of random token ids, whose rows have given lengths and are padded to the longest row."""
    rng = np.random.default_rng(0)
    batches = []
    for lengths in shape['batches']:
        mask = np.arange(max(lengths)) < np.array(lengths)[:, None]
        tokens = rng.integers(5, shape['model']['vocab_size'], mask.shape) * mask
        arrays = {'input_ids': tokens, 'attention_mask': mask.astype(np.int64), 'labels': np.array(lengths) % 2}
        batches.append({name: torch.from_numpy(array) for name, array in arrays.items()})
    return batches


def make_model(shape: dict) -> torch.nn.Module:
    """Returns Hugging Face's BERT classifier with random weights."""
    model = shape['model']
    config = transformers.BertConfig(
        vocab_size=model['vocab_size'],
        num_hidden_layers=model['layers'],
        hidden_size=model['width'],
        num_attention_heads=model['heads'],
        intermediate_size=model['feed_forward_width'],
        hidden_dropout_prob=model['dropout_rate'],
        attention_probs_dropout_prob=model['dropout_rate'],
        num_labels=2,
    )
    return transformers.BertForSequenceClassification(config)


def measure(shape: dict) -> dict:
    """Measures the examples/s of training or inference over all batches, after one untimed batch."""
    torch.manual_seed(0)
    is_training = shape['way'] == 'train'
    model = make_model(shape).train(is_training)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, eps=1e-6, weight_decay=0.01, fused=True)
    batches = padded_batches(shape)

    def outputs(batch: dict) -> transformers.utils.ModelOutput:
        with torch.autocast('cpu', torch.bfloat16, enabled=shape['dtype'] == 'bfloat16'):
            return model(**batch)

    def step(batch: dict) -> None:
        if is_training:
            loss = outputs(batch).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            assert np.isfinite(loss.item())
        else:
            with torch.inference_mode():
                assert np.isfinite(outputs(batch).logits.float().numpy()).all()

    step(batches[0])
    start = time.perf_counter()
    for batch in batches:
        step(batch)
    seconds = time.perf_counter() - start
    examples = sum(map(len, shape['batches']))
    name = f'transformers {transformers.__version__}, torch {torch.__version__}'
    return {'name': name, 'examples_per_second': examples / seconds}


if __name__ == '__main__':
    print(json.dumps(measure(json.loads(sys.argv[1]))))
