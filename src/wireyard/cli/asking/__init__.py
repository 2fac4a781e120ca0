"""Commands that answer questions from tables: trace, why, slow, sql, report."""
