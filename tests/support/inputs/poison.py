"""Records that nothing can store, with the reasons of their rejection."""

from __future__ import annotations

from timebeam.schema.bits.reasons import Reason

LONG_NAME = "n" * 5000

POISON_TEXT = {
    b"put sys.m0 1767225600 NaN host=web-001": Reason.BAD_NUMBER,
    b"put sys.m0 1767225600 1,5 host=web-001": Reason.BAD_NUMBER,
    b"put sys.m0 1767225600 1 host=web=001": Reason.BAD_TAG,
    b"put sys.m0 1767225600 1 host=web:001": Reason.BAD_TAG,
    b"put sys.m0 1767225600 1": Reason.NO_TAGS,
    b"put sys.m0 9999999999999 1 host=web-001": Reason.TIMESTAMP_OUT_OF_RANGE,
    b"put sys.m0 1767225600": Reason.BAD_SYNTAX,
    b"put sys.m\xff 1767225600 1 host=web-001": Reason.BAD_ENCODING,
    f"put sys.m0 1767225600 1 host={LONG_NAME}".encode(): Reason.NAME_NOT_STORABLE,
}

POISON_JSON = {
    b'{"metric":"sys.m0","timestamp":1767225600,"value":1,"tags":{"host":"web-001"}': Reason.BAD_SYNTAX,
    b'{"metric":"sys.m0","timestamp":1767225600,"value":"NaN","tags":{"host":"web-001"}}': Reason.BAD_NUMBER,
    b'{"metric":"sys.m0","timestamp":1767225600,"value":1,"tags":{"host":"web=001"}}': Reason.BAD_TAG,
    b'{"metric":"sys.m0","timestamp":9999999999999,"value":1,"tags":{"host":"a"}}': (
        Reason.TIMESTAMP_OUT_OF_RANGE
    ),
    b'{"metric":"","timestamp":1767225600,"value":1,"tags":{"host":"web-001"}}': Reason.BAD_METRIC,
    b"not json": Reason.BAD_SYNTAX,
}
