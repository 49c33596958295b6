"""The towers of CLIP in torch: their blocks, the hand-written backward, and their sizes."""
