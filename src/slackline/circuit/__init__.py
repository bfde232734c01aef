"""Circuits that reduce what passes through them, and their bit-exact twins."""
