"""The commands around this machine: settings, a local emulator, test points, shell completion."""

from __future__ import annotations

from timebeam.pipelines.local.generator import FORMATS
from timebeam.pipelines.options.command_line import CONFIG, PROFILE, Argument, Command
from timebeam.pipelines.options.parameters import SUMMARY, Parameter, boolean, not_negative, positive, whole
from timebeam.pipelines.options.profiles import FILE
from timebeam.schema.stores import STORES

GENERATE_COMMAND = Command(
    "generate",
    "Generates test points, including late, duplicate, corrected and bad ones.",
    runs="timebeam.pipelines.local.generate:run",
    parameters=(
        Parameter("points", "number of different points", "Load", positive, 100_000),
        Parameter("series", "number of series", "Load", positive, 400, most=1_000_000),
        Parameter("format", "format of the lines", "Load", default="opentsdb-json", choices=tuple(FORMATS)),
        Parameter("step", "seconds between points of a series", "Load", positive, 10, most=86_400),
        Parameter(
            "start",
            "time of the first points; with `now` each run generates different bytes",
            "Load",
            default="2026-01-01",
        ),
        Parameter(
            "jitter_ms", "points are up to this many ms after their step", "Load", whole, 0, most=86_400_000
        ),
        Parameter("late", "share of points that are sent late", "Load", not_negative, 0.0, most=1.0),
        Parameter(
            "late_steps", "maximum delay of late points, in steps", "Load", positive, 60, most=1_000_000
        ),
        Parameter("duplicates", "share of points that are sent twice", "Load", not_negative, 0.0, most=1.0),
        Parameter(
            "corrections",
            "share of points that are sent again with another value",
            "Load",
            not_negative,
            0.0,
            most=1.0,
        ),
        Parameter("poison", "share of records that cannot be stored", "Load", not_negative, 0.0, most=1.0),
        Parameter("seed", "the same seed gives the same bytes", "Load", whole, 1),
        Parameter("output", "file, compressed if its name ends in .gz; - for standard output", "Output"),
        Parameter("topic", "projects/P/topics/T", "Output"),
        Parameter(
            "rate",
            "points per second into the topic; by default as fast as possible",
            "Output",
            not_negative,
            most=1e9,
        ),
        Parameter("points_per_message", "lines per message", "Output", positive, 1, most=1_000_000),
        Parameter("expect", "file for the points that a correct pipeline stores, as CSV", "Output"),
        SUMMARY,
    ),
    examples="""\
  timebeam generate --points 1000000 --output points.json.gz
  timebeam generate --format influx --late 0.01 --corrections 0.01 --poison 0.001 \\
      --output points.lp --expect expected.csv
  timebeam generate --topic projects/my-project/topics/points --start now --rate 5000""",
)

INIT_COMMAND = Command(
    "init",
    f"Writes {FILE} into this folder; asks nothing.",
    runs="timebeam.pipelines.commands.settings:init",
    parameters=(
        Parameter("project", "Google Cloud project; without it the file is for the local emulator", "Init"),
        Parameter("instance", "Bigtable instance of the project", "Init"),
        Parameter("layout", "how points are stored", "Init", default="opentsdb", choices=tuple(STORES)),
    ),
    examples="""\
  timebeam init
  timebeam init --project my-project --instance my-instance""",
)

CONFIG_COMMAND = Command(
    "config",
    "Prints every setting and where it comes from.",
    runs="timebeam.pipelines.commands.settings:config",
    parameters=(
        CONFIG,
        PROFILE,
        Parameter("output", "form of the list", "Output", default="text", choices=("text", "json")),
    ),
    examples="""\
  timebeam config
  timebeam config --profile prod --output json

precedence: option of the command, variable TIMEBEAM_NAME, profile, settings file, settings stored with the
tables, default""",
)

SHELLS = ("bash", "zsh", "fish")

COMPLETION_COMMAND = Command(
    "completion",
    "Prints a script that completes command lines.",
    runs="timebeam.pipelines.commands.settings:completion",
    arguments=(Argument("shell", choices=SHELLS, help="for which shell"),),
    parameters=(),
    examples="""\
  timebeam completion bash > ~/.local/share/bash-completion/completions/timebeam
  timebeam completion zsh > ~/.zfunc/_timebeam       with this in ~/.zshrc: fpath+=~/.zfunc; compinit
  timebeam completion fish > ~/.config/fish/completions/timebeam.fish""",
)

EMULATOR_COMMAND = Command(
    "emulator",
    "Runs Google's Bigtable emulator in the foreground; builds it first if there is none.",
    runs="timebeam.pipelines.local.emulator:run",
    parameters=(
        Parameter("port", "port to listen on; 0 for any free one", "Emulator", whole, 8086, most=65_535),
        Parameter(
            "build_only",
            "print the path of the emulator, built if necessary; do not run it",
            "Emulator",
            boolean,
            False,
        ),
    ),
    examples="""\
  timebeam emulator                 on the port that gcloud uses too, 8086
  timebeam emulator --port 0        on any free port
  timebeam emulator --build_only    only build it, for an image or a CI cache""",
)
