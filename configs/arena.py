"""Trains one cell of Long Range Arena's table: one task with one mechanism (Tay et al. 2020, arXiv 2011.04006).

    efficient-attention train --config configs/arena.py:listops_short,nystrom --workdir runs/cell
    efficient-attention eval --workdir runs/cell --checkpoint best --split test

A pair of a task and a mechanism is a cell. The argument is the task, the mechanism and, optionally, the size and the
stage, separated by commas. Sizes:
- `small` (the default): 2 layers of 64, as in the protocol of Nystromformer's authors.
- `paper`: the sizes in the paper.
- `code`: the sizes in the paper's released settings.

The stage `masked` pretrains on the task's rows with masked words. A run of size small then starts from the result with
--config.train.start_from. All cells of a task and size have the same rows in the same order and the same steps;
scripts/train_grid.py trains many cells. docs/arena.md says what each task tests; results: docs/results/arena.md.

Tasks: listops (500 to 2,000 words), listops_short (200 to 600, ours), text, image, pathfinder (ours: 20 x 20 pixels,
chains of three bars), pathfinder_hard (the original's 14 bars), pathx (128 x 128 pixels), passages (ours), recall
(ours), retrieval (its files may not be redistributed). Datasets: efficient_attention/data/arena/dataset_registry.py.

A cell of size small takes 5 (recall) to 60 minutes on one core. Test accuracy of full attention: 33 % on listops_short,
63 on text, 88 on pathfinder; on an H100, 36 on listops and 28 on image. The paper, with its sizes and 5 to 35 times the
steps: 36 on listops, 64 on text, 42 on image.
"""

from ml_collections import ConfigDict

from configs.common import default_config, set_fields
from configs.finetune.common import fine_tuning_config
from efficient_attention.models.arena_sizes import ARENA_SIZES, arena_fields

