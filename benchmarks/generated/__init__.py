"""Faults drawn at random, to measure how often `kvfuzz locate` names the right line."""
