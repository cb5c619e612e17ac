"""SKILL.md and the hand-written guides: what they show runs, what they say is so."""
