"""What is shown: tables, figures and one page, from rows."""
