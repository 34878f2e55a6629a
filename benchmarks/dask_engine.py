"""A runner for pipelines on a Dask cluster: Beam's DaskRunner, with what it lacks.

    timebeam ingest … --runner=benchmarks.dask_engine.EngineRunner --dask_client_address=tcp://localhost:8786

What Beam 2.77 has (`apache_beam.runners.dask`), and what is done here instead:

| Beam's DaskRunner | here |
|---|---|
| one bag for a step: whoever reads one output of it gets the elements of all | a bag for each output |
| elements that `finish_bundle` gives are lost | kept |
| computes the last step only, and what it depends on | computes every step |
| a side input is computed again wherever it is read, with all that it depends on | computed once |
| a Reshuffle changes nothing: what begins as one element stays in one partition | it cuts a bag into many |
| the results of a step are gathered in one object for all its partitions | one for each partition |
| the values of a group lose their windows, which the next step looks for | they keep them |
| `metrics()` raises NotImplementedError | there are none |

It is for this benchmark: everything stays in memory until the end.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import apache_beam as beam
from apache_beam.metrics.metric import MetricResults
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.pipeline import AppliedPTransform, PipelineVisitor
from apache_beam.runners.common import DoFnContext, DoFnInvoker, DoFnSignature, Receiver, _OutputHandler
from apache_beam.runners.dask.dask_runner import DaskOptions, DaskRunner
from apache_beam.runners.dask.overrides import _Create, _Flatten, _GroupByKeyOnly, _Reshuffle, dask_overrides
from apache_beam.runners.dask.transform_evaluator import Create, get_windowed_value
from apache_beam.runners.runner import PipelineResult, PipelineState
from apache_beam.transforms.sideinputs import SideInputMap
from apache_beam.transforms.window import WindowFn
from dask import bag
from dask.distributed import Client, as_completed, futures_of

_PARTITIONS = 8


class EngineRunner(DaskRunner):
    """See the module."""

    def run_pipeline(self, pipeline: beam.Pipeline, options: PipelineOptions) -> PipelineResult:
        """Computes every step, each as soon as what it reads is there.

        Raises what a step raises.
        """
        pipeline.replace_all(dask_overrides())
        with Client(options.view_as(DaskOptions).address) as client:
            visitor = _Visitor(client)
            pipeline.visit(visitor)
            for result in as_completed(futures_of(list(visitor.bags.values())), with_results=False):
                if result.status == "error":
                    result.result()
        return _Done(PipelineState.DONE)


class _Done(PipelineResult):
    """A run that has ended."""

    def wait_until_finish(self, duration: int | None = None) -> str:
        return str(self.state)

    def metrics(self) -> MetricResults:
        return _NoMetrics()


class _NoMetrics(MetricResults):
    def query(self, filter: Any = None) -> dict[str, list[Any]]:  # noqa: A002
        return {"counters": [], "distributions": [], "gauges": []}


class _Visitor(PipelineVisitor):
    """Makes a bag of the values of each output of each step; all are in the global window."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.bags: dict[tuple[AppliedPTransform, str | None], Any] = {}

    def visit_transform(self, node: AppliedPTransform) -> None:
        inputs = [
            self._future_of(collection)
            for collection in node.inputs
            if not isinstance(collection, beam.pvalue.PBegin)
        ]
        transform = node.transform
        if isinstance(transform, _Create):
            self._add(node, None, Create(node, {"partition_size": 1}).apply(None))
        elif isinstance(transform, beam.ParDo):
            self._add_outputs(node, inputs[0])
        elif isinstance(transform, _GroupByKeyOnly):
            self._add(node, None, inputs[0].groupby(_key).map(_values))
        elif isinstance(transform, _Flatten):
            self._add(node, None, bag.concat(inputs))
        elif isinstance(transform, _Reshuffle):
            self._add(node, None, inputs[0].repartition(npartitions=_PARTITIONS))
        else:
            self.bags[node, None] = inputs[0]

    def _future_of(self, collection: Any) -> Any:
        return self.bags[collection.producer, collection.tag]

    def _add(self, node: AppliedPTransform, tag: str | None, collection: Any) -> None:
        self.bags[node, tag] = self._client.persist(collection)

    def _add_outputs(self, node: AppliedPTransform, source: Any) -> None:
        """The outputs of a ParDo."""
        transform: Any = node.transform
        main_input: Any = next(iter(node.main_inputs.values()))
        args, kwargs = transform.raw_side_inputs
        sides = [
            _Side(
                type(side_input),
                side_input._view_options(),
                self._future_of(side_input.pvalue).compute(),
                side_input._window_mapping_fn,
            )
            for side_input in node.side_inputs
        ]
        step = _Step(transform.fn, node.full_label, main_input.windowing.windowfn, sides, list(args), kwargs)
        everything = self._client.persist(source.map_partitions(step))
        tags: Iterable[Any] = node.outputs
        for tag in tags:
            self._add(node, tag, everything.map_partitions(_tagged, tag))


