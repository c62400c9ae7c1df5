"""Values that apps under test send each other."""

from dataclasses import dataclass

import msgspec
import pydantic


class Order(msgspec.Struct):
    id: int
    customer: str = "ann"


class Invoice(msgspec.Struct):
    order: int


@dataclass
class Parcel:
    order: int


class Account(pydantic.BaseModel):
    name: str
