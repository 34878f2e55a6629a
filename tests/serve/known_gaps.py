"""The cases of the golden API that are not met yet, by name."""

KNOWN_GAPS = frozenset(
    {
        "last resolve",
        "last nothing",
        "gexp absolute(sum:1h-avg:int.wide)",
        "gexp diffSeries(sum:1h-avg:sys.cpu.user{dc=lax},sum:1h-avg:sys.cpu.user{dc=dal})",
        "gexp highestMax(sum:1h-avg:sys.cpu.user{host=*},2)",
    }
)
"""A case that is met must leave this list: the test is strict."""
