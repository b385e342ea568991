"""Teachers whose outputs join the batches of a run, and cached teacher logits of all training rows."""
