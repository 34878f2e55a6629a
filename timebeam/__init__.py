"""Metric time series in Google Cloud Bigtable: Apache Beam pipelines, and the layouts of real systems.

`timebeam.schema` is the library (no Beam, no network), `timebeam.transforms` the steps of pipelines,
`timebeam.pipelines` the commands. They are folders at the top of the repository; here are links to them.
"""

__version__ = "0.1.0"
