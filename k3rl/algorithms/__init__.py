"""Objectives and advantages: pure functions, typed, tested against float64 loops. Import the module that you need."""
