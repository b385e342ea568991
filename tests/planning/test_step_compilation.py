"""Tests that a step is compiled without data, and that its planned memory equals the memory of the run's arrays."""

import dataclasses
import importlib.util
import re
import time
from collections.abc import Callable
from typing import Any

import jax
import pytest
from ml_collections import ConfigDict

from configs.lm.gpt import get_config as gpt_config
from configs.pretrain.bert import get_config as bert_config
from configs.pretrain.bigbird import get_config as bigbird_config
from configs.pretrain.longformer import get_config as longformer_config
from efficient_attention.attention import attend as attention
from efficient_attention.attention.request import Request
from efficient_attention.planning.collectives import collectives_of
from efficient_attention.planning.cost import cost_of
from efficient_attention.planning.plan import StepTimeEstimate, make_plan
from efficient_attention.planning.step_compilation import compile_step, temporary_bytes_from_error
from efficient_attention.planning.topology import make_topology_devices, parse_topology
from efficient_attention.training.fill_config import fill_config_for_plan
from efficient_attention.training.run import build_run
from efficient_attention.training.step import jit_train_step
from tests.planning.tiny_step import config, tiny_step
from tests.training.tiny_run import tiny_config

STATE = ('params', 'opt_state')
pytestmark = pytest.mark.lenient_promotion  # Optax mixes Python floats with int32 counts


def test_a_device_holds_its_part_of_the_state():
    run, memory = tiny_step().run, tiny_step().memory
    whole = {name: 4 * sum(leaf.size for leaf in jax.tree.leaves(getattr(run.abstract_state, name))) for name in STATE}
    # split over fsdp 2; small arrays stay whole
    assert whole['params'] / 2 <= memory.parameters < 0.6 * whole['params']
    assert memory.parameters * 2 <= memory.optimizer < 0.6 * whole['opt_state']
    assert memory.batch == 4 * (4 * 4 * 32 + 3 * 4 * 5 + 3 * 4)  # of 4 rows
    assert 0 < memory.temporary and memory.total_bytes == sum(vars(memory).values())
    assert memory.bytes_without_rows < memory.total_bytes


def test_a_run_of_the_same_config_takes_what_was_planned(tmp_path):
    """Compares the bytes of the run's arrays on a device, and XLA's memory analysis of the program compiled for
    them.
    """
    run = build_run(tiny_config(tmp_path, **{'mesh.fsdp': 2}), jax.devices()[:2])
    state, batch = run.init_random_state(), run.put_batch_on_devices(next(run.task.training_batches(0, 1, 0, 1)))
    held = {'parameters': state.params, 'optimizer': state.opt_state, 'batch': batch}
    planned = dataclasses.asdict(tiny_step().memory)
    assert {name: planned[name] for name in held} == {name: bytes_on_device(tree) for name, tree in held.items()}
    compiled = jit_train_step(run).lower(state, batch).compile()
    counted = compiled.memory_analysis()
    # The step donates its state: only metrics need new memory. Nothing in the program waits for the host.
    assert counted.alias_size_in_bytes == bytes_on_device(state)
    assert not re.search('callback|outfeed|infeed', compiled.as_text())
    assert counted.temp_size_in_bytes == planned['temporary']
    taken = counted.argument_size_in_bytes + counted.output_size_in_bytes - counted.alias_size_in_bytes
    taken += bytes_on_device(batch['segments'])  # on the device, but the program reads the lengths instead
    assert taken + counted.generated_code_size_in_bytes == tiny_step().memory.total_bytes - planned['temporary']


def bytes_on_device(tree: Any) -> int:
    return sum(leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves(tree))


def test_the_program_has_the_products_that_the_model_needs():
    step = tiny_step()
    assert step.program is not None and not step.program.loops_of_unknown_length()
    # No activation is computed twice. The model's own count leaves out the heads' small products.
    needed = step.run.task.training_flops() / 2
    assert needed <= cost_of(step.program).flops < 1.2 * needed


