"""Runs in the environment of SearXNG: serves it on a free port of the loopback interface, and prints that port."""

import sys

from searx.webapp import app
from werkzeug.serving import make_server


def main() -> None:
    server = make_server("127.0.0.1", 0, app, threaded=True)
    sys.stdout.write(f"{server.server_port}\n")
    sys.stdout.flush()
    server.serve_forever()


if __name__ == "__main__":
    main()
