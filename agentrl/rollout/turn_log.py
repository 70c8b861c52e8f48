"""`turns.jsonl`: what open episodes have sampled, so that a run that was killed goes on with them.

    engine ── completion ──▶ a line ──▶ environment ── answers with side effects ──▶ a line

A resumed episode is played again from its beginning, without an engine: its completions come from
the log, and the environment, which has the same seed, gets to the same state by the same calls. As
soon as its answer is another one, or the log has no more, the engine samples on. What was sampled
under weights that a resumed run does not have is left out.

A tool with side effects is not called again: its answer comes from the log. The line of the
completion that calls it stands there before it runs; if no answer follows, nobody knows how far it
came, and the episode has no score.
"""

import base64
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import orjson
from numpy.typing import NDArray

from agentrl.boundary import said_by
from agentrl.envs import ToolAnswer
from agentrl.errors import EngineError, EnvironmentFault, RunError
from agentrl.run_dir.writing import LineWriter, read_lines
from agentrl.tokens import seal
from agentrl.types import Completion, EpisodeKey, EpisodeStop, Json, StopReason
from agentrl.types.batch import Channels

_COLUMNS: Final = ("ids_T", "logprobs_T", "versions_T")
NO_SETTINGS: Mapping[str, Json] = {}
_CHANNELS: Final = ("channels", "prompt_channels")


class CalledBefore(EnvironmentFault):
    """A tool with side effects ran in a part of the episode that is lost."""

    retryable = False


@dataclass(frozen=True, slots=True)
class _Turn:
    calls: bool
    """Whether a tool with side effects is called."""
    ids: NDArray[np.int32]
    """What came before the completion, since the one before it or the segment's beginning."""
    completion: Completion


@dataclass(slots=True)
class RecordedTurns:
    """What is known of an attempt of before."""

    group: int
    turns: list[_Turn] = field(default_factory=list[_Turn])
    answers: dict[int, dict[str, ToolAnswer | None]] = field(
        default_factory=dict[int, dict[str, ToolAnswer | None]]
    )
    taken: int = 0
    """How many of the turns were given back."""
    has_lost_calls: bool = False
    """A tool with side effects ran in a turn that was cut off."""

    def cut(self, turn: int) -> None:
        """Forget this turn and those after it."""
        self.has_lost_calls |= any(cut.calls for cut in self.turns[turn:])
        self.turns = self.turns[:turn]
        self.answers = {at: answer for at, answer in self.answers.items() if at < turn}


class TurnsOfEpisodes(ABC):
    """What is known of the turns of attempts; what comes of new ones is appended as lines."""

    def __init__(self, recorded: dict[str, RecordedTurns]) -> None:
        """Go on with what there is, by the attempt's id."""
        self._episodes = recorded

    @abstractmethod
    def append(self, episode: str, group: int, line: Mapping[str, object]) -> None:
        """Write a line of an attempt down, in order."""

    @abstractmethod
    async def until_kept(self) -> None:
        """Wait until what was appended can no longer be lost."""

    def take_recorded(self, episode: str, ids: Sequence[int]) -> Completion | None:
        """The next completion of before, if it was sampled from the same; None: sample it.

        Args:
            episode: the id of its attempt.
            ids: what has come since the last completion, or since the segment's beginning.

        Raises:
            CalledBefore: to sample on would run a tool with side effects twice.
        """
        found = self._episodes.get(episode)
        if found is None:
            return None
        if found.taken < len(found.turns):
            turn = found.turns[found.taken]
            if np.array_equal(turn.ids, np.asarray(ids, np.int32)):
                found.taken += 1
                return turn.completion
            self._cut(episode, found.taken)
        del self._episodes[episode]
        if found.has_lost_calls:
            raise CalledBefore(
                f"{episode} called a tool with side effects in turn {found.taken} or later, and "
                "the resumed episode came to another state there, or has other weights"
            )
        return None

    def take_answers(self, episode: str) -> Mapping[str, ToolAnswer]:
        """By call id, what tools with side effects answered in the turn that was taken last.

        Raises:
            CalledBefore: one of them was called, and what became of it is not known.
        """
        found = self._episodes.get(episode)
        if found is None or not found.turns[found.taken - 1].calls:
            return {}
        turn = found.taken - 1
        answers = found.answers.get(turn, {"": None})
        known = {call: answer for call, answer in answers.items() if answer is not None}
        if len(known) < len(answers):
            raise CalledBefore(
                f"{episode} called a tool with side effects in turn {turn}, and ended before its "
                "answer was written down"
            )
        return known

    def write_completion(
        self, key: EpisodeKey, ids: Sequence[int], completion: Completion, *, calls: bool
    ) -> None:
        """Append a completion, before anything that it asks for is done.

        Args:
            key: of the episode's attempt.
            ids: as in `take_recorded`.
            completion: that the engine gave.
            calls: whether it calls a tool with side effects.
        """
        line: dict[str, object] = {"calls": calls, "ids": _pack(np.asarray(ids, np.int32))}
        line |= {name: _pack(getattr(completion, name)) for name in _COLUMNS}
        for kind in _CHANNELS:
            channels: Channels = getattr(completion, kind)
            line[kind] = {name: _pack(array) for name, array in channels.items()}
        line |= {"stop": completion.stop_reason, "cached_tokens": completion.cached_tokens}
        line["digest"] = completion.digest.hex()
        self.append(key.id, key.group, line)

    def write_answers(
        self, key: EpisodeKey, turn: int, answers: Mapping[str, ToolAnswer | None]
    ) -> None:
        """Append what tools with side effects answered in a turn, counted from 0.

        An answer that JSON does not hold as it is counts as unknown, as None does.
        """
        told = {
            call: None if answer is None or not _is_json(answer.finish) else asdict(answer)
            for call, answer in answers.items()
        }
        self.append(key.id, key.group, {"turn": turn, "answers": told})

    def _cut(self, episode: str, turn: int) -> None:
        """Forget a turn and those after it, also for later resumes."""
        found = self._episodes[episode]
        found.cut(turn)
        self.append(episode, found.group, {"cut": turn})