BOOKS = 'text:data/books/novels_100_english/**/*.txt'
# This maps each task to its dataset, its numbers of generated training, dev and test rows, and its longest text.
TASKS: dict[str, tuple[str, tuple[int, ...], int]] = {
    'listops': ('listops:rows={}:length=500-2000', (96_000, 2_000, 2_000), 2_000),
    'listops_short': ('listops:rows={}:length=200-600', (48_000, 2_000, 2_000), 600),
    'text': ('imdb:folder=data/imdb/aclImdb', (), 1_000),
    'image': ('cifar10:folder=data/cifar10_jpg', (), 1_024),
    'pathfinder': ('pathfinder:rows={}:size=20:bars=easy:starts=fixed', (48_000, 2_000, 2_000), 400),
    'pathfinder_hard': ('pathfinder:rows={}:size=32', (160_000, 20_000, 20_000), 1_024),
    'pathx': ('pathfinder:rows={}:size=128', (160_000, 20_000, 20_000), 16_384),
    'passages': (f'passages:rows={{}}:length=1000:source={BOOKS}', (32_000, 2_000, 2_000), 1_000),
    'recall': ('recall:rows={}:length=128:pairs=4:keys=8:values=4', (48_000, 2_000, 2_000), 128),
    'retrieval': ('aan:folder=data/aan', (), 4_000),
}
# This maps each kind of dataset to its vocabulary, the number of token ids, and the number of classes.
KINDS = {
    'listops': ('listops', 20, 10),
    'imdb': ('bytes', 261, 2),
    'cifar10': ('grey', 261, 10),
    'pathfinder': ('grey', 261, 2),
    'passages': ('bytes', 261, 2),
    'recall': ('recall', 1_157, 4),
    'aan': ('bytes', 261, 2),
}
PAIRED = ('passages', 'retrieval')
SMALL: dict[str, object] = {'layers': 2, 'width': 64, 'heads': 2, 'feed_forward_width': 128, 'dropout_rate': 0.1}
SMALL |= {'scan_unroll': 2}  # layers are unrolled, because a loop over two layers would copy their activations
# task -> number of training steps, each on 32 rows; all other tasks have 1,000 steps
SMALL_STEPS = {'listops_short': 1_500, 'pathfinder': 1_500, 'recall': 2_000}
# For each size and task, RECIPES has the batch size, steps, learning rate, warm-up steps and weight decay.
# docs/arena.md compares the sizes `paper` and `code`.
RECIPES: dict[str, dict[str, tuple[float, ...]]] = {
    'code': {
        'listops': (32, 5_000, 0.05 / 1_000**0.5, 1_000, 0.1),
        'text': (32, 20_000, 0.05 / 8_000**0.5, 8_000, 0.1),
        'retrieval': (32, 5_000, 0.05 / 8_000**0.5, 8_000, 0.1),
        'image': (256, 35_000, 5e-4, 175, 0.0),
        'pathfinder_hard': (512, 62_400, 1e-3, 312, 0.0),
        'pathx': (64, 500_000, 1e-3, 2_500, 0.0),
    },
}
RECIPES['paper'] = RECIPES['code'] | {
    'retrieval': (32, 5_000, 0.5 / 8_000**0.5, 8_000, 0.1),
    'image': (256, 35_000, 0.01, 175, 0.0),
    'pathfinder_hard': (512, 62_400, 0.01, 312, 0.0),
    'pathx': (64, 500_000, 0.01, 2_500, 0.0),
}
# In the released settings, these pairs of task and mechanism have models of other sizes, in the form of `ARENA_SIZES`.
# BigBird's released settings misspell the number of heads, 4, as `num_head`; this table uses 4 heads.
# The mechanism `lra_local` is the local attention of the released settings.
OF_MECHANISMS: dict[tuple[str, str], tuple[float, ...]] = {
    ('image', 'bigbird'): (1, 128, 4, 64, 128, 0.3),
    ('image', 'lra_local'): (1, 128, 2, 64, 128, 0.3),
    ('image', 'longformer'): (4, 128, 4, 64, 128, 0.3),
    ('image', 'lsh'): (4, 64, 8, 32, 64, 0.3),
    ('image', 'sinkhorn'): (1, 32, 1, 32, 64, 0.1),
    ('pathfinder_hard', 'bigbird'): (4, 64, 2, 32, 64, 0.2),
    ('pathfinder_hard', 'linear'): (1, 128, 2, 64, 128, 0.2),
    ('pathfinder_hard', 'linformer'): (1, 32, 2, 16, 32, 0.2),
    ('pathfinder_hard', 'lra_local'): (2, 64, 4, 32, 64, 0.1),
    ('pathfinder_hard', 'longformer'): (2, 32, 2, 16, 32, 0.1),
    ('pathfinder_hard', 'favor'): (4, 32, 8, 16, 32, 0.2),
    ('pathfinder_hard', 'lsh'): (2, 64, 8, 32, 64, 0.2),
    ('pathfinder_hard', 'sinkhorn'): (2, 32, 4, 16, 64, 0.2),
    ('pathfinder_hard', 'sparse'): (1, 32, 8, 16, 32, 0.2),
    ('pathfinder_hard', 'synthesizer'): (2, 64, 4, 32, 64, 0.2),
}
WEIGHT_DECAYS = {('image', 'sinkhorn'): 0.7}
OWN_SIZES = ('code',)  # sizes in which the dimensions of the model depend on the mechanism
# with all other mechanisms, the model pools images by [CLS]
POOLED_BY_MEAN = (('image', 'lra_local'), ('image', 'longformer'))
# In the tasks OF_IMAGES, the learning rate decays as a cosine; in all other tasks as 1 / sqrt(step).
OF_IMAGES = ('image', 'pathfinder_hard', 'pathx')
# The mask rates are from Amos et al. 2023, arXiv 2310.02980; the rate for text is 0.15.
MASK_RATES = {'listops': 0.1, 'cifar10': 0.5, 'pathfinder': 0.5}
PAPER_BYTES = 4_000  # bytes of a review in the paper; the released settings have 1,000


