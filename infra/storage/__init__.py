"""Object stores, chosen by a URL: a folder, S3, or any other store with an fsspec driver."""
