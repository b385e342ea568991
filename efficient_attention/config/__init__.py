"""The frozen dataclasses of a run's config: their fields, defaults and checks."""
