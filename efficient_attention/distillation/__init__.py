"""Knowledge distillation: runs teacher models on the batches of a student's training run, and caches teacher logits of
all training rows.
"""
