"""The feeder behind ``lmr camera``: frames of a video, a network camera or a folder, sent in order and once."""
