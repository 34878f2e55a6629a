"""Writes input for the benchmarks: the points of many hosts, in the order in which they are scraped.

    python benchmarks/generate.py --points 1000000 --format opentsdb-json --output points.json

The same arguments write the same bytes on every machine.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np

FORMATS = ("opentsdb-json", "opentsdb-text")
_METRICS = 10
_DATACENTRES = ("lga", "fra", "nrt")
_CORES = 4
_MOST = 1_000_000
_HUNDREDTHS = [f"{n // 100}.{n % 100:02d}" for n in range(10_001)]


@dataclasses.dataclass(frozen=True)
class Load:
    """What to write.

    Two series in three hold decimals from 0.00 to 100.00, the third integers from 0 to 1,000,000,
    all of them random, which is the worst case for anything that compresses.

    Attributes:
      points: how many lines in all.
      series: how many series; each scrape emits one point of each, the last one may be cut short.
      format: one of FORMATS.
      step: seconds from one scrape to the next.
      start: time of the first scrape, in seconds since 1970-01-01 UTC.
      seed: of the values.
    """

    points: int
    series: int = 400
    format: str = "opentsdb-json"
    step: int = 1
    start: int = 1_356_998_400
    seed: int = 1


def tags_of(series: int) -> tuple[str, dict[str, str]]:
    """The metric and the tags of the n-th series: ten metrics of each host."""
    host, metric = divmod(series, _METRICS)
    return f"sys.cpu.user{metric}", {
        "host": f"web{host:03d}",
        "dc": _DATACENTRES[host % len(_DATACENTRES)],
        "cpu": str(host % _CORES),
    }


def scrapes(load: Load) -> Iterator[list[str]]:
    """The lines of one scrape after the other, each with its newline."""
    frames = [_frame(number, load.format) for number in range(load.series)]
    # RandomState and not default_rng: only its stream is the same in every version of numpy.
    random = np.random.RandomState(load.seed)
    written = 0
    while written < load.points:
        size = min(load.series, load.points - written)
        time = load.start + written // load.series * load.step
        decimals = random.randint(0, len(_HUNDREDTHS), size, np.int64).tolist()
        integers = random.randint(0, _MOST + 1, size, np.int64).tolist()
        yield [
            f"{head}{time}{middle}{integers[i] if i % 3 == 2 else _HUNDREDTHS[decimals[i]]}{tail}"
            for i, (head, middle, tail) in enumerate(frames[:size])
        ]
        written += size


def _frame(series: int, form: str) -> tuple[str, str, str]:
    """The text of a series' lines before the time, between time and value, and after the value."""
    metric, tags = tags_of(series)
    if form == "opentsdb-text":
        return f"put {metric} ", " ", " " + " ".join(f"{key}={value}" for key, value in tags.items()) + "\n"
    if form == "opentsdb-json":
        pairs = ",".join(f'"{key}":"{value}"' for key, value in tags.items())
        return f'{{"metric":"{metric}","timestamp":', ',"value":', f',"tags":{{{pairs}}}}}\n'
    raise ValueError(f"unknown format {form!r}; one of {', '.join(FORMATS)}")


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
    remaining = scrapes(load)
    for number, path in enumerate(paths):
        with path.open("w", encoding="ascii", newline="\n") as stream:
            for _ in range(count * number // files, count * (number + 1) // files):
                stream.writelines(next(remaining))
    return paths


def main() -> None:
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
