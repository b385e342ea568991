"""Fine-tuning: files of labelled examples, and batches of rows of different lengths."""
