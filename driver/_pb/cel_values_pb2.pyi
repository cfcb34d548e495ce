from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class Quantity(_message.Message):
    __slots__ = ("exact",)
    EXACT_FIELD_NUMBER: _ClassVar[int]
    exact: str
    def __init__(self, exact: _Optional[str] = ...) -> None: ...

class Semver(_message.Message):
    __slots__ = ("exact",)
    EXACT_FIELD_NUMBER: _ClassVar[int]
    exact: str
    def __init__(self, exact: _Optional[str] = ...) -> None: ...
