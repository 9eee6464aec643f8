"""The formats, pure: commit-log record, properties, message ids, batch body, consume-queue unit."""
