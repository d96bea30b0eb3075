"""Pyramid vision transformers for pictures and clips."""
