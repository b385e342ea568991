"""Shows what the attention heads of a model read, and measures what they do."""
