"""Pure functions of tensors: margins, bias correction, losses."""
