"""Object stores by URL: a folder, S3, and whatever else fsspec has a driver for."""
