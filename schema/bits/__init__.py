"""Bytes and texts, apart from what they mean: compression, protobuf fields, numbers, JSON, times."""
