"""Getting datasets: download, unpack, verify, or make them from clean images."""
