"""The one error that is the user's to mend."""


class UserError(ValueError):
    """Something the user gave is wrong: the command line prints the message and ends with exit code 2.

    The message says what was wrong, what we got, what was expected and what to do.
    """
