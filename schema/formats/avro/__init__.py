"""Message format `avro`: containers, schemas, records and their points."""
