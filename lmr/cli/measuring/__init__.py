"""Commands that measure a part of the package: their options, as in the other files of the command line."""
