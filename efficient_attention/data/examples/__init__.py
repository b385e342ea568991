"""Labelled examples for fine-tuning: readers of their files, and batches of rows of similar length."""
