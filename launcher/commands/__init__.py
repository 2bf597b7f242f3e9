"""One function a verb; each reads as the pipeline of the design. Heavy imports stand inside the functions."""
