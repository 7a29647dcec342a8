"""Tests, and the code they share."""
