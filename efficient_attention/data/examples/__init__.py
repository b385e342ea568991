"""Labelled examples for fine-tuning: reads them from files, and makes batches of examples of similar length."""
