"""Starts SGLang's server on a CPU.

The processes that the server spawns import this file again, so the stand-ins reach each of them.
"""

import os
import sys

import torchvision_ops  # noqa: F401

if {"--enable-lora", "--enable-return-routed-experts"} & set(sys.argv):
    import pinned_memory  # noqa: F401
if "--enable-return-routed-experts" in sys.argv:
    from sglang.srt.mem_cache.pool_host import common

    # The record's buffer would be registered with CUDA.
    common.ALLOC_MEMORY_FUNCS["cpu"] = common.alloc_with_pin_memory

from sglang.srt.plugins.hook_registry import HookRegistry  # after the stand-ins


def _sleep_when_idle(_, scheduler):
    scheduler.maybe_sleep_on_idle()


# While paused its ranks would ask for requests without a rest, on the cores of who writes weights.
HookRegistry.register(
    "sglang.srt.managers.scheduler.Scheduler._record_scheduler_state_for_paused_engine",
    _sleep_when_idle,
)

if __name__ == "__main__":
    from sglang.launch_server import run_server
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import prepare_server_args
    from sglang.srt.utils import kill_process_tree

    load_plugins()
    arguments = prepare_server_args(sys.argv[1:])
    try:
        run_server(arguments)
    finally:
        kill_process_tree(os.getpid(), include_parent=False)
