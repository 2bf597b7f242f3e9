"""Events and output -> what a person reads: terminal view, failure report, curves, pictures. On the head."""
