"""The jobs an engineer runs over pictures, each one function that serves Python and the command line alike."""
