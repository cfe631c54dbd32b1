"""Object stores by URL: folders, S3, and every other store that has an fsspec driver."""
