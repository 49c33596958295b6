"""Files that hold images: the only code that opens them. It knows no model and no dataset."""
