"""Checks that a model whose cross-attention draws keys can be trained by what it drew."""

from efficient_attention.config.model import ModelConfig
from efficient_attention.errors import require


def check_draws(model: ModelConfig) -> None:
    """Raises InputError where the config has what training by draws does not serve."""
    if not model.cross_mechanism.draws.in_training:
        return
    why = f'with model.cross_attention {model.cross_attention!r}, whose draws need the loss of each target'
    require(model.loss_chunk == 0, 'model.loss_chunk', model.loss_chunk, f'0 {why}')
    require(model.stack == 'plain', 'model.stack', model.stack, f"'plain' {why}")
