"""The planner of notebook 08: choose, and see what it needs.

`choices` is what can be chosen and the training function of a choice, `planning` finds the answers, `widget` shows
them in a notebook.
"""
