"""The options of message formats are declared where reading them imports no reader."""

from __future__ import annotations

import subprocess
import sys

from timebeam.schema.formats import FORMATS
from timebeam.schema.formats.options import FormatOptions


def test_the_options_of_formats_import_no_reader() -> None:
    program = (
        "import sys; from timebeam.pipelines.options.catalogue import format_parameters;"
        "from timebeam.schema.formats import FORMATS, message_format;"
        "assert FORMATS and format_parameters();"
        "formats = lambda: {name for name in sys.modules if name.startswith('timebeam.schema.formats.')};"
        "print(*sorted(formats()), sep=',');"
        "message_format('opentsdb-text'); print('timebeam.schema.formats.opentsdb.put_points' in formats())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    at_first, found = done.stdout.split()
    assert at_first == "timebeam.schema.formats.options"
    assert found == "True"


def test_options_are_those_of_formats() -> None:
    for option in FormatOptions.declared():
        assert option.shown_for is not None
        assert set(option.shown_for[1]) <= set(FORMATS)
