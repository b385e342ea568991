"""Fine-tuning problems. Each turns examples into rows, and model outputs into predictions, files and scores."""
