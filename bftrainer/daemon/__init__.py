"""The daemon: connects the stages, serves users, measures harm and keeps accounts."""
