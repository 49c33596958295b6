"""Image and video files: the only code that opens them. Nothing here knows a model or a dataset."""
