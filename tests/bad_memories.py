"""Bad settings of a decoder's memory; they extend the table of tests/bad_inputs.py."""

from tests.bad_inputs import BadInput


def compressive(fields: str, line: str) -> BadInput:
    """Returns the refused input of a training run of the small decoder with compressed memory; `fields` changes its
    model.
    """
    words = ' '.join(f'--config.model.{field}' for field in fields.split())
    return BadInput(
        f'train.py --config=configs/lm/books_characters.py:compressive --workdir={{here}}/new {words}', line
    )


BAD_MEMORIES = {
    'compression without memory': compressive(
        'memory_length=0',
        'model.compressed_length is 256; it must be 0 without model.memory_length, whose oldest tokens',
    ),
    'compression into nothing': compressive(
        'compressed_length=0', "model.compressed_length is 0; it must be above 0 with model.compression 'convolution'"
    ),
    'compression rate that does not divide': compressive(
        'compression_rate=5',
        'data.length is 128; it must be a multiple of model.compression_rate 5, which compresses',
    ),
    'pooling with a loss': compressive(
        'compression=max', "model.reconstruction_weight is 1.0; it must be 0 with model.compression 'max', which has no"
    ),
    'compression that nothing trains': compressive(
        'reconstruction_weight=0', "model.reconstruction_weight is 0.0; it must be above 0 with model.compression 'conv"
    ),
    'compression of a state': compressive(
        'cell=gru memory_length=1 relative=none heads=2 attention_dropout_rate=0.1',
        "model.compression is 'convolution'; it must be 'none' with model.cell 'gru', whose state already",
    ),
    'compression in a reversible stack': compressive(
        'stack=reversible', 'model.memory_length is 256; a reversible stack (model.stack) cannot use memory'
    ),
}
