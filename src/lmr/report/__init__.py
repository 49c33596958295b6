"""Reports: tables, figures and one page, from the rows of runs."""
