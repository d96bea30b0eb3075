"""Where models meet data: one file per task."""
