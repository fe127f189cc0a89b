"""DOORS: command line, Python and OpenAI shapes; the only room that reads arguments and environment."""
