"""The system calls that no sandbox needs and many escapes use.

One list for both backends: as a BPF program for bwrap, as a profile for Docker.
"""

import json
import platform
import struct
from collections.abc import Mapping
from typing import Final

_EPERM, _ENOSYS = 1, 38

# name: number on x86_64, number on aarch64
DENIED: Final[Mapping[str, tuple[int, int]]] = {
    "acct": (163, 89),
    "add_key": (248, 217),
    "bpf": (321, 280),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "kcmp": (312, 272),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "lookup_dcookie": (212, 18),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "perf_event_open": (298, 241),
    "personality": (135, 92),
    "pidfd_getfd": (438, 438),
    "pivot_root": (155, 41),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "quotactl": (179, 60),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "setns": (308, 268),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
    "vmsplice": (278, 75),
}
_NAMESPACES: Final = 0x7E020000
"""The flags of `clone` that make namespaces; `clone3` hides its flags, so libc is sent to clone."""
_CLONE: Final = (56, 220)
_CLONE3: Final = 435
_ARCHES: Final = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_X32: Final = 0x40000000

_LOAD, _JUMP_EQ, _JUMP_GE, _JUMP_SET, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_KILL, _ERRNO, _ALLOW = 0x80000000, 0x00050000, 0x7FFF0000


def program(machine: str = "") -> bytes:
    """The filter for bwrap; empty on a machine whose numbers we do not know."""
    column, arch = _ARCHES.get(machine or platform.machine(), (0, 0))
    if not arch:
        return b""
    code = [
        (_LOAD, 0, 0, 4),  # the architecture
        (_JUMP_EQ, 1, 0, arch),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, 0),  # the number
        (_JUMP_GE, 0, 1, _X32),
        (_RETURN, 0, 0, _ERRNO | _ENOSYS),
        (_JUMP_EQ, 0, 1, _CLONE3),
        (_RETURN, 0, 0, _ERRNO | _ENOSYS),
    ]
    for numbers in DENIED.values():
        code += [(_JUMP_EQ, 0, 1, numbers[column]), (_RETURN, 0, 0, _ERRNO | _EPERM)]
    code += [
        (_JUMP_EQ, 0, 3, _CLONE[column]),
        (_LOAD, 0, 0, 16),  # its flags
        (_JUMP_SET, 0, 1, _NAMESPACES),
        (_RETURN, 0, 0, _ERRNO | _EPERM),
        (_RETURN, 0, 0, _ALLOW),
    ]
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)


def profile() -> str:
    """The same as a Docker seccomp profile."""
    rules: list[object] = [
        {"names": sorted(DENIED), "action": "SCMP_ACT_ERRNO"},
        {"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": _ENOSYS},
    ]
    rules += [
        {
            "names": ["clone"],
            "action": "SCMP_ACT_ERRNO",
            "args": [{"index": 0, "value": bit, "valueTwo": bit, "op": "SCMP_CMP_MASKED_EQ"}],
        }
        for bit in (1 << n for n in range(32))
        if bit & _NAMESPACES
    ]
    return json.dumps({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": rules})
