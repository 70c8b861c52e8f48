"""When what is done in a run: a state machine, and the clock that it can be tried under."""

from agentrl.schedule.allowance import Allowance
from agentrl.schedule.config import AsyncConfig, Concurrency, Late, Schedule
from agentrl.schedule.scheduler import Scheduler, Wait

__all__ = ["Allowance", "AsyncConfig", "Concurrency", "Late", "Schedule", "Scheduler", "Wait"]
