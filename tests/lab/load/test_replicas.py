from __future__ import annotations

import os
import subprocess
import sys
import time

from lab.load.replicas import find_processes


def test_only_processes_below_are_found() -> None:
    program = "import subprocess, sys; subprocess.run(['sleep', '60'])"
    with subprocess.Popen([sys.executable, "-c", program]) as process:
        try:
            while not (found := find_processes(process.pid, "sleep")):
                assert process.poll() is None
                time.sleep(0.01)
            assert len(found) == 1
            assert set(found) <= set(find_processes(os.getpid(), "sleep"))
            assert find_processes(found[0], "python") == []
        finally:
            for one in found:
                os.kill(one, 9)
            process.wait(60)
