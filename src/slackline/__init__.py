"""Slackline."""
