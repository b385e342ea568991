"""How many floating-point operations a model's forward pass takes; a multiply-add counts two."""

from efficient_attention.models.config import ModelConfig


def encoder_flops(config: ModelConfig, length: int, *, predictions: int) -> float:
    """Matrix-product operations of one row of `length` tokens through encoder and masked-LM head at `predictions`
    positions.

    Attention counts every pair of positions, whatever its pattern; norms, activations and embeddings look-ups are
    left out.
    """
    inner = config.heads * config.head_width
    projections = 4 * config.width * inner + 2 * config.width * config.feed_forward_width
    scores = 2 * length * inner
    factorised = config.embedding_width * config.width if config.embedding_width != config.width else 0
    head = config.width * config.embedding_width + config.embedding_width * config.vocab_size
    return 2.0 * (length * (config.layers * (projections + scores) + factorised) + predictions * head)