def mechanisms(length: int) -> dict[str, dict[str, object]]:
    """Returns the config fields of each attention mechanism, for texts of at most `length` words.

    In `bigbird` a token attends to eight blocks, two of them global, and in `lsh` to four buckets. Rows of recall get
    smaller blocks and buckets, which otherwise would cover the whole row. With the 400 pixels of pathfinder,
    bigbird(64, 3) does cover the whole row.
    """
    block, bucket = (64, 64) if length >= 400 else (4, 16)
    return {
        'full': {'attention': 'full'},
        'local': {'attention': 'block(50)'},
        'lra_local': {'attention': f'strided({length // 50 + 1})'},  # the pattern that the paper calls local attention
        'longformer': {'attention': 'longformer(50)'},
        'sparse': {'attention': 'block(50) | summary(50, 10)'},  # Child et al. 2019's fixed pattern, bidirectional
        'bigbird': {'attention': f'bigbird({block}, 3)'},
        'lsh': {'attention': f'lsh({bucket}, 2)', 'shared_qk': True},
        'favor': {'attention': 'favor(128)'},
        'linear': {'attention': 'linear()'},
        'cos': {'attention': f"linear('cos', {length})"},
        'linformer': {'attention': f'linformer(16, {length})'},
        'nystrom': {'attention': 'nystrom(64, 6, 35)'},
        'induced': {'attention': 'induced(64)'},
        'sinkhorn': {'attention': f'sinkhorn(64, {-(-length // 64)}, 5)'},
        'routing': {'attention': f'routing({round(length**0.5)}, {round(length**0.5)})'},
        'synthesizer_dense': {'attention': f"synthesizer('dense', {length})"},
        'synthesizer_random': {'attention': f"synthesizer('random', {length})"},
        'synthesizer_factorized': {'attention': f"synthesizer('factorized', {length}, 8)"},
        'synthesizer_dot': {'attention': f"synthesizer('random+dot', {length})"},
        'sparsemax': {'attention': 'sparsemax'},
        'entmax': {'attention': 'entmax'},
    }


def get_config(cell: str = 'listops_short,full') -> ConfigDict:
    """Returns the config of one Long Range Arena run, named by `<task>[,<mechanism>[,<size>[,<stage>]]]`."""
    task, mechanism, size, stage = words_of(cell)
    config = default_config() if stage else fine_tuning_config()
    text, _, length = TASKS[task]
    config.data.tokenizer = f'fixed:{KINDS[kind_of(text)][0]}'
    config.data.length = PAPER_BYTES if (task, size) == ('text', 'paper') else length  # maximum words per text
    fields = {'max_length': config.data.length, 'token_types': 0, 'norm': 'pre', 'norm_epsilon': 1e-6}
    fields |= {'embedding_norm': False, 'kernel_init': 'fan_in', 'attention_dropout_rate': 0.0}
    set_fields(config.model, fields)
    config.optimizer.bias_correction = True
    config.train.log_every_steps = 50
    set_rows = set_masked_rows if stage else set_labelled_rows
    set_rows(config, task)
    set_size(config, task, size, mechanism)
    set_fields(config.model, mechanisms(config.data.length)[mechanism])
    return config


def words_of(cell: str) -> tuple[str, str, str, str]:
    """Parses the config's argument; returns task, mechanism, size and stage.

    Raises:
        ValueError: a word is unknown; the message lists the known words.
    """
    task, mechanism, size, stage = [*cell.split(','), *('full', 'small', '')[cell.count(',') :]][:4]
    sizes = ('small', *(name for name, tasks in ARENA_SIZES.items() if task in tasks))
    fault = f"the config's argument is {cell!r}"
    if cell.count(',') > 3:
        raise ValueError(f'{fault}; it must be <task>[,<mechanism>[,<size>[,masked]]]')
    known = {'task': (task, TASKS), 'mechanism': (mechanism, mechanisms(1)), 'size': (size, sizes)}
    known |= {'stage': (stage, ('masked',))} if stage else {}
    for name, (word, words) in known.items():
        if word not in words:
            of_task = f' for {task}' if name == 'size' else ''
            raise ValueError(f'{fault}; the {name} {word!r} is unknown{of_task}; known: {", ".join(words)}')
    if stage and size != 'small':
        raise ValueError(f'{fault}; masked pretraining needs the size small')
    return task, mechanism, size, stage


def kind_of(text: str) -> str:
    """Returns the first word of a dataset's text form, such as 'listops', which names the kind of dataset."""
    return text.partition(':')[0]


