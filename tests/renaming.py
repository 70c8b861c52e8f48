"""A transport that brings servers the names of weights alone."""

from collections.abc import Sequence

from agentrl.engine.sglang.control import Control
from agentrl.engine.sglang.weights.transport import Target
from agentrl.errors import EngineError
from agentrl.weights.source import WeightSource


class Renaming:
    """Brings servers the names of weights alone; they draw any tokens under all of them."""

    async def stage(self, targets: Sequence[Target], weights: WeightSource, version: int) -> None:
        pass

    async def publish(
        self, targets: Sequence[Target], weights: WeightSource, version: int, *, flush: bool = True
    ) -> Sequence[EngineError | None]:
        found: list[EngineError | None] = []
        for control, _ in targets:
            try:
                await control.set_version(version)
            except EngineError as error:
                found.append(error)
            else:
                found.append(None)
        return found

    def adapter(self, version: int) -> str | None:
        return None

    async def retire(self, control: Control, version: int) -> None:
        pass

    async def aclose(self) -> None:
        pass