def test_a_refusal_names_its_bytes():
    error = (
        'RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO temporaries (18.51G) exceeds '
        'available HBM (15.75G).'
    )
    assert temporary_bytes_from_error(error) == int(18.51 * 2**30)
    assert temporary_bytes_from_error('RESOURCE_EXHAUSTED: Used 1.5T of 31.25G hbm.') == int(1.5 * 2**40)
    assert temporary_bytes_from_error('INTERNAL: HLO temporaries (18.51G)') is None


@pytest.mark.parametrize('text, package', [('v5e:2x2', 'libtpu'), ('h200:4', 'jax_cuda13_plugin')])
def test_other_compilers_compile_the_same_products(text, package):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f'needs {package}: make plan')
    step = compile_step(config(), make_topology_devices(parse_topology(text)))
    assert step.program is not None and not step.program.loops_of_unknown_length()
    cost, on_half = cost_of(step.program), cost_of(tiny_step().program)
    assert 0.95 < 2 * cost.flops / on_half.flops < 1.2
    assert (cost.cycles > 0) == (package == 'libtpu')
    assert step.memory.parameters == tiny_step().memory.parameters
    axes = {one.axes for one in collectives_of(step.program, step.run.mesh.shape)}
    assert 'fsdp' in axes and axes <= {'data', 'fsdp', 'data+fsdp'}


@pytest.mark.slow
@pytest.mark.parametrize(
    'make, rows, length, remat',
    [(lambda: bert_config('base'), 64, 512, 'dots'), (gpt_config, 16, 1024, 'full')],
    ids=['bert', 'gpt2'],
)
def test_a_step_on_an_h200_spends_its_time_in_products(
    make: Callable[[], ConfigDict], rows: int, length: int, remat: str
):
    """Attention reaches cuDNN, so products take at least 0.6 of the estimated time, in at most 16 GiB.

    Of the configs, only the rows and the dropout of weights change. With attention on XLA and without recomputation,
    the share of products is 0.20 and 0.25 (docs/results/scaling.md).
    """
    if importlib.util.find_spec('jax_cuda13_plugin') is None:
        pytest.skip('needs jax_cuda13_plugin: make plan')
    values = make()
    values.train.batch_size, values.data.length = rows, length
    values.model.attention_dropout_rate = 0.0
    if values.task == 'pretraining':
        values.data.max_masked = 77  # as in the paper, for rows of 512 tokens
    plan = make_plan(fill_config_for_plan(values.to_dict()), parse_topology('h200:1'), is_searched=False)
    assert plan.step.run.config.model.remat == remat
    assert plan.step.memory.temporary <= 16 * 2**30
    assert plan.estimate.products is not None and plan.estimate.step_seconds is not None
    assert plan.estimate.products >= 0.6 * plan.estimate.step_seconds


@pytest.mark.slow
@pytest.mark.parametrize(
    'make, rows, length, remat, temporary',
    [
        (longformer_config, 8, 4096, 'full', 8),
        (bigbird_config, 8, 4096, 'full', 8),
        (lambda: bert_config('base'), 64, 512, 'dots', 16),
    ],
    ids=['longformer', 'bigbird', 'bert'],
)
def test_block_sparse_steps_on_an_h200_spend_their_time_in_products(
    make: Callable[[], ConfigDict], rows: int, length: int, remat: str, temporary: float
):
    """With the packed rows and the dropout of their configs, all attention runs on the kernels of `mosaic`, and
    products take at least 0.6 of the estimated time (docs/results/scaling.md).
    """
    if importlib.util.find_spec('jax_cuda13_plugin') is None:
        pytest.skip('needs jax_cuda13_plugin: make plan')
    values = make()
    assert values.model.attention_dropout_rate == 0.1
    values.train.batch_size, values.data.length = rows, length
    values.model.update(dtype='bfloat16', remat=remat)
    plan = make_plan(fill_config_for_plan(values.to_dict()), parse_topology('h200:1'), is_searched=False)
    assert plan.cost is not None and set(plan.cost.kernels) == {'forward', 'dq', 'dkv'}
    assert plan.step.memory.temporary <= temporary * 2**30
    assert plan.estimate.products is not None and plan.estimate.step_seconds is not None
    assert plan.estimate.products >= 0.6 * plan.estimate.step_seconds


