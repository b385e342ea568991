"""FAVOR+ attention, the Performer's (Choromanski et al. 2020, arXiv 2009.14794)."""
