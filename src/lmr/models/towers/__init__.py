"""The towers of CLIP in torch: their blocks and their sizes."""
