"""Message format `influx`: InfluxDB line protocol."""
