"""Seeds: derived from what a draw is for, never from time or order."""

import hashlib


def derive_seed(*parts: int | str) -> int:
    """A 63-bit seed from the parts, for example (run seed, "episode", step, task, member, attempt).

    Parts are length-prefixed, so ("a", "bc") and ("ab", "c") differ.
    """
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        text = f"{type(part).__name__}:{part}".encode()
        digest.update(len(text).to_bytes(4, "little") + text)
    return int.from_bytes(digest.digest(), "little") >> 1
