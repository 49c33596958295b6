"""What Ctrl-C and SIGTERM do. Apart from the commands, whose folder is full."""
