"""gRPC doors."""
