"""What of Beam is changed or used from within, each with what it is worth, measured with Beam 2.77.

tests/pipelines/beam_patches/test_worth.py names the version and counts what each saves.

- `import_beam`: Beam without what it imports only if that is installed, and without searches for garbage in
  what stays: half a second, and a tenth of a short run.
- `cached.CachedOptions`: each view of options is parsed once, a sixth of the time that a pipeline of a dozen
  steps needs to start.
- `cached.remember_signatures`: the methods of each class of steps are inspected once, half of the time that a
  pipeline of thirty steps needs to start.
- `local_runner.LocalRunner`: the engine of the DirectRunner, which first tries to download another one.
- `fork_server`: workers are forked from one process that has imported Beam, 1.5 s of processor time less for
  each; a worker that dies ends the run, which else waits for it.
- `local_runner.owned`: the folders of killed processes are removed, which Beam leaves.
"""

from __future__ import annotations

import gc
import importlib
import logging
import sys

_UNUSED = ("bson", "pandas", "pymongo")  # half a second


def import_beam() -> None:
    """Imports what runs jobs, without what Beam imports only if it is installed and timebeam never uses.

    The garbage collector does not look through what is imported, which stays: a tenth of a short run.
    """
    if "apache_beam" not in sys.modules:
        _import_beam()
    importlib.import_module("timebeam.pipelines.beam_patches.cached").remember_signatures()


def _import_beam() -> None:
    logging.getLogger("apache_beam.io.mongodbio").setLevel(logging.ERROR)  # which misses pymongo
    unused = [name for name in _UNUSED if name not in sys.modules]
    sys.modules.update(dict.fromkeys(unused))  # type: ignore[arg-type]  # None: as if not installed
    gc.disable()
    try:
        importlib.import_module("timebeam.pipelines.jobs.run")
        gc.freeze()
    finally:
        gc.enable()
        for name in unused:
            del sys.modules[name]
