"""The methods, one file each. A file has the name of its method, so that a method is imported when it is needed."""
