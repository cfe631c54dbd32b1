"""Content of the assets' pages in Dagster: metadata, numbers, pictures, and the timeline of incidents."""
