"""Writes input for the benchmarks: the points of many hosts, in the order in which they are scraped.

    python benchmarks/generate.py --points 1000000 --format opentsdb-json --output points.json

The same arguments write the same bytes on every machine. `timebeam generate` has the same points, and
all that goes wrong on the way; this program cuts them into several files.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from timebeam.pipelines.local.generate import FORMATS as ALL_FORMATS
from timebeam.pipelines.local.generate import Generator, Load

FORMATS = tuple(ALL_FORMATS)


def write(load: Load, output: Path, files: int = 1) -> list[Path]:
    """Writes the load and returns the files: `output`, or output-00000-of-0000K.suffix and so on.

    Several files hold one stretch of time each, as when files are rotated, of equally many scrapes
    (give or take one).
    """
    if files == 1:
        paths = [output]
    else:
        paths = [output.with_stem(f"{output.stem}-{n:05d}-of-{files:05d}") for n in range(files)]
    count = -(-load.points // load.series)
    remaining = Generator(load).ticks()
    for number, path in enumerate(paths):
        with path.open("w", encoding="ascii", newline="\n") as stream:
            for _ in range(count * number // files, count * (number + 1) // files):
                stream.writelines(next(remaining))
    return paths


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--points", type=int, required=True)
    parser.add_argument("--series", type=int, default=Load.series)
    parser.add_argument("--format", choices=FORMATS, default=Load.format)
    parser.add_argument("--step", type=int, default=Load.step, help="seconds between scrapes")
    parser.add_argument(
        "--start", type=int, default=Load.start, help="time of the first scrape, s since 1970"
    )
    parser.add_argument("--seed", type=int, default=Load.seed)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--files", type=int, default=1, help="one after the other in time")
    options = vars(parser.parse_args())
    output, files = options.pop("output"), options.pop("files")
    for path in write(Load(**options), output, files):
        print(path)


if __name__ == "__main__":
    main()
