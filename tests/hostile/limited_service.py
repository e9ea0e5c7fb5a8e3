"""A service process that may open only so many files."""

import subprocess

from tests.service import Deployment, ServiceProcess, environment, program

WITH_FILES = 'ulimit -n "$1" && shift && exec "$@"'


class LimitedProcess(ServiceProcess):
    """`cadenza serve` under a hard limit of open files. It ends with its deployment."""

    def __init__(self, deployment: Deployment, files_max: int) -> None:
        self.port = 0
        self._log = deployment.folder / f"limited-{len(deployment.processes)}.log"
        self._log_writer = None
        serve = [program(), "serve", "--config", str(deployment.config), "--port", "0"]
        with self._log.open("wb") as out:
            self._process = subprocess.Popen(
                ["sh", "-c", WITH_FILES, "sh", str(files_max), *serve],
                cwd=deployment.folder,
                env=environment(),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )
        deployment.processes.append(self)
        self.wait_until_ready()
