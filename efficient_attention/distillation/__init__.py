"""Teachers, whose outputs join each batch of a run, and their logits of all training rows, kept in a file."""
