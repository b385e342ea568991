"""LSH attention, the Reformer's (Kitaev et al. 2020, arXiv 2001.04451)."""
