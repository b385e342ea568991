"""The step is compiled without data, and what it takes is what the run's arrays take."""

import jax
import pytest

from efficient_attention.planning.cost import cost_of
from efficient_attention.planning.step import temporary_bytes_of
from tests.planning.tiny_step import tiny_step

pytestmark = pytest.mark.lenient_promotion  # Optax multiplies Python floats with int32 counts


def test_a_device_holds_its_part_of_the_state():
    run, memory = tiny_step().run, tiny_step().memory
    whole = {name: 4 * sum(leaf.size for leaf in jax.tree.leaves(getattr(run.abstract_state, name))) for name in STATE}
    assert whole['params'] / 2 <= memory.parameters < 0.6 * whole['params']  # of fsdp 2; small arrays stay whole
    assert memory.parameters * 2 <= memory.optimizer < 0.6 * whole['opt_state']
    assert memory.batch == 4 * (4 * 4 * 32 + 3 * 4 * 5 + 2 * 4)  # of 4 rows
    assert 0 < memory.temporary and memory.total == sum(vars(memory).values())
    assert memory.least < memory.total


STATE = ('params', 'opt_state')


def test_the_program_has_the_products_that_the_model_needs():
    step = tiny_step()
    assert step.program is not None and not step.program.endless()
    # No activation is computed twice; the heads' small products are left out of the model's count.
    needed = step.run.task.training_flops() / 2
    assert needed <= cost_of(step.program).flops < 1.2 * needed


def test_a_refusal_names_its_bytes():
    error = (
        'RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO temporaries (18.51G) exceeds '
        'available HBM (15.75G).'
    )
    assert temporary_bytes_of(error) == int(18.51 * 2**30)
    assert temporary_bytes_of('RESOURCE_EXHAUSTED: Used 1.5T of 31.25G hbm.') == int(1.5 * 2**40)
    assert temporary_bytes_of('INTERNAL: HLO temporaries (18.51G)') is None
