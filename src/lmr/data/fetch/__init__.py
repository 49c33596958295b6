"""Getting datasets: download, unpack, check, or make them from clean images."""
