"""Errors that a user can correct."""


class UserError(Exception):
    """A mistake the user can correct; shown as one sentence, without a traceback."""


def reason(error: Exception) -> str:
    """Return why a file cannot be read, without the system's error number."""
    if "pickle" in str(error):  # what NumPy says of any file that is not its own
        return "it is no array written with numpy.save"
    if "mmap length" in str(error):
        return "it is shorter than it says"
    return getattr(error, "strerror", None) or str(error)
