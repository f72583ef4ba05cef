"""KvError
├── WireError           bytes or JSON that cannot be read: wrong version, truncated, wrong type
├── UnsupportedTokenizer  text of this tokenizer cannot be turned into bytes exactly
├── RenderError         the chat template refused the messages
├── StaleTerm           another operator has taken the catalogue over
└── RedisUnavailable    Redis did not answer within its deadline
"""


class KvError(Exception):
    """Root of everything this package raises."""


class WireError(KvError):
    """A message that this reader cannot read. Callers count it and go on; it is never fatal."""


class UnsupportedTokenizer(KvError):
    """The tokenizer's text → bytes mapping is not reproducible; the message says why."""


class RenderError(KvError):
    """The chat template could not render the request; there is no prediction for it."""


class StaleTerm(KvError):
    """A catalogue write with a term older than the stored one."""


class RedisUnavailable(KvError):
    """No answer from Redis within the deadline."""


class Refused(RedisUnavailable):
    """Redis answered with an error."""
