"""Redraw results.md and the plots from an existing results.json: `python -m bench.redraw [FOLDER]`."""

import sys
from pathlib import Path

import msgspec

from bench.figures import Results
from bench.plots import draw_plots
from bench.report import write_page

REPORT = Path(__file__).parents[1] / "docs" / "performance"


def main(folder: Path) -> None:
    results = msgspec.json.decode((folder / "results.json").read_bytes(), type=Results)
    write_page(results, folder, draw_plots(results, folder))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else REPORT)
