"""Logs metrics to MLflow. Only the separate process of the tracker imports this module."""

import itertools
import os
import time
from collections.abc import Mapping

from efficient_attention.workdir.trackers.tracker import PROJECT, End, TrackedRun

STATUS: dict[End, str] = {'finished': 'FINISHED', 'stopped': 'KILLED', 'failed': 'FAILED'}
ENTRY = 'efficient_attention.entry'  # tag of a run, by which a resumed run finds its MLflow run
MOST_PARAMETERS = 100  # parameters that MLflow accepts in one call
LONGEST_PARAMETER = 500  # characters that all versions of MLflow accept


class MlflowTracker:
    """Logs to the MLflow run that has the entry's id as a tag.

    Without MLFLOW_TRACKING_URI, MLflow writes files to `mlflow/` of the workdir.
    """

    def __init__(self, run: TrackedRun, entry: str) -> None:
        self._run, self._entry = run, entry

    def start(self) -> str:
        """Creates the run, or finds it by its tag, and sets its status to running."""
        # MLflow keeps its file store for existing users only, but the package mlflow-skinny has no database.
        if not (uri := os.environ.get('MLFLOW_TRACKING_URI')):
            uri = (self._run.workdir.absolute() / 'mlflow').as_uri()
            os.environ.setdefault('MLFLOW_ALLOW_FILE_STORE', 'true')
        from mlflow.entities import Param
        from mlflow.tracking import MlflowClient

        self._client = MlflowClient(tracking_uri=uri)
        name = os.environ.get('MLFLOW_EXPERIMENT_NAME', PROJECT)
        experiment = self._client.get_experiment_by_name(name)
        folder = experiment.experiment_id if experiment else self._client.create_experiment(name)
        found = self._client.search_runs([folder], f"tags.`{ENTRY}` = '{self._entry}'", max_results=1)
        if found:
            self._id = found[0].info.run_id
            self._client.update_run(self._id, status='RUNNING')
            return f'run {self._id} in {uri}'
        created = self._client.create_run(folder, tags={ENTRY: self._entry}, run_name=self._run.name)
        self._id = created.info.run_id
        parameters = (Param(key, str(value)[:LONGEST_PARAMETER]) for key, value in self._run.config.items())
        while part := [*itertools.islice(parameters, MOST_PARAMETERS)]:
            self._client.log_batch(self._id, params=part)
        return f'run {self._id} in {uri}'

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Logs the metrics of one step in one call."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        self._client.log_batch(self._id, metrics=[Metric(name, value, now, step) for name, value in metrics.items()])

    def finish(self, end: End) -> None:
        """Sets the status of the run."""
        self._client.set_terminated(self._id, STATUS[end])
