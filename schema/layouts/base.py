"""The contract of a layout of series: writing, reading, and construction from options.

`timebeam.schema.layouts.writing` and `timebeam.schema.layouts.reading` are its halves;
`timebeam.schema.layouts.capabilities` holds what only some layouts can do. A layout knows nothing of Beam
or the network. To add one: see CONTRIBUTING.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import Any, ClassVar

from timebeam.schema.common.option import Option
from timebeam.schema.layouts.reading import ReadableLayout
from timebeam.schema.layouts.writing import WritableLayout


class Layout(WritableLayout, ReadableLayout):
    """One stored layout of series, with its options.

    Attributes:
      declared_options: its options, without those that all layouts share, such as `table_prefix`.
    """

    declared_options: ClassVar[tuple[Option, ...]] = ()

    @classmethod
    @abc.abstractmethod
    def from_options(cls, options: Mapping[str, Any]) -> Layout:
        """The layout with those of the options that it declares or shares.

        Raises:
          ValueError: a value is out of its range; the message names the option.
        """