class TurnLog(TurnsOfEpisodes):
    """Writes turns as they come, and gives those of before back; one for a run."""

    def __init__(
        self, path: Path, version: int, run: str = "", settings: Mapping[str, Json] = NO_SETTINGS
    ) -> None:
        """Read what is there, as far as its weights are those of this version or older.

        Args:
            path: of the file.
            version: of the weights that the run goes on with.
            run: what no two runs have in common.
            settings: with others, nothing of what was sampled can be gone on with.

        Raises:
            RunError: it is not what this run wrote.
        """
        self._cpu_s = 0.0
        self._settings = settings
        self._head: dict[str, object] = {"run": run, "settings": settings}
        super().__init__({})
        self._is_current = False
        self.changed: Sequence[str] = ()
        """Settings that are others than those of before."""
        for number, line in enumerate(read_lines(path), start=1):
            try:
                self._read_line(line)
            except (KeyError, TypeError, ValueError, EngineError) as error:
                raise RunError(
                    f"{path}: line {number} is not what this run wrote ({said_by(error)}); remove "
                    "the file, and the open episodes are played from their beginning"
                ) from error
        self._lines = LineWriter(path)
        if not self._is_current:
            self._lines.append(self._head)
        for episode, found in self._episodes.items():
            for turn, sampled in enumerate(found.turns):
                if not self._is_current or sampled.completion.versions_T.max() > version:
                    self._cut(episode, turn)
                    break
        self.recorded = {name: len(found.turns) for name, found in self._episodes.items()}
        """Turns of before that can be gone on with, by the attempt's id."""

    def oldest_version(self, group: int) -> int | None:
        """The oldest version of the recorded tokens of a group; None without any."""
        versions = [
            int(turn.completion.versions_T.min())
            for found in self._episodes.values()
            if found.group == group
            for turn in found.turns
        ]
        return min(versions, default=None)

    def hand_over(self, episode: str) -> RecordedTurns | None:
        """What is known of an attempt that is played elsewhere; its lines come from there."""
        return self._episodes.pop(episode, None)

    def take_cpu_s(self) -> float:
        """CPU seconds that writing took since the last time."""
        taken, self._cpu_s = self._cpu_s, 0.0
        return taken

    def keep_groups(self, groups: Set[int]) -> None:
        """Forget all other groups: they are trained on, and a checkpoint holds that."""
        waiting = {found.group for found in self._episodes.values() if not found.taken}
        lines = read_lines(self._lines.path)
        kept = [line for line in lines if line.get("group") in groups | waiting]
        if len(kept) + 1 < len(lines):
            self._lines.rewrite([self._head, *kept])

    def forget(self) -> None:
        """Forget everything: the run is over."""
        self._lines.rewrite([])

    def close(self) -> None:
        """Close the file; an empty one goes."""
        self._lines.close()
        if self._lines.path.exists() and not self._lines.path.stat().st_size:
            self._lines.path.unlink()

    def append(self, episode: str, group: int, line: Mapping[str, object]) -> None:
        """Write a line of an attempt down, in order; it is kept at once."""
        started = time.thread_time()
        self._lines.append({"episode": episode, "group": group, **line})
        self._cpu_s += time.thread_time() - started

    async def until_kept(self) -> None:
        """It is: `append` has written it."""

    def _read_line(self, line: dict[str, Any]) -> None:
        if "run" in line:
            if line["run"] != self._head["run"]:
                raise ValueError("it is another run's")
            before, now = line["settings"], self._settings
            self.changed = [key for key in now if before.get(key) != now[key]]
            self._is_current = not self.changed
            return
        found = self._episodes.setdefault(line["episode"], RecordedTurns(line["group"]))
        if "cut" in line:
            found.cut(line["cut"])
        elif "answers" in line:
            answers = {call: told and _to_answer(told) for call, told in line["answers"].items()}
            found.answers[line["turn"]] = answers
        else:
            found.turns.append(_Turn(line["calls"], _unpack(line["ids"]), _to_completion(line)))


def _pack(array: NDArray[np.generic]) -> list[object]:
    data = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
    return [array.dtype.str, array.shape, data]


def _unpack(packed: Sequence[Any]) -> NDArray[Any]:
    dtype, shape, data = packed
    return np.frombuffer(base64.b64decode(data), dtype=np.dtype(dtype)).reshape(shape)


def _to_completion(line: Mapping[str, Any]) -> Completion:
    ids, logprobs, versions = (_unpack(line[name]) for name in _COLUMNS)
    channels, prompt = (
        {name: _unpack(packed) for name, packed in line[kind].items()} for kind in _CHANNELS
    )
    reason, cached = StopReason(line["stop"]), int(line["cached_tokens"])
    completion = seal(ids, logprobs, versions, reason, channels, cached, prompt)
    if completion.digest.hex() != line["digest"]:
        raise ValueError("the digest differs")
    return completion


def _to_answer(told: Mapping[str, Any]) -> ToolAnswer:
    finish, stop = told["finish"], told["stop"]
    return ToolAnswer(
        text=told["text"],
        error=told["error"],
        reward=told["reward"],
        parts=told["parts"],
        finish=None if finish is None else (finish[0],),
        stop=None if stop is None else EpisodeStop(stop),
    )


def _is_json(finish: tuple[object] | None) -> bool:
    try:
        return finish is None or bool(orjson.loads(orjson.dumps(finish[0])) == finish[0])
    except (TypeError, ValueError):
        return False
