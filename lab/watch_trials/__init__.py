"""Trials of the watch on failing and on healthy streams: detections, delays and costs."""
