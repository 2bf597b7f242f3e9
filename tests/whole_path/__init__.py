"""The main job from end to end, on real hosts: what a user does first must work."""
