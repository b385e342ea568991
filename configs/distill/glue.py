r"""Distils a fine-tuned GLUE model: a small student learns from labels and from soft targets (Hinton et al. 2015).

efficient-attention train --config configs/distill/glue.py:sst2_3x384 --workdir runs/small \
      --config.distill.teacher=runs/sst2

The teacher is a workdir of configs/finetune/glue.py, or a Hugging Face folder with a head for the task. The argument is
the task and the student. `3x384` starts with layers 2, 4 and 6 of the teacher, which must have at least six layers.
With several teachers, separated by commas, --config.train.start_from names the one to start from. `4x312` and `2x128`
are freshly initialised, or start from --config.train.start_from. Other sizes are the teacher's.

With the suffix -alone, the student learns only from labels, with the same start. Give
--config.train.start_from=runs/sst2 instead of the teacher. A freshly initialised student also needs
--config.train.start_random=True.
"""

from ml_collections import ConfigDict

from configs.common import set_fields
from configs.finetune.common import GLUE_TASKS, glue_config

STUDENTS: dict[str, dict[str, int]] = {
    '3x384': {},
    '4x312': {'layers': 4, 'width': 312, 'heads': 12, 'head_width': 0, 'feed_forward_width': 1200},
    '2x128': {'layers': 2, 'width': 128, 'heads': 2, 'head_width': 0, 'feed_forward_width': 512},
}
ALONE = '-alone'
ARGUMENTS = tuple(f'{task}_{student}{end}' for task in GLUE_TASKS for student in STUDENTS for end in ('', ALONE))


def get_config(name: str = 'sst2_3x384') -> ConfigDict:
    """Returns the config that distils a fine-tuned GLUE model into a smaller student: 3 epochs of batches of 32.

    Half of the loss is from labels, half from soft targets at temperature 2.
    """
    if name not in ARGUMENTS:
        known = f'{", ".join(GLUE_TASKS)} with _{", _".join(STUDENTS)}'
        raise ValueError(f"the config's argument is {name!r}; known: {known}, each also with {ALONE}")
    task, _, student = name.removesuffix(ALONE).partition('_')
    config = glue_config(task)

    config.examples.epochs = 3.0
    config.data.length = 128  # tokens

    set_fields(config.model, STUDENTS[student])
    if student == '3x384':
        config.train.start_layers = '2,4,6'
    if not name.endswith(ALONE):
        if student == '3x384':
            config.train.start_from = config.distill.get_oneway_ref('teacher')
        set_fields(config.distill, {'temperature': 2.0, 'labels': 0.5, 'soft': 0.5})

    config.optimizer.learning_rate = 5e-5 if student == '3x384' else 2e-4
    config.train.batch_size = 32  # rows
    config.eval.every_steps = 250
    config.checkpoint.every_steps = 250
    return config
