"""`flowcheck analyze`: reads capture files and reports what they contain."""
