"""The contract of a layout of series: both halves, and how it is made from options.

`timebeam.schema.layouts.writing` and `timebeam.schema.layouts.reading` are the halves,
`timebeam.schema.layouts.capabilities` is what only some layouts can do. A layout knows nothing of Beam or
of the network. To add one: see CONTRIBUTING.
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
      declared_options: those of its options that it does not share with all layouts, as `table_prefix`.
    """

    declared_options: ClassVar[tuple[Option, ...]] = ()

    @classmethod
    @abc.abstractmethod
    def from_options(cls, options: Mapping[str, Any]) -> Layout:
        """The layout with its own ones of the options.

        Raises:
          ValueError: a value is out of its range; the message names the option.
        """
