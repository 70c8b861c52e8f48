"""pydantic's errors as sentences about keys: what was got, what was expected."""

from collections.abc import Sequence

from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from agentrl.config.describe import expected, shown
from agentrl.config.schema import Schema


def located(schema: Schema, loc: Sequence[str | int]) -> tuple[str, FieldInfo | None]:
    """The key that an error is about, and its field where it is a leaf.

    A location may go on below a leaf (the third item of a list, one member of a union): those parts
    are left out.
    """
    key = ""
    for part in loc:
        longer = f"{key}.{part}" if key else str(part)
        if longer not in schema.leaves and longer not in schema.sections:
            return (key or longer, None)
        key = longer
        if key in schema.leaves:
            return key, schema.leaves[key]
    return key, None


def sentence(error: ErrorDetails, where: str, field: FieldInfo | None, got: object) -> str:
    """One error in our words.

    Args:
        error: pydantic's record of it.
        where: how to name the key: its flag, or its file and name.
        field: the key's field where it is a leaf.
        got: the value that was given at the key.
    """
    if error["type"] in ("value_error", "assertion_error"):
        reason = str(error.get("ctx", {}).get("error", error["msg"]))
        return f"{where}: {reason}" if where else reason
    if error["type"] == "missing":
        wanted = f", expected {expected(field)}" if field else ""
        return f"{where}: missing{wanted}; set it in the file or by a flag"
    if field is None:
        return f"{where}: {error['msg']}"
    return f"{where}: got {shown(got)}, expected {expected(field, got)}"
