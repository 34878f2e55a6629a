"""What several packages of schema need and none of them owns."""
