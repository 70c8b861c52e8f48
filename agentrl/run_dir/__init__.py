"""A run on disk: its directory, its lock, and the streams of metrics, events and episodes."""

from agentrl.run_dir.directory import RunDirectory, check_new_run
from agentrl.run_dir.episodes import EpisodesWriter, read_episodes
from agentrl.run_dir.writing import EventsWriter, MetricsWriter, check_disk, read_lines

__all__ = [
    "EpisodesWriter",
    "EventsWriter",
    "MetricsWriter",
    "RunDirectory",
    "check_disk",
    "check_new_run",
    "read_episodes",
    "read_lines",
]