@dataclasses.dataclass(frozen=True)
class _Side:
    """A side input, whole."""

    view: Any
    options: Any
    elements: Sequence[Any]
    window_mapping_fn: Any

    def map(self, window_fn: WindowFn) -> SideInputMap:
        """As a DoFn wants it."""
        windowed = [get_windowed_value(element, window_fn) for element in self.elements]
        return SideInputMap(self.view, self.options, windowed)


class _Receiver(Receiver):
    """Takes what a DoFn gives to one output."""

    def __init__(self, tagged_elements: list[tuple[str | None, Any]], tag: str | None) -> None:
        self._tagged_elements, self._tag = tagged_elements, tag

    def receive(self, windowed_value: Any) -> None:
        self._tagged_elements.append((self._tag, windowed_value.value))


class _Receivers(dict[str | None, _Receiver]):
    """One for each output, by its tag."""

    def __init__(self, tagged_elements: list[tuple[str | None, Any]]) -> None:
        super().__init__()
        self._tagged_elements = tagged_elements

    def __missing__(self, tag: str | None) -> _Receiver:
        self[tag] = _Receiver(self._tagged_elements, tag)
        return self[tag]


@dataclasses.dataclass(frozen=True)
class _Step:
    """A DoFn over one partition, which is its bundle."""

    fn: beam.DoFn
    label: str
    window_fn: WindowFn
    sides: Sequence[_Side]
    args: list[Any]
    kwargs: dict[str, Any]

    def __call__(self, elements: Iterable[Any]) -> list[tuple[str | None, Any]]:
        """(tag, value) of everything that comes out."""
        tagged_elements: list[tuple[str | None, Any]] = []
        outputs = _Receivers(tagged_elements)
        invoker = DoFnInvoker.create_invoker(
            DoFnSignature(self.fn),
            _OutputHandler(self.window_fn, outputs[None], outputs, None, None, False, False),
            context=DoFnContext(self.label, state=None),
            side_inputs=[side.map(self.window_fn) for side in self.sides],
            input_args=self.args,
            input_kwargs=self.kwargs,
            user_state_context=None,
            bundle_finalizer_param=beam.DoFn.BundleFinalizerParam(),
        )
        invoker.invoke_setup()
        try:
            invoker.invoke_start_bundle()
            for element in elements:
                invoker.invoke_process(get_windowed_value(element, self.window_fn))
            invoker.invoke_finish_bundle()
        finally:
            invoker.invoke_teardown()
        return tagged_elements


def _key(pair: tuple[Any, Any]) -> Any:
    return pair[0]


def _values(group: tuple[Any, list[tuple[Any, Any]]]) -> tuple[Any, list[Any]]:
    key, pairs = group
    return key, [value for _, value in pairs]


def _tagged(tagged_elements: Iterable[tuple[str | None, Any]], tag: str | None) -> list[Any]:
    return [value for its, value in tagged_elements if its == tag]


def _nothing(elements: Iterable[Any]) -> list[Any]:
    return []
