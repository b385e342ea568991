"""Official scores of predictions, a file for each benchmark that defines them."""
