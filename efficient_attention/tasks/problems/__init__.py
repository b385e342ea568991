"""Fine-tuning problems, which turn examples into rows, and model outputs into predictions, files and scores."""
