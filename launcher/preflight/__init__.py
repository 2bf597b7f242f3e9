"""NodeReport and the rules that turn reports into findings: pure functions, on the head."""
