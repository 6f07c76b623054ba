"""One file per revision, never changed after a release."""
