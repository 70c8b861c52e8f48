"""A run on disk: its directory, its lock, and the streams of metrics, events and episodes."""

from agentrl.runs.directory import RunDirectory, check_new_run
from agentrl.runs.disk import check_disk
from agentrl.runs.episodes import EpisodesWriter, read_episodes
from agentrl.runs.streams import EventsWriter, MetricsWriter, read_lines

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
