"""From an argument list to a command's module, and from an exception to an exit code.

Exit codes: 0 done, 1 failed, 2 bad input, 130 interrupted, 143 ended by SIGTERM (129 by SIGHUP).
"""

import errno
import gc
import importlib
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence

from agentrl.errors import AgentrlError, ConfigError
from agentrl.extras import as_config_error
from agentrl.terminated import Terminated, leave, terminate

EXIT_GRACE_S = 5.0
"""How long a finished process waits for threads that are no daemons."""

_REFUSALS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO})
"""What a disk says that takes no more: no fault of the program, so no traceback."""
_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_BY_KERNEL = 128
_PASS_ON_S = 0.5

COMMANDS: Mapping[str, str] = {
    "train": "train a model on an environment by reinforcement learning",
    "sft": "warm-start a model on an environment's scripted demonstrations",
    "reward train": "train a reward model on preference pairs",
    "eval": "play held-out tasks with a model",
    "launch": "start a run on a cluster: Slurm, Kubernetes or Ray",
    "export": "write a run's model as a Hugging Face folder",
    "run status": "say who waits for whom in a run, and since when",
    "run simulate": "say what other settings of a schedule would give, by a recorded run",
    "env list": "list the built-in environments",
    "env check": "check an environment before training on it",
    "env play": "play an episode by hand",
    "template check": "check a chat template for multi-turn training",
    "engine install": "install an engine's server into an environment of its own",
    "engine serve": "start a server for a model and stop it with Ctrl-C",
    "engine relay": "keep new weights on a host of servers, sent there once for all of them",
    "engine check": "ask a running server whether it can be trained with",
    "sandbox build": "build the image of Docker sandboxes from this machine's packages",
    "sandbox list": "list the sandboxes that exist on this machine",
    "sandbox gc": "remove sandboxes that dead processes left behind",
    "tasks build": "turn Python packages that have tests into repair tasks",
    "tasks check": "say which repair tasks of a file are guarded against cheats",
    "algorithm list": "list the built-in algorithms, estimators and losses",
    "algorithm show": "show formula, paper, options and needs of one",
    "doctor": "show versions, devices, engines and sandboxes",
}
"""Every command with what it is for; `env list` lives in `agentrl.cli.env_list`."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code; every mistake in the input gives 2."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        code = _run_command_line(arguments)
        sys.stdout.flush()
        return code
    except ConfigError as error:
        _print_error_lines(error)
        return 2
    except AgentrlError as error:
        _print_error_lines(error)
        return 1
    except ImportError as error:
        missing = as_config_error(error, f"agentrl {arguments[0]}")
        if missing is None:
            raise
        _print_error_lines(missing)
        return 2
    except KeyboardInterrupt as error:
        print(f"\nagentrl: {str(error) or 'interrupted'}", file=sys.stderr)
        return 130
    except Terminated as error:
        print(f"\nagentrl: {error}", file=sys.stderr)
        return 128 + error.number
    except BrokenPipeError:
        # Whoever read the output has closed it (`| head`); there is nobody left to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1
    except OSError as error:
        if error.errno not in _REFUSALS:
            raise
        _print_error_lines(error)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # it may be what took no more
        return 1


def entry() -> int:
    """`main` as a process: threads that user code left running do not keep it alive."""
    done = _fork_and_watch_child() if sys.argv[1:3] == ["env", "check"] else None
    signal.signal(signal.SIGTERM, terminate)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # not under nohup
        signal.signal(signal.SIGHUP, terminate)
    code = main()
    if code >= 128:  # whoever asks once more does not want to wait for what is left
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        gc.freeze()  # the collection at exit would look at all of torch, for seconds
    if done is not None:
        os.write(done, b"1")
    threading.Thread(target=_end_process_despite_threads, args=(code,), daemon=True).start()
    return code


def _fork_and_watch_child() -> int:
    """Go on in a child, so that code which ends the process does not look like success.

    Returns what the child writes to when it has come to its end; the parent leaves with its code.
    """
    asked = {s for s in _ENDS if signal.getsignal(s) is not signal.SIG_IGN}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*asked, signal.SIGCHLD})
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(read)
        return write
    os.close(write)
    code = _await_child_exit_code(pid, asked)
    os.set_blocking(read, False)
    try:
        came_to_its_end = bool(os.read(read, 1))
    except BlockingIOError:
        came_to_its_end = False
    if code == 0 and not came_to_its_end:
        print("agentrl: error: the environment's code ended the process", file=sys.stderr)
        code = 1
    sys.stderr.flush()
    os._exit(code if code >= 0 else 128 - code)


def _await_child_exit_code(pid: int, asked: set[signal.Signals]) -> int:
    """The exit code of a child; what asks this process to end is passed on to it.

    What a terminal sends, the child gets as well.
    """
    while (ended := os.waitpid(pid, os.WNOHANG))[0] == 0:
        came = signal.sigwaitinfo({*asked, signal.SIGCHLD})
        if came.si_signo == signal.SIGCHLD or came.si_code == _BY_KERNEL:
            continue
        if signal.sigtimedwait({signal.SIGCHLD}, _PASS_ON_S) is None:  # not of its whole group
            os.kill(pid, came.si_signo)
    return os.waitstatus_to_exitcode(ended[1])


def _end_process_despite_threads(code: int) -> None:
    time.sleep(EXIT_GRACE_S)
    left = [t.name for t in threading.enumerate() if not t.daemon and t.name != "MainThread"]
    print(
        f"agentrl: warning: ending although these threads still run: {', '.join(left)}; "
        "start them as daemons, or join them in teardown",
        file=sys.stderr,
    )
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _run_command_line(arguments: list[str]) -> int:
    if signal.getsignal(signal.SIGINT) is leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(overview())
        return 0
    if arguments[0] == "--version":
        from importlib.metadata import version

        print(f"agentrl {version('agentrl')}")
        return 0
    if len(arguments) == 2 and arguments[1] in ("-h", "--help") and _list_commands(arguments[0]):
        print(overview(_list_commands(arguments[0])))
        return 0
    name, rest = _split_command_from_arguments(arguments)
    module = importlib.import_module(f"agentrl.cli.{name.replace(' ', '_')}")
    from agentrl.cli.command import invoke

    return invoke(name, module.COMMAND, rest)


def _split_command_from_arguments(arguments: list[str]) -> tuple[str, list[str]]:
    """The longest command that the arguments begin with, and the rest of them."""
    for length in (2, 1):
        name = " ".join(arguments[:length])
        if name in COMMANDS:
            return name, arguments[length:]
    from agentrl.config.nearest import nearest

    first = arguments[0]
    verbs = [name.split()[1] for name in _list_commands(first)]
    if not verbs:
        raise ConfigError(f"{first}: unknown command, {nearest(first, COMMANDS)}")
    if len(arguments) == 1:
        raise ConfigError(f"{first}: which one? There is {first} {f', {first} '.join(verbs)}")
    raise ConfigError(f"{first} {arguments[1]}: unknown command, {nearest(arguments[1], verbs)}")


def _list_commands(noun: str) -> dict[str, str]:
    return {name: what for name, what in COMMANDS.items() if name.startswith(f"{noun} ")}


def overview(commands: Mapping[str, str] = COMMANDS) -> str:
    """The text of `agentrl --help`."""
    width = max(len(name) for name in commands)
    lines = [f"  {name:{width}}  {purpose}" for name, purpose in commands.items()]
    return "\n".join(
        [
            "usage: agentrl COMMAND [ARGUMENTS]",
            "",
            "Trains language-model agents by reinforcement learning.",
            "",
            *lines,
            "",
            "agentrl COMMAND --help shows every key of a command. For example:",
            "",
            "  agentrl train --env calculator",
        ]
    )


def _print_error_lines(error: Exception) -> None:
    for line in str(error).splitlines():
        print(f"agentrl: error: {line}", file=sys.stderr)
