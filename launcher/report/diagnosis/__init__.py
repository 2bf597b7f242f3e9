"""Records of a run -> verdicts on its curve. Pure functions, one rule each; docs/diagnosis.md says all of them."""
