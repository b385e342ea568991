"""Language models: a running text as ids on disk, and rows of it one after another."""