def set_masked_rows(config: ConfigDict, task: str) -> None:
    """Sets the data fields for masked-LM pretraining on a task's texts, without labels."""
    text, rows, length = TASKS[task]
    train, dev, _ = rows or (0, 0, 0)
    config.data.source = f'arena:{text.format(train)};{text.format(dev)}'
    config.data.vocab_size = KINDS[kind_of(text)][1]
    config.data.mask_rate = MASK_RATES.get(kind_of(text), 0.15)
    config.data.max_masked = round(config.data.mask_rate * length)


def set_labelled_rows(config: ConfigDict, task: str) -> None:
    """Sets the data fields for a task's labelled texts, and the fields of the classification head."""
    text, rows, _ = TASKS[task]
    length = config.data.length
    _, config.model.vocab_size, config.head.outputs = KINDS[kind_of(text)]
    config.examples.problem = 'classification'
    config.examples.format = 'arena'
    for split, count in zip(('train', 'dev', 'test'), rows or (0, 0, 0), strict=True):
        config.examples[split] = text.format(count)
    config.examples.towers = task in PAIRED
    config.examples.buckets = tuple(sorted({length // 4, length // 2, 3 * length // 4, length}))
    config.head.kind = 'towers' if task in PAIRED else 'sequence'
    config.head.pooling = 'mean'
    config.head.transform = 'relu'
    config.head.dropout_rate = 0.1
    config.checkpoint.best_metric = 'accuracy'


def set_size(config: ConfigDict, task: str, size: str, mechanism: str) -> None:
    """Sets model dimensions, steps and learning rate of a size: the small one, or a published one."""
    if size != 'small':
        set_original_size(config, task, size, mechanism)
        return
    set_fields(config.model, SMALL)
    config.optimizer.learning_rate = 1e-3
    config.optimizer.warmup_steps = 100
    config.optimizer.schedule = 'linear'
    config.optimizer.weight_decay = 0.0
    config.train.batch_size = 32  # rows
    config.train.steps = SMALL_STEPS.get(task, 1_000)
    config.eval.every_steps = config.checkpoint.every_steps = 250


def set_original_size(config: ConfigDict, task: str, size: str, mechanism: str) -> None:
    """Sets model dimensions, steps and learning rate of the paper or of its released settings.

    A [CLS] token is added where the paper or the settings have one.
    """
    cell = task, mechanism.partition('_')[0] if mechanism.startswith('synthesizer') else mechanism
    sizes = ARENA_SIZES[size][task]
    fields = arena_fields(OF_MECHANISMS.get(cell, sizes) if size in OWN_SIZES else sizes)
    batch, steps, rate, warmup, decay = RECIPES[size][task]
    decay = WEIGHT_DECAYS.get(cell, decay) if size == 'code' else decay
    set_fields(config.model, fields)
    config.model.positions = 'learned' if task in ('image', 'pathx') else 'sinusoidal'
    config.head.dropout_rate = fields['dropout_rate']
    has_cls = task not in ('pathfinder_hard', 'pathx') and (task, size) != ('retrieval', 'code')
    if has_cls:
        config.data.tokenizer = f'{config.data.tokenizer}:cls'
        config.data.length = config.data.length + 1  # [CLS]
        config.model.max_length = config.model.max_length + 1
        config.examples.buckets = (*config.examples.buckets[:-1], config.data.length)
        config.head.pooling = 'mean' if size == 'code' and cell in POOLED_BY_MEAN else 'first'
    if (task, size) == ('retrieval', 'code'):
        # This setting pools by position 0. In the task `retrieval`, position 0 is no [CLS] token.
        config.head.pooling = 'first'
    schedule = 'cosine' if task in OF_IMAGES else 'rsqrt'
    optimizer = {'learning_rate': rate, 'warmup_steps': int(warmup), 'weight_decay': decay, 'schedule': schedule}
    set_fields(config.optimizer, optimizer | {'beta1': 0.9, 'beta2': 0.98, 'eps': 1e-9})
    config.train.batch_size = int(batch)
    config.train.steps = int(steps)
    config.eval.every_steps = config.checkpoint.every_steps = 1_000
