"""The command line: thin commands over documented Python calls."""

import signal
import sys

_AS_COMMAND = sys.argv[0].endswith(("planner", "__main__.py")) or sys.argv[0] == "-m"
if _AS_COMMAND and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # while a command's modules load, Ctrl-C just ends it; see `main.run`
