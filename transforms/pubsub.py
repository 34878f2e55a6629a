"""Messages out of Pub/Sub by Beam's own source, which Dataflow replaces by its."""

from __future__ import annotations

import apache_beam as beam
from apache_beam.io.gcp.pubsub import PubsubMessage, ReadFromPubSub
from apache_beam.pvalue import PBegin, PCollection

from schema.messages import Message
from transforms.messages import pubsub_message


class ReadMessages(beam.PTransform):  # type: ignore[type-arg]
    """A subscription, or a topic through a subscription that the runner makes, as `Message`.

    Args:
      subscription, topic: `projects/P/subscriptions/S` or `projects/P/topics/T`; one of them.
    """

    def __init__(self, subscription: str | None, topic: str | None) -> None:
        super().__init__()
        self._subscription, self._topic = subscription, topic

    def expand(self, root: PBegin) -> PCollection[Message]:
        """See the class."""
        source = self._subscription or self._topic
        assert source is not None
        return (
            root
            | "ReadFromPubSub"
            >> ReadFromPubSub(topic=self._topic, subscription=self._subscription, with_attributes=True)
            | "AsMessages" >> beam.Map(_message, source).with_output_types(Message)
        )


def _message(message: PubsubMessage, source: str) -> Message:
    publish_ms = int(message.publish_time.timestamp() * 1000)
    return pubsub_message(message.data, message.message_id, publish_ms, message.attributes, source)
