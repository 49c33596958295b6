"""The paper's figures from rows."""
