"""Errors that a user can put right."""


class UserError(Exception):
    """Something the user can put right; shown as one sentence, without a traceback."""


def reason(error: Exception) -> str:
    """Why a file cannot be read, without the number of the system's error."""
    return getattr(error, "strerror", None) or str(error)
