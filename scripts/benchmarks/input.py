"""Measures tokens/s of the input pipeline against tokens/s of a training step (`scripts/benchmark.py input`)."""

from collections.abc import Iterator
from typing import Any

from absl import flags

from efficient_attention.commands.flags import define_length
from efficient_attention.config.data import DataConfig
from efficient_attention.data.batching.host_batch_shard import HostBatchShard
from scripts.benchmarks.step import (
    CHILD,
    SHAPE,
    TOKENS_A_STEP,
    Run,
    add_tokens_per_second,
    benchmark_shape,
    check_length,
    define_step_flags,
)


def define_flags(options: flags.FlagValues) -> None:
    """Defines the command-line flags of this benchmark."""
    define_length(128, f'Tokens per row; a divisor of {TOKENS_A_STEP}.', options)
    flags.DEFINE_string('source', 'stdlib', 'As data.source in a config.', flag_values=options)
    flags.DEFINE_enum('pairs', 'sop', ('none', 'nsp', 'sop'), 'As data.pairs in a config.', flag_values=options)
    flags.DEFINE_integer('batches', 200, 'Batches to time.', flag_values=options)
    define_step_flags(options)


def check_flags(options: flags.FlagValues) -> None:
    """Raises InputError if the row length does not divide the number of tokens in a training step."""
    check_length(options.length)


def measure(options: flags.FlagValues, run: Run) -> Iterator[dict[str, Any]]:
    """Measures tokens/s of the input pipeline and of the training step separately, prints their ratio, yields both."""
    delivered = pipeline_tokens_per_second(options)
    consumed = add_tokens_per_second(run(CHILD, benchmark_shape(options.length, options.steps, options.choices)))[
        'tokens_per_second'
    ]
    print(f'input pipeline alone {delivered:,.0f} tokens/s; a training step alone consumes {consumed:,.0f} tokens/s')
    print(f'the input delivers {delivered / consumed:.1f} times what the step consumes')
    yield {'length': options.length, 'input_tokens_per_second': delivered, 'step_tokens_per_second': consumed}


def pipeline_tokens_per_second(options: flags.FlagValues) -> float:
    """Returns how many tokens/s the input pipeline delivers without a model; prepares the corpus if needed."""
    from efficient_attention.data.corpus.batches import tokens_per_second, training_batches
    from efficient_attention.data.corpus.prepare import prepare_corpus

    config = DataConfig(
        source=options.source,
        vocab_size=SHAPE['vocab_size'],
        length=options.length,
        pairs=options.pairs,
        max_masked=round(0.15 * options.length) + 1,
    )
    rows = TOKENS_A_STEP // options.length
    batches = training_batches(
        prepare_corpus(config), config, HostBatchShard(rows), seed=0, steps=range(options.batches + 1)
    )
    return tokens_per_second(batches, options.batches)
