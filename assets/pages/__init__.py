"""What the pages of assets show: metadata, figures, pictures, and the timeline of incidents."""