@pytest.mark.slow
def test_packed_rows_and_dropout_cost_little_in_a_step_on_an_h200(monkeypatch: pytest.MonkeyPatch):
    """A step of BERT-base takes at most 1.15 times the estimate of a step without segments and without dropout.

    The estimate has no arithmetic except matrix products, so it leaves out the hashes of dropout.
    """
    if importlib.util.find_spec('jax_cuda13_plugin') is None:
        pytest.skip('needs jax_cuda13_plugin: make plan')
    values = bert_config('base')
    values.train.batch_size, values.data.length, values.data.pairs = 64, 512, 'none'
    values.model.update(dtype='bfloat16', remat='dots', attention_backend='mosaic')

    def estimate(rate: float) -> StepTimeEstimate:
        values.model.attention_dropout_rate = rate
        plan = make_plan(fill_config_for_plan(values.to_dict()), parse_topology('h200:1'), is_searched=False)
        assert set(plan.estimate.kernels) == {'forward', 'dq', 'dkv'}
        return plan.estimate

    packed, make_request = estimate(0.1), attention.make_request

    def without_segments(*arguments: Any) -> Request:
        *operands, options = arguments
        return make_request(*operands, dataclasses.replace(options, query_segments=None, key_segments=None))

    monkeypatch.setattr(attention, 'make_request', without_segments)
    plain = estimate(0.0)
    assert packed.step_seconds is not None and plain.step_seconds is not None
    assert plain.kernel_seconds < packed.kernel_seconds  # the kernels of packed rows load the tokens' segments
    assert packed.step_seconds <= 1.15 * plain.step_seconds


@pytest.mark.slow
@pytest.mark.parametrize('remat, most', [('dots', 20), ('full', 8)])
def test_attention_dropout_without_kernels_keeps_no_weights(remat: str, most: int):
    """On GPUs older than Hopper, XLA computes dropout of attention weights. Recomputed weights leave 9.1 or 4.0 of 52.5
    GiB.
    """
    if importlib.util.find_spec('jax_cuda13_plugin') is None:
        pytest.skip('needs jax_cuda13_plugin: make plan')
    values = bert_config('base')
    values.train.batch_size, values.data.length, values.data.pairs = 64, 512, 'nsp'
    values.model.update(dtype='bfloat16', attention_dropout_rate=0.1, remat=remat, attention_backend='dense')
    step = compile_step(fill_config_for_plan(values.to_dict()), make_topology_devices(parse_topology('h200:1')))
    assert step.memory.temporary <= most * 2**30


@pytest.mark.slow
@pytest.mark.parametrize('backend', ['blocked', 'mosaic'])
def test_bigbird_compiles_quickly_for_an_h200(backend: str):
    """Twelve layers with different random blocks share a program, so their step compiles about as fast as one of two
    layers.

    On an idle core of an AMD EPYC without AVX-512, 12 layers took 26.6 s (`blocked`) and 29.4 s (`mosaic`), and 2
    layers 26.5 and 28.2 s. A program with the 12 layers one after another took 136 s. The limit of 60 s allows for a
    busy machine.
    """
    if importlib.util.find_spec('jax_cuda13_plugin') is None:
        pytest.skip('needs jax_cuda13_plugin: make plan')
    values = bigbird_config()
    values.train.batch_size, values.model.attention_backend = 4, backend
    seconds = {}
    for layers in (2, 12):
        values.model.layers = layers
        config = fill_config_for_plan(values.to_dict())
        before = time.process_time()
        step = compile_step(config, make_topology_devices(parse_topology('h200:1')))
        seconds[layers] = time.process_time() - before
    assert seconds[12] <= min(60.0, 1.5 * seconds[2])
    assert step.memory.temporary <= 2.5 * 2**30  # 3.1 GiB with the layers one after another
