"""A service process that may open only so many files."""

import subprocess

from tests.environment import environment
from tests.service import Deployment, ServiceProcess, Serving, program

WITH_FILES = 'ulimit -n "$1" && shift && exec "$@"'


class LimitedProcess(ServiceProcess):
    """`cadenza serve` under a hard limit of open files. It ends with its deployment."""

    def __init__(self, deployment: Deployment, files_max: int) -> None:
        log = deployment.folder / f"limited-{len(deployment.processes)}.log"
        serve = [program(), "serve", "--config", str(deployment.config), "--port", "0"]
        with log.open("wb") as out:
            process = subprocess.Popen(
                ["sh", "-c", WITH_FILES, "sh", str(files_max), *serve],
                cwd=deployment.folder,
                env=environment(),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )
        Serving.__init__(self, process, log)
        self._log_writer = None
        deployment.processes.append(self)
        self.wait_until_ready()
